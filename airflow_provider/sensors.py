"""`SingularityCheckpointSensor`: waits for a checkpoint of a training task, without stopping the training."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue

from kueue_integration.errors import KubeError

from . import cluster, compat, parameters, submission
from .awaited import ENDED_STATES, Looked, SingularityCheckpointWait, Wanted, look, recorded
from .compat import AirflowSensorTimeout, conf
from .exceptions import SingularityProviderError
from .identity import DEPLOYMENT, TaskKey
from .reporting import add_to_events

LINEAGE = "lineage"
"""XCom of the training that outlasts its Job."""


class SingularityCheckpointSensor(BaseSensorOperator):  # type: ignore[misc]
    """Succeed when the training task has a checkpoint that is new enough; its XCom is that checkpoint.

    The XCom is `{"job", "namespace", "id", "attempt", "step", "committed_at", "bytes", "url", ...}`. `verbs.JobVerbs`
    exports that checkpoint for the next task. No worker slot is held in between with `mode="reschedule"` (the default
    here), nor with `deferrable=True`. If the Job is gone, the training's XCom `lineage` names its checkpoints. Once the
    training's task is over without such a checkpoint, and no retry is left, the sensor fails at once. The event of
    every asset in `outlets` has it in `extra["training"]["checkpoint"]`; for one event per checkpoint see
    `airflow_provider.assets`.

    :param training_task_id: the task made with SingularityTrainOperator or `@task.singularity_train` (templated)
    :param training_dag_id: its Dag; default: the sensor's own (templated)
    :param training_run_id: its run; default: the sensor's own (templated)
    :param training_map_index: which of a mapped task, -1 for one that is not mapped
    :param min_step: at least so many step boundaries (templated)
    :param newer_than: committed after this moment: ISO 8601 or Unix seconds (templated)
    :param max_age: committed at most so long ago
    :param min_age: instead: the newest checkpoint is at least so old, none at all does not count. A watchdog: the
        training has saved nothing for that long
    :param namespace: where the Job is; default: the connection's, else `default` (templated)
    :param kubernetes_conn_id: Airflow connection of type `kubernetes`
    :param deferrable: wait in a triggerer, with the one watch of the cluster that all share: seconds after the
        checkpoint, and no worker starts to look. Default: Airflow's `[operators] default_deferrable`
    """

    template_fields: Sequence[str] = (
        "training_task_id", "training_dag_id", "training_run_id", "min_step", "newer_than", "namespace",
        "kubernetes_conn_id",
    )  # fmt: skip
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        training_task_id: str,
        training_dag_id: str | None = None,
        training_run_id: str | None = None,
        training_map_index: int = -1,
        min_step: int | str | None = None,
        newer_than: str | float | None = None,
        max_age: datetime.timedelta | None = None,
        min_age: datetime.timedelta | None = None,
        namespace: str | None = None,
        kubernetes_conn_id: str = "kubernetes_default",
        mode: str = "reschedule",
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(mode=mode, **kwargs)
        self.training_task_id = training_task_id
        self.training_dag_id = training_dag_id
        self.training_run_id = training_run_id
        self.training_map_index = training_map_index
        self.min_step = min_step
        self.newer_than = newer_than
        self.max_age = max_age
        self.min_age = min_age
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        if not isinstance(deferrable, bool):
            raise ValueError(f"deferrable = {deferrable!r}: must be True or False")
        self.deferrable = deferrable
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id
        for parameter, age in (("max_age", max_age), ("min_age", min_age)):
            if age is not None:
                parameters.duration(parameter, age)
        if min_age is not None and (max_age is not None or newer_than is not None):
            raise ValueError(f"min_age = {min_age!r}: asks for an old checkpoint, max_age and newer_than for a new one")
        if not parameters.is_open(min_step):
            whole(min_step)
        if not parameters.is_open(newer_than):
            moment(newer_than)

    def execute(self, context: Any) -> Any:
        """Wait in the worker, or in a triggerer if `deferrable`."""
        if not self.deferrable:
            return super().execute(context)
        return self.execute_complete(context)

    def execute_complete(self, context: Any, event: Any = None, since: float | None = None) -> Any:
        """Look; defer, and be called again, if there is nothing yet. Raises as `poke`."""
        del event  # it only says that there is something to be seen
        now = time.time()
        since = now if since is None else since
        seen = self.poke(context)
        if seen.is_done:
            return seen.xcom_value
        left = self.timeout - (now - since)
        if left <= 0:
            raise AirflowSensorTimeout(f"No such checkpoint of {self.training_task_id} within {self.timeout:.0f} s")
        trigger = SingularityCheckpointWait(
            self.kubernetes_conn_id,
            self._namespace(),
            asdict(self._key(context["ti"])),
            sorted({"", compat.variable(DEPLOYMENT) or ""}),
            asdict(self._wanted()),
        )
        timeout = datetime.timedelta(seconds=left)
        self.defer(trigger=trigger, method_name="execute_complete", kwargs={"since": since}, timeout=timeout)
        return None  # not reached: `defer` raises

    def poke(self, context: Any) -> PokeReturnValue:
        """One look. Raises SingularityProviderError when no such checkpoint can come any more."""
        key = self._key(context["ti"])
        self._check_task(key, context["ti"])
        wanted, now = self._wanted(), time.time()
        try:
            kube, default_namespace = cluster.connect(self.kubernetes_conn_id)
            deployments = {"", compat.variable(DEPLOYMENT) or ""}
            owned = submission.owned_jobs(kube, self.namespace or default_namespace, key, deployments)
        except KubeError as error:
            if not error.transient:
                raise SingularityProviderError(str(error)) from error
            self.log.warning("The Kubernetes API does not answer, looking again later: %s", error)
            return PokeReturnValue(is_done=False)
        looked = look(owned, wanted, now)
        found = looked.found
        if found is None and (looked.over or not looked.there):
            found = self._left(key, looked, wanted, now)
        if found is not None:
            self.log.info("Checkpoint %s at step %s", found["id"], found.get("step"))
            add_to_events(context, self.outlets, {"checkpoint": found})
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def _left(self, key: TaskKey, looked: Looked, wanted: Wanted, now: float) -> dict[str, Any] | None:
        """No Job lives: a checkpoint that the record of the task names, or None while a Job may still come.

        Raises SingularityProviderError when none does.
        """
        try:
            state = compat.task_state_or_none(key)
        except Exception as error:  # of Airflow's API; then the Job says it alone, as long as it is there
            self.log.warning("Airflow does not say how %s is, looking again later: %s", key.task_id, error)
            return None
        if state not in ENDED_STATES:
            return None
        found = None if looked.there else recorded(compat.xcom_of(key, LINEAGE), wanted, now)
        if found is None:
            where = "" if looked.there else ", no Job of it is left, and its XCom lineage names none"
            raise SingularityProviderError(
                f"The training {key.task_id} has ended without such a checkpoint: it is {state}{where}; one comes only "
                f"if it is cleared"
            )
        return found

    def _check_task(self, key: TaskKey, ti: Any) -> None:
        dag = self.get_dag()
        if dag is not None and (key.dag_id, key.run_id) == (ti.dag_id, ti.run_id) and key.task_id not in dag.task_dict:
            raise SingularityProviderError(
                f"training_task_id = {key.task_id!r}: Dag {key.dag_id} has no such task; of another Dag: give "
                f"training_dag_id, too"
            )

    def _key(self, ti: Any) -> TaskKey:
        """Of the training."""
        dag_id, run_id = self.training_dag_id or ti.dag_id, self.training_run_id or ti.run_id
        return TaskKey(dag_id, run_id, self.training_task_id, self.training_map_index)

    def _wanted(self) -> Wanted:
        ages = (None if age is None else age.total_seconds() for age in (self.max_age, self.min_age))
        return Wanted(whole(self.min_step), moment(self.newer_than), *ages)

    def _namespace(self) -> str:
        return self.namespace or cluster.connect(self.kubernetes_conn_id)[1]


def whole(value: int | str | None) -> int:
    """`min_step` as a number, 0 without one. Raises SingularityProviderError."""
    try:
        return 0 if value in (None, "") else int(str(value))
    except ValueError:
        raise SingularityProviderError(f"min_step = {value!r}: must be a whole number of steps") from None


def moment(value: str | float | None) -> float:
    """Unix seconds of an ISO 8601 text (UTC unless it says otherwise) or a number. Raises SingularityProviderError."""
    if value is None or value == "":
        return 0.0
    try:
        return float(value)
    except ValueError:
        pass
    try:
        found = datetime.datetime.fromisoformat(str(value))
    except ValueError:
        raise SingularityProviderError(f"newer_than = {value!r}: give ISO 8601 or Unix seconds") from None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.timezone.utc)).timestamp()
