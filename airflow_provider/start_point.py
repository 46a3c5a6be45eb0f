"""`start_from`: which checkpoint of which job a task's new Job begins with. Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kueue_integration.contract import branches, job_names, kinds
from kueue_integration.errors import RequestRefusedError, SpecError
from kueue_integration.jobs import time_travel
from kueue_integration.jobs.time_travel import Start
from kueue_integration.kube.api import Kube
from kueue_integration.kube.resources import JOB, selector
from kueue_integration.spec.platform_config import PlatformConfig
from kueue_integration.spec.train_spec import TrainSpec
from proxy.protocol import names

from .identity import Claim

EARLIER_RUN: Final = "earlier run"
"""No job can be called so."""
_FORMS = f"give {EARLIER_RUN!r}, a job, JOB/CHECKPOINT, or the id of a checkpoint"


def find(kube: Kube, wanted: str | None, claim: Claim) -> Start | None:
    """Where the Job of `claim` begins; None at step 0. Raises SpecError that names `start_from`, KubeError."""
    text = (wanted or "").strip()
    if not text or text == "None":  # what a template makes of nothing
        return None
    if text == EARLIER_RUN:
        return _earlier(kube, claim)
    job, slash, checkpoint = text.partition("/")
    try:
        if slash or kinds.named(kube, claim.namespace, job) is not None:
            return time_travel.find(kube, claim.namespace, job, checkpoint or None)
    except SpecError as error:
        _, value, why = error.problems[0]
        raise SpecError([("start_from", wanted, f"{value} {why}")]) from None
    for known in kinds.list_managed(kube, claim.namespace):
        if any(ref.id == text for ref in branches.known(known)):
            return time_travel.find(kube, claim.namespace, kinds.job_key(known), text)
    where = f"is neither a training job of namespace {claim.namespace!r} nor a checkpoint that one of them knows"
    raise SpecError([("start_from", wanted, f"{where}; {_FORMS}")])


def hold(kube: Kube, start: Start, spec: TrainSpec, config: PlatformConfig) -> None:
    """Keep the checkpoint for the new Job, which it has to fit. Raises SpecError, PlatformError, KubeError."""
    wishes = {job_names.ANN_WORLD_SIZE: str(spec.ranks), job_names.ANN_STORE: spec.store or config.store}
    if spec.elastic:
        wishes[job_names.ANN_ENGINE] = names.ENGINE_STATE
    try:
        time_travel.require_fit({"metadata": {"annotations": wishes}}, start)
        time_travel.hold(time_travel.in_a_pod(kube, spec.namespace), start, spec.name)
    except SpecError as error:
        raise SpecError([("start_from", value, why) for _, value, why in error.problems]) from None
    except RequestRefusedError as error:
        raise SpecError([("start_from", start.ref.id, error.problem[2])]) from None


def _earlier(kube: Kube, claim: Claim) -> Start | None:
    """The newest usable checkpoint of the youngest other Job of this task that has one."""
    managed = kube.list(JOB, claim.namespace, selector({job_names.LABEL_MANAGED: "true"}))
    ours = [job for job in managed if job["metadata"]["name"] != claim.name and _same_task(job, claim)]
    ours.sort(key=lambda job: str(job["metadata"].get("creationTimestamp", "")), reverse=True)
    for job in ours:
        if any(not ref.unusable for ref in branches.line(job)):
            return time_travel.find(kube, claim.namespace, kinds.job_key(job))
    return None


def _same_task(job: Mapping[str, Any], claim: Claim) -> bool:
    """Whether the Job is of the same task of the same Airflow, in whichever run."""
    other = Claim.of_job(job)
    if other is None or other.deployment != claim.deployment or job["metadata"].get("deletionTimestamp"):
        return False
    one, two = other.key, claim.key
    return (one.dag_id, one.task_id, one.map_index) == (two.dag_id, two.task_id, two.map_index)
