"""`SingularityCheckpointSensor`: waits for a checkpoint of a training task, without stopping the training."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue

from kueue_integration.errors import KubeError
from kueue_integration.k8s import Kube
from kueue_integration.resources import is_true
from kueue_integration.status import summarise

from . import cluster, submission
from .exceptions import SingularityProviderError
from .identity import Claim, TaskKey
from .reporting import add_to_events


class SingularityCheckpointSensor(BaseSensorOperator):  # type: ignore[misc]
    """Succeed when the training task has a checkpoint that is new enough; its XCom is that checkpoint.

    The XCom is `{"id", "attempt", "step", "committed_at", "bytes", "url", ...}`. `mode="reschedule"` (the default here)
    holds no worker slot in between. A training that has ended without such a checkpoint fails the sensor at once. The
    event of every asset in `outlets` has it in `extra["training"]["checkpoint"]`; for one event per checkpoint see
    `airflow_provider.assets`.

    :param training_task_id: the task made with SingularityTrainOperator or `@task.singularity_train` (templated)
    :param training_dag_id: its Dag; default: the sensor's own (templated)
    :param training_run_id: its run; default: the sensor's own (templated)
    :param training_map_index: which of a mapped task, -1 for one that is not mapped
    :param min_step: at least so many step boundaries (templated)
    :param newer_than: committed after this moment: ISO 8601 or Unix seconds (templated)
    :param max_age: committed at most so long ago
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
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id

    def poke(self, context: Any) -> PokeReturnValue:
        """One look. Raises SingularityProviderError when no such checkpoint can come any more."""
        ti = context["ti"]
        key = TaskKey(
            self.training_dag_id or ti.dag_id,
            self.training_run_id or ti.run_id,
            self.training_task_id,
            self.training_map_index,
        )
        after = max(moment(self.newer_than), time.time() - self.max_age.total_seconds() if self.max_age else 0.0)
        try:
            kube, default_namespace = cluster.connect(self.kubernetes_conn_id)
            found, over = look(kube, self.namespace or default_namespace, key, int(self.min_step or 0), after)
        except KubeError as error:
            if not error.transient:
                raise SingularityProviderError(str(error)) from error
            self.log.warning("The Kubernetes API does not answer, looking again later: %s", error)
            return PokeReturnValue(is_done=False)
        if found is not None:
            self.log.info("Checkpoint %s at step %s", found["id"], found.get("step"))
            add_to_events(context, self.outlets, {"checkpoint": found})
        elif over:
            raise SingularityProviderError(f"The training {key.task_id} has ended without such a checkpoint")
        return PokeReturnValue(is_done=found is not None, xcom_value=found)


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


def look(kube: Kube, namespace: str, key: TaskKey, min_step: int, after: float) -> tuple[dict[str, Any] | None, bool]:
    """The newest checkpoint of the task's current Job if it is good enough, and whether the Job has ended."""
    jobs = [(claim, job) for job in submission.owned_jobs(kube, namespace, key) if (claim := Claim.of_job(job))]
    if not jobs:
        return None, False
    _, job = max(jobs, key=lambda pair: pair[0].generation)
    checkpoints: Sequence[Mapping[str, Any]] = summarise(job, None, ()).checkpoints
    good = [c for c in checkpoints if (c.get("step") or 0) >= min_step and (c.get("committed_at") or 0) > after]
    return dict(good[-1]) if good else None, is_true(job, "Complete") or is_true(job, "Failed")
