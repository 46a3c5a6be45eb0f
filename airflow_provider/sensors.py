"""`SingularityCheckpointSensor`: waits for a checkpoint of a training task, without stopping the training."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue

from kueue_integration.contract import kinds
from kueue_integration.errors import KubeError
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.resources import Object, is_true

from . import cluster, compat, parameters, submission
from .exceptions import SingularityProviderError
from .identity import DEPLOYMENT, Claim, TaskKey
from .reporting import add_to_events


class SingularityCheckpointSensor(BaseSensorOperator):  # type: ignore[misc]
    """Succeed when the training task has a checkpoint that is new enough; its XCom is that checkpoint.

    The XCom is `{"job", "namespace", "id", "attempt", "step", "committed_at", "bytes", "url", ...}`. `verbs.JobVerbs`
    exports that checkpoint for the next task. `mode="reschedule"` (the default here) holds no worker slot in between.
    A training that has ended without such a checkpoint fails the sensor at once. The
    event of every asset in `outlets` has it in `extra["training"]["checkpoint"]`; for one event per checkpoint see
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

    def poke(self, context: Any) -> PokeReturnValue:
        """One look. Raises SingularityProviderError when no such checkpoint can come any more."""
        ti = context["ti"]
        key = TaskKey(
            self.training_dag_id or ti.dag_id,
            self.training_run_id or ti.run_id,
            self.training_task_id,
            self.training_map_index,
        )
        now = time.time()
        after = max(moment(self.newer_than), now - self.max_age.total_seconds() if self.max_age else 0.0)
        before = math.inf if self.min_age is None else now - self.min_age.total_seconds()
        try:
            kube, default_namespace = cluster.connect(self.kubernetes_conn_id)
            deployments = {"", compat.variable(DEPLOYMENT) or ""}
            owned = submission.owned_jobs(kube, self.namespace or default_namespace, key, deployments)
            found, over = look(owned, whole(self.min_step), after, before)
        except KubeError as error:
            if not error.transient:
                raise SingularityProviderError(str(error)) from error
            self.log.warning("The Kubernetes API does not answer, looking again later: %s", error)
            return PokeReturnValue(is_done=False)
        if over and self.min_age is not None:
            found = None  # a training that has ended saves no more: nothing to be warned of
        if found is not None:
            self.log.info("Checkpoint %s at step %s", found["id"], found.get("step"))
            add_to_events(context, self.outlets, {"checkpoint": found})
        elif over:
            raise SingularityProviderError(f"The training {key.task_id} has ended without such a checkpoint")
        return PokeReturnValue(is_done=found is not None, xcom_value=found)


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


def look(
    owned: Iterable[Object], min_step: int, after: float, before: float = math.inf
) -> tuple[dict[str, Any] | None, bool]:
    """The newest checkpoint of the current one of a task's Jobs if it is good enough, and whether that Job has ended.

    Good: at least `min_step` steps, committed after `after`, and none committed after `before`, both Unix seconds.
    """
    jobs = [(claim, job) for job in owned if (claim := Claim.of_job(job))]
    if not jobs:
        return None, False
    _, job = max(jobs, key=lambda pair: pair[0].generation)
    every = summarise(job, None, ()).checkpoints
    checkpoints = [c for c in every if not c.get("unusable") and not c.get("side_branch")]
    good = [c for c in checkpoints if (c.get("step") or 0) >= min_step and (c.get("committed_at") or 0) > after]
    whose = {"job": kinds.job_key(job), "namespace": job["metadata"].get("namespace", "default")}
    found = {**whose, **good[-1]} if good and (checkpoints[-1].get("committed_at") or 0) <= before else None
    return found, is_true(job, "Complete") or is_true(job, "Failed")
