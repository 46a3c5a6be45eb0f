"""`classify`: one phase, one reason and one sentence out of a Job and its Workload. Pure.

Knows the condition reasons of Kueue 0.15 to 0.20: an unknown one is passed on with Kueue's own message, never refused.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singularity_proxy.protocol import exit_codes

from ..contract import attempt_records, job_names
from ..contract.record_types import AttemptRecord
from ..job.unreadable import readable_or
from ..job.view import Job
from ..job.workload import Workload
from ..kube.resources import condition, is_true
from ..requests import user_requests
from . import shortage
from .queue_position import Position
from .shortage import Shortage

_Obj = Mapping[str, Any]


class Phase(str, enum.Enum):
    """Where a job stands. The value is what users see."""

    SUBMITTED = "Submitted"
    """Created; Kueue has not taken notice yet."""
    QUEUED = "Queued"
    """Waits for quota for the first time."""
    ADMITTED = "Admitted"
    """Has quota; the fence waits until nothing of the former attempt can still write."""
    STARTING = "Starting"
    RESTORING = "Restoring"
    """Pods start from a checkpoint; no step has been run since."""
    RUNNING = "Running"
    CHECKPOINTING = "Checkpointing"
    """Evicted, and its pods are still there to write the checkpoint."""
    PREEMPTED = "Preempted"
    """Stopped, waits for quota again."""
    SUSPENDED = "Suspended"
    """Deactivated: stays out until somebody activates the Workload again."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"

    def __str__(self) -> str:
        return self.value

    @property
    def final(self) -> bool:
        """Whether the job can never leave this phase."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.DELETED)


@dataclass(frozen=True)
class Classified:
    """`reason` is a CamelCase word of Kubernetes or Kueue (or ours)."""

    phase: Phase
    reason: str
    said: str
    """A sentence for people,"""
    raw: str = ""
    """and what Kueue itself says to it."""

    @property
    def message(self) -> str:
        return f"{self.said}; Kueue: {self.raw}" if self.raw else self.said


OUT_OF_RETRIES = "InfrastructureRetriesExceeded"
"""Reason of a job that lost more attempts to the infrastructure than it may."""
_PENDING_WORDS = {
    "Pending": "waits for quota",
    "Waiting": "waits for quota",
    "PendingEvaluation": "waits for Kueue's next look at the queue",
    "WaitingForQuota": "waits for quota",
    "WaitingForPreemptedWorkloads": "waits for the jobs that it preempts to give their quota back",
    "WaitingForPodsReady": "waits until the pods of an earlier job are ready",
    "ExceedsMaxQuota": "asks for more than the queue can ever give",
    "Inadmissible": "does not fit the queue now",
    "NoMatchingFlavor": "fits no flavor of the queue",
    "TopologyPlacementFailed": "fits nowhere in the topology",
    "Misconfigured": "waits: its queue is not set up properly",
    "Suspended": "waits: it is deactivated",
    "AdmissionGated": "waits for an admission gate",
    "OnHold": "waits: its queue is on hold",
}
_EVICTED_WORDS = {
    "Preempted": "was preempted",
    "PodsReadyTimeout": "was evicted because its pods were not ready in time",
    "AdmissionCheck": "gives its quota back to be admitted anew",
    "ClusterQueueStopped": "was evicted because the cluster queue was stopped",
    "LocalQueueStopped": "was evicted because the queue was stopped",
    "NodeFailures": "was evicted because nodes failed",
    "FlavorMigration": "moves to a better flavor",
    "Deactivated": "was deactivated",
    "DeactivatedDueToAdmissionCheck": "was deactivated by an admission check",
    "DeactivatedDueToRequeuingLimitExceeded": "was deactivated: evicted too often",
    "DeactivatedDueToMaximumExecutionTimeExceeded": "was deactivated: its execution time is over",
    "DeactivatedDueToEvictedOnManagerCluster": "was deactivated: the managing cluster evicted it",
}
_ASKED_FOR_WORDS = {
    "Migrated": "moves",
    "Resized": "changes its size",
    "Paused": "was paused",
    "Rewound": "goes back to an older checkpoint",
    "Regrown": "gives its quota back to be admitted anew",
}
"""What users or regrowth ask for: `ended_by` of the attempt that has to end for it."""
_TIMEOUT_WORDS = {
    "WaitForStart": "its pods did not start in time",
    "WaitForRecovery": "its pods did not recover in time",
}
_CHECKPOINT_WORDS = {
    "barrier": "stops its ranks at one step",
    "dumping": "freezes its ranks",
    "uploading": "stores the checkpoint",
}
_BACK_IN = {
    "ClusterQueueStopped": "goes on when the ClusterQueue's stopPolicy is None again",
    "LocalQueueStopped": "goes on when the LocalQueue's stopPolicy is None again",
}
"""What has to happen before Kueue queues an evicted Workload again, by the reason of the eviction."""
_REACTIVATE = "`singularityctl resume` queues it again"
_DEACTIVATED = "whoever has set spec.active of Workload {} to false has to set it to true again"
_BY_A_CHECK = ("AdmissionCheck", "DeactivatedDueToAdmissionCheck")
_DUE = re.compile(r" due to ([^;]+)")


def classify(
    workload: _Obj | None,
    job: _Obj | None,
    pods: Sequence[_Obj] = (),
    position: Position | None = None,
    attempt: Callable[[_Obj], AttemptRecord | None] = attempt_records.last,
) -> Classified:
    """Phase of a job. `pods` (why does one not start) and the queue's `position` only make the sentence better.

    :param attempt: how its last attempt is read
    """
    if job is None:
        return Classified(Phase.DELETED, "NotFound", "the Job does not exist any more")
    ended = _ended(job)
    if ended:
        return ended
    if job["metadata"].get("deletionTimestamp"):
        return Classified(Phase.DELETED, "Deleting", "the Job is being deleted")
    if workload is None:
        return Classified(Phase.SUBMITTED, "NoWorkload", "Kueue has not made a Workload for the Job yet")
    last = attempt(job)
    if is_true(workload, "Evicted"):
        return _evicted(workload, job, last, position)
    refused = _refused(workload, job)
    if refused:
        return refused
    if workload.get("spec", {}).get("active") is False and not _reshaped(workload, job):
        return Classified(Phase.SUSPENDED, "Deactivated", f"is deactivated; {_reactivate(workload, 'Deactivated')}")
    if not is_true(workload, "QuotaReserved"):
        return _waiting(workload, last, position)
    if not is_true(workload, "Admitted"):
        return _fenced(workload)
    return _admitted(job, last, pods)


def _ended(job: _Obj) -> Classified | None:
    if is_true(job, "Complete"):
        return Classified(Phase.SUCCEEDED, "Complete", "finished")
    if is_true(job, "Failed"):
        found = condition(job, "Failed") or {}
        limit = attempt_records.infrastructure_retries(job)
        if limit is not None and attempt_records.broken(job) > limit:
            return Classified(Phase.FAILED, OUT_OF_RETRIES, attempt_records.used_up(limit))
        message = exit_codes.explained(str(found.get("message") or "failed"))
        return Classified(Phase.FAILED, str(found.get("reason") or "Failed"), message)
    return None


def _refused(workload: _Obj, job: _Obj) -> Classified | None:
    """Kueue gave a Job up that never ran: conflicting node selectors, a slice that was replaced, ..."""
    over = condition(workload, "Finished") or {}
    reason = str(over.get("reason") or "Finished")
    if over.get("status") != "True" or not job["spec"].get("suspend") or reason in ("Succeeded", "Failed"):
        return None
    return Classified(Phase.FAILED, reason, f"Kueue gave it up: {over.get('message') or reason}")


def _evicted(workload: _Obj, job: _Obj, last: AttemptRecord | None, position: Position | None) -> Classified:
    why = condition(workload, "Evicted") or {}
    reason = str(why.get("reason") or "Evicted")
    words = _EVICTED_WORDS.get(reason, f"was evicted ({reason})")
    kueues = str(why.get("message") or "")
    if last and last.ended_by in _ASKED_FOR_WORDS:
        words = _ASKED_FOR_WORDS[last.ended_by]
    elif last and last.preempted_by:
        due = _DUE.search(kueues)
        words += f" by {preempted_by(last)}" + (f": {due.group(1)}" if due else "")
    elif reason == "PodsReadyTimeout":
        words += _timeout(workload)
    elif kueues and (reason not in _EVICTED_WORDS or reason in _BY_A_CHECK):
        words += f": {kueues}"
    saved = attempt_records.checkpoint(job)
    seen = Job.parse(job)
    attempt = readable_or(seen.attempt_shown, None) or 0
    if saved is not None and attempt and saved.attempt == attempt:
        state, done = f"checkpoint at step {saved.step} is committed", True
    else:
        state, done = (
            "no checkpoint of this attempt yet",
            seen.hold_word == job_names.HOLD_RELEASED,
        )
    if last and last.note:
        state = last.note
    if not done and _has_pods(job):
        doing = _saving(attempt_records.progress(job), attempt) or "writes a checkpoint"
        return Classified(Phase.CHECKPOINTING, reason, f"{words}; {doing}")
    if workload.get("spec", {}).get("active") is False:
        if _reshaped(workload, job):
            return Classified(Phase.PREEMPTED, reason, f"{words}; {state}; is queued again in its new shape")
        return Classified(Phase.SUSPENDED, reason, f"{words}; {state}; {_reactivate(workload, reason)}")
    # Kueue leaves Evicted on True until the Workload has quota again: all that time it waits in the queue.
    told = [words, state, _goes_on(workload, reason), *_wanting(workload, position)]
    return Classified(Phase.PREEMPTED, reason, "; ".join(told), _raw(workload))


def _saving(seen: attempt_records.ProgressNote | None, attempt: int) -> str:
    """What the pods of `attempt` do for a checkpoint now, and how far they are; "" if nothing."""
    if seen is None or seen.attempt != attempt:
        return ""
    words = _CHECKPOINT_WORDS.get(seen.phase, "")
    if words and seen.bytes_total:
        words += f", {(seen.bytes_done or 0) >> 20} of {seen.bytes_total >> 20} MiB are saved"
    return words


def _reshaped(workload: _Obj, job: _Obj) -> bool:
    """Whether the controller has taken the Workload out of the queue only to give it another shape."""
    request = user_requests.asked(job, user_requests.CHANGE)
    paused = request is not None and request.op == "pause"
    return Workload.parse(workload).reshape_reason is not None and not paused


def _reactivate(workload: _Obj, reason: str) -> str:
    """How it goes on: an administrator's deactivation is not for the job's owner to undo."""
    seen = Workload.parse(workload)
    ours = seen.paused or seen.reshape_reason is not None
    return _REACTIVATE if ours or reason != "Deactivated" else _DEACTIVATED.format(workload["metadata"]["name"])


def _wanting(workload: _Obj, position: Position | None) -> list[str]:
    """What a Workload in the queue lacks, and where it stands."""
    if is_true(workload, "QuotaReserved"):
        return []
    told = (shortage.sentence(shortages(workload)), str(position or ""))
    return [words for words in told if words]


def _raw(workload: _Obj) -> str:
    """Kueue's own words about a Workload in the queue."""
    found = condition(workload, "QuotaReserved") or {}
    return "" if found.get("status") == "True" else str(found.get("message") or "")


