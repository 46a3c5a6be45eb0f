"""A Job that nobody waits for any more is deleted, or ended and left, where a later one may begin with its checkpoints.

Only the record on a Job, which the controller writes, says where its checkpoints are: with the Job they would be lost
to `start_from`. So such a Job is failed instead. Its pods are asked to end as they are before a move, and may save once
more within their grace period.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kueue_integration.contract import branches
from kueue_integration.jobs import lifecycle, time_travel
from kueue_integration.kube.api import Kube
from kueue_integration.kube.resources import JOB, is_true

from .identity import Claim

DELETED, ENDED = "deleted", "ended: its checkpoints stay"
"""What became of a Job, for people."""


def over(job: Mapping[str, Any]) -> bool:
    """Whether Kubernetes starts nothing for it any more."""
    return is_true(job, "Complete") or is_true(job, "Failed")


def leaves_record(job: Mapping[str, Any], wanted: bool = False) -> bool:
    """Whether `job` has to stay as a record: it has a checkpoint, which its task, or `wanted`, says is of use."""
    claim = Claim.of_job(job)
    if not (wanted or (claim is not None and claim.keeps)) or time_travel.delegated(job):
        return False
    return any(not ref.unusable for ref in branches.line(job))


def quiet(job: Mapping[str, Any]) -> bool:
    """Whether an ended Job has no pods: it waits for quota, and would end as soon as it had it."""
    status, spec = job.get("status") or {}, job["spec"]
    runs = status.get("active") or status.get("terminating")
    return bool(spec.get("suspend")) and not runs and lifecycle.ends(job)


def give_up(kube: Kube, namespace: str, name: str, uid: str, wanted: bool = False) -> str:
    """End that very Job if it has not ended. Returns DELETED, ENDED, or "" where it was over. Raises KubeError."""
    job = kube.find(JOB, namespace, name)
    if job is None or job["metadata"]["uid"] != uid or over(job):
        return ""
    if job["metadata"].get("deletionTimestamp") is None and leaves_record(job, wanted):
        return ENDED if lifecycle.end(kube, namespace, name, uid) else ""
    return DELETED if lifecycle.delete(kube, namespace, name, uid=uid) else ""
