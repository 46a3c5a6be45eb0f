"""What a drain has to know about one job, out of its Job, its Workload and its pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import attempt_records, job_names
from ..contract.record_types import AttemptRecord
from ..jobs import status as library
from ..jobs.phase import Phase
from ..jobs.status import JobStatus
from ..kube.resources import Object, is_true, label
from ..requests import save_time_estimate, user_requests, verbs
from . import departure

Key = tuple[str, str]
"""Namespace, and what the job is called (`kinds.job_key`)."""


@dataclass(frozen=True)
class Refusal:
    """Why a job is not moved, and what its owner or an administrator can do."""

    why: str
    fix: str


@dataclass(frozen=True)
class Look:
    """One look at a job; `status` None: there is no Job of that name any more."""

    status: JobStatus | None
    on: tuple[str, ...] = ()
    """Drained nodes that have pods of it which have not ended."""
    elsewhere: tuple[str, ...] = ()
    """The other nodes of its pods."""
    pods: int = 0
    """How many of its pods are on the drained nodes."""
    priority: int = 0
    trains: bool = False
    """There is something to save that no checkpoint has."""
    stopping: bool = False
    """Its attempt is being stopped, or was: no request of ours is needed now."""
    refusal: Refusal | None = None
    change: verbs.Result | None = None
    """The last request for a change, whoever made it, and the last for a checkpoint."""
    save: verbs.Result | None = None

    @property
    def ended(self) -> bool:
        return self.status is None or self.status.final

    @property
    def attempt(self) -> int:
        return self.status.attempt if self.status is not None else 0

    @property
    def runs(self) -> bool:
        return self.status is not None and self.status.phase == Phase.RUNNING.value and not self.stopping

    @property
    def waits(self) -> bool:
        """In its queue or paused: it has no quota, and no pod is to come."""
        waiting = (Phase.QUEUED.value, Phase.PREEMPTED.value, Phase.SUSPENDED.value)
        return self.status is not None and self.status.phase in waiting

    @property
    def message(self) -> str:
        return "the job was deleted" if self.status is None else self.status.message


def at_work(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has a node and has not ended."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return bool((pod.get("spec") or {}).get("nodeName")) and not ended


def node_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def by_job(pods: Sequence[Object]) -> dict[Key, list[Object]]:
    """Pods of training jobs, by the job that their labels name."""
    found: dict[Key, list[Object]] = {}
    for pod in pods:
        name = label(pod, job_names.LABEL_JOB)
        if name:
            found.setdefault((pod["metadata"]["namespace"], name), []).append(pod)
    return found


def look(
    job: Object | None,
    workload: Object | None,
    pods: Sequence[Object],
    nodes: Sequence[str],
    by: str,
    lose_work: bool = False,
) -> Look:
    """One look. `pods`: all of the job's; `nodes`: those that are drained; `by`: how our own requests are signed;
    `lose_work`: it leaves also where that costs it steps."""
    alive = [pod for pod in pods if at_work(pod)]
    places = {node_of(pod) for pod in alive}
    on, elsewhere = tuple(sorted(places & {*nodes})), tuple(sorted(places - {*nodes}))
    count = sum(node_of(pod) in nodes for pod in alive)
    if job is None:
        return Look(None, on, elsewhere, count)
    status = library.summarise(job, workload, pods)
    last = status.attempts[-1] if status.attempts else None
    change, save = (
        verbs.result_of(job, request) if (request := user_requests.asked(job, slot)) is not None else None
        for slot in (user_requests.CHANGE, user_requests.CHECKPOINT)
    )
    return Look(
        status,
        on,
        elsewhere,
        count,
        priority=int(((workload or {}).get("spec") or {}).get("priority") or 0),
        trains=_trains(job, last),
        stopping=_stopping(job, workload, last),
        refusal=_refusal(job, status, by, lose_work),
        change=change,
        save=save,
    )


def _trains(job: Object, last: AttemptRecord | None) -> bool:
    return last is not None and attempt_records.trains_since(job, last) is not None


def _stopping(job: Object, workload: Object | None, last: AttemptRecord | None) -> bool:
    if job["metadata"].get("deletionTimestamp") or job["spec"].get("suspend") or is_true(workload, "Evicted"):
        return True
    return last is not None and (last.evicted_at is not None or last.ended_by is not None)


def _refusal(job: Object, status: JobStatus, by: str, lose_work: bool) -> Refusal | None:
    """What would cost a job steps, or would replace somebody else's request."""
    kind, name, namespace = str(job.get("kind")).lower(), job["metadata"]["name"], status.namespace
    if status.hold != job_names.HOLD_ARMED and not lose_work:
        grace = save_time_estimate.limits_of(job).grace
        fix = f"kubectl annotate {kind} {name} -n {namespace} {job_names.ANN_HOLD}={job_names.HOLD_ARMED} --overwrite"
        within = f" of {grace:.0f} s" if grace else ""
        why = f"its hold is {status.hold}: a save would have no more than the grace period{within} of its pods"
        return Refusal(why, fix)
    if label(job, job_names.MULTIKUEUE_ORIGIN_LABEL) is not None:
        why = "MultiKueue has brought it here, and deletes a copy that is changed here"
        return Refusal(
            why, "let it leave the cluster: stopPolicy HoldAndDrain of the ClusterQueue here, until it is gone"
        )
    problem = departure.busy(job, by)
    if problem is not None:
        field, value, text = problem
        return Refusal(f"{field} {value}, {text}", "wait for its end, or withdraw it, and drain again")
    limits = save_time_estimate.limits_of(job)
    budget = save_time_estimate.Limits(limits.budget, 0.0)
    slow = save_time_estimate.warnings(status.estimated_save_s, budget)
    if slow and not lose_work:
        fix = f"kubectl annotate {kind} {name} -n {namespace} {job_names.ANN_BUDGET}=SECONDS --overwrite"
        return Refusal(f"it cannot be saved in time: {slow[0]}", fix)
    return None


def _begins_again(later: Sequence[AttemptRecord]) -> int | None:
    """The first step of the next attempt that made one. Those before it may not have restored their checkpoint."""
    first = None
    for record in later:
        if record.first_step is not None:
            first = record.first_step if first is None else min(first, record.first_step)
        if record.last_step is not None:
            break
    return first


def steps_lost(status: JobStatus, since: int) -> int:
    """Steps that were or will be run again because attempt `since` or a later one had to end.

    An attempt that has no successor yet is compared with the newest checkpoint from which one would start.
    """
    saved = library.newest_usable(status.checkpoints)
    lost = 0
    for number, record in enumerate(status.attempts):
        if record.attempt < since or record.last_step is None or record.ended_by in (None, "Finished", "Failed"):
            continue
        begins = _begins_again(status.attempts[number + 1 :])
        if begins is None:
            begins = int((saved or {}).get("step") or 0)
        lost += max(0, record.last_step + 1 - begins)
    return lost