def _goes_on(workload: _Obj, reason: str) -> str:
    """What an evicted, active Workload waits for."""
    requeued = condition(workload, "Requeued") or {}
    if requeued.get("status") != "False":
        return "waits for quota"
    again = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
    if again:
        return f"Kueue tries again at {again}"
    return _BACK_IN.get(reason, "Kueue tries again in a moment")


def _has_pods(job: _Obj) -> bool:
    status = job.get("status") or {}
    return not job["spec"].get("suspend") or bool(status.get("active") or status.get("terminating"))


def preempted_by(record: AttemptRecord) -> str:
    """The preemptor in words: `job-urgent-09669 (Job urgent, queue training, priority 1000)`; "" without one."""
    who = record.preemptor
    if who is None:
        return record.preempted_by or ""
    place = f", queue {who.queue}" if who.queue else ""
    return f"{who.workload} ({who.kind or 'job'} {who.job or 'unknown'}{place}, priority {who.priority})"


def _timeout(workload: _Obj) -> str:
    """What Kueue's statistics say about the last PodsReady timeout; "" when it was of both kinds, or of none."""
    causes = {cause for reason, cause, _ in evictions(workload) if reason == "PodsReadyTimeout"}
    words = _TIMEOUT_WORDS.get(causes.pop(), "") if len(causes) == 1 else ""
    return f": {words}" if words else ""


