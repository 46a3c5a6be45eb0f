"""`start_from`: which checkpoint of which job a task's new Job begins with. Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kueue_integration.contract import branches, job_names, kinds
from kueue_integration.jobs import start_point, time_travel
from kueue_integration.jobs.time_travel import Start
from kueue_integration.kube.api import Kube
from kueue_integration.kube.resources import JOB, selector

from .identity import Claim

EARLIER_RUN: Final = "earlier run"
"""No job can be called so."""


def find(kube: Kube, wanted: str | None, claim: Claim) -> Start | None:
    """Where the Job of `claim` begins; None at step 0. Raises SpecError that names `start_from`, KubeError."""
    text = (wanted or "").strip()
    if not text or text == "None":  # what a template makes of nothing
        return None
    if text == EARLIER_RUN:
        return _earlier(kube, claim)
    return start_point.find(kube, claim.namespace, text, f"{EARLIER_RUN!r}, {start_point.FORMS}")


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