def evictions(workload: _Obj | None) -> list[tuple[str, str, int]]:
    """`(reason, underlying cause, count)` of Kueue's own statistics."""
    stats = ((workload or {}).get("status") or {}).get("schedulingStats") or {}
    return [
        (str(e.get("reason", "")), str(e.get("underlyingCause") or ""), int(e.get("count") or 0))
        for e in stats.get("evictions") or ()
    ]


def shortages(workload: _Obj | None) -> list[Shortage]:
    """What a waiting Workload lacks, by flavor; empty when it does not wait or Kueue has not said."""
    found = condition(workload, "QuotaReserved") or {}
    return [] if found.get("status") == "True" else shortage.parse(str(found.get("message") or ""))


def _waiting(workload: _Obj, last: AttemptRecord | None, position: Position | None) -> Classified:
    found = condition(workload, "QuotaReserved") or {}
    reason = str(found.get("reason") or "Pending")
    words = _PENDING_WORDS.get(reason, f"waits ({reason})")
    gate = condition(workload, "BlockedOnPreemptionGates") or {}
    if gate.get("status") == "True":
        words = "waits: it may not preempt others yet, a gate is closed"
    said = [words]
    if last and last.ended_by == "Preempted" and last.preempted_by:
        said.append(f"was preempted by {preempted_by(last)}")
    again = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
    if again:
        said.append(f"Kueue looks at it again at {again}")
    said += _wanting(workload, position)
    return Classified(Phase.PREEMPTED if last else Phase.QUEUED, reason, "; ".join(said), _raw(workload))


def of_workload(workload: _Obj) -> Classified:
    """The same for a Workload of any owner, of whose job nothing is known."""
    if not is_true(workload, "QuotaReserved"):
        if workload.get("spec", {}).get("active") is False:
            return Classified(Phase.SUSPENDED, "Deactivated", f"is deactivated; {_reactivate(workload, 'Deactivated')}")
        waits = _waiting(workload, None, None)
        if not is_true(workload, "Evicted"):
            return waits
        why = str((condition(workload, "Evicted") or {}).get("reason") or "Evicted")
        words = _EVICTED_WORDS.get(why, f"was evicted ({why})")
        return Classified(Phase.PREEMPTED, waits.reason, f"{words}; {waits.message}")
    if is_true(workload, "Evicted"):
        why = str((condition(workload, "Evicted") or {}).get("reason") or "Evicted")
        return Classified(Phase.PREEMPTED, why, f"{_EVICTED_WORDS.get(why, f'was evicted ({why})')}; is being stopped")
    if not is_true(workload, "Admitted"):
        return _fenced(workload)
    return Classified(Phase.RUNNING, "Admitted", "is admitted")


def _fenced(workload: _Obj) -> Classified:
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    waiting = [check for check in checks if check.get("state") != "Ready"]
    text = "; ".join(f"{check['name']}: {check.get('message') or check.get('state')}" for check in waiting)
    return Classified(Phase.ADMITTED, "WaitingForChecks", f"has quota, waits for {text or 'its admission'}")


def _admitted(job: _Obj, last: AttemptRecord | None, pods: Sequence[_Obj]) -> Classified:
    restoring = bool(last and last.restored_from)
    wanted = int(job["spec"].get("parallelism") or 1)
    ready = int((job.get("status") or {}).get("ready") or 0)
    where = f" on {last.flavor}" if last and last.flavor else ""
    where += f" in cluster {last.cluster}" if last and last.cluster else ""
    seen = attempt_records.progress(job)
    now = seen if seen and last and seen.attempt == last.attempt else None
    if last and last.runs_since is not None:
        step = now.step if now else last.first_step
        saving = _saving(now, last.attempt)
        also = f"; {saving}" if saving else ""
        done = "no step seen yet" if last.first_step_at is None else f"{step} steps done"
        reason = "NoStepYet" if last.first_step_at is None else "Running"
        return Classified(Phase.RUNNING, reason, f"runs with {wanted} workers{where}, {done}{also}")
    if now and now.phase in ("running", "finished"):
        return Classified(Phase.RUNNING, "NoStepYet", f"runs with {wanted} workers{where}, no step seen yet")
    phase = Phase.RESTORING if restoring else Phase.STARTING
    trouble = pod_trouble(pods)
    if trouble:
        return Classified(phase, *trouble)
    up = f"{ready} of {wanted} workers are up{where}"
    if restoring and last:
        return Classified(phase, "Restoring", f"goes on from {last.restored_from}: {up}")
    if ready < wanted:
        return Classified(phase, "PodsStarting", up)
    return Classified(phase, "RanksStarting", f"{up}, their ranks have not started yet")


def pod_trouble(pods: Sequence[_Obj]) -> tuple[str, str] | None:
    """Why a pod does not start, if the kubelet or the scheduler says so."""
    for pod in pods:
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
            waiting = (container.get("state") or {}).get("waiting") or {}
            reason = str(waiting.get("reason") or "")
            if reason and reason not in ("PodInitializing", "ContainerCreating"):
                return reason, f"pod {name}, container {container['name']}: {_cause(container) or reason}"
        scheduled = condition(pod, "PodScheduled") or {}
        if scheduled.get("status") == "False":
            return str(scheduled.get("reason") or "Unschedulable"), f"pod {name}: {scheduled.get('message')}"
    return None


NO_IDMAP = "MOUNT_ATTR_IDMAP"
"""What runc and crun name where the file system of a volume cannot be mounted with mapped ids."""
_IDMAP_FIX = ": a pod with a user namespace cannot have this volume; a job that asks for privileges 'node' can"


def not_started(pod: _Obj) -> str:
    """Say which container of a pod that is over the runtime could not start, and why; "" if there is none."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if why := _start_error((container.get("state") or {}).get("terminated")):
            return f"container {container['name']}: {why}"
    return ""


def _cause(container: _Obj) -> str:
    """Why a container waits to be started. While the kubelet waits to try again, it says no more than that."""
    said = _start_error((container.get("lastState") or {}).get("terminated"))
    return said or _explained(str(container["state"]["waiting"].get("message") or ""))


def _start_error(ended: _Obj | None) -> str:
    failed = (ended or {}).get("reason") == "StartError"
    return _explained(str((ended or {}).get("message") or "")) if failed else ""


def _explained(said: str) -> str:
    return said + (_IDMAP_FIX if NO_IDMAP in said else "")
