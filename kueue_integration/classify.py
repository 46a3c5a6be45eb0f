"""`classify`: one phase, one reason and one sentence out of a Job and its Workload. Pure.

Knows the condition reasons of Kueue 0.15 to 0.20: an unknown one is passed on with Kueue's own message, never refused.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord

from . import records
from .resources import annotation, condition, is_true

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
    """`reason` is a CamelCase word of Kubernetes or Kueue (or ours), `message` a sentence for people."""

    phase: Phase
    reason: str
    message: str


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
_REACTIVATE = "set spec.active of the Workload to go on"
_BY_A_CHECK = ("AdmissionCheck", "DeactivatedDueToAdmissionCheck")
_DUE = re.compile(r" due to ([^;]+)")
_PREEMPTOR = re.compile(r"workload \(UID: ([^,)\s]+)(?:, JobUID: ([^,)\s]*))?")


def preemptor_uids(workload: _Obj | None) -> tuple[str, str]:
    """`(workload uid, job uid)` of who preempted this Workload, from Kueue's message; "" for what it does not say."""
    for kind in ("Preempted", "Evicted"):
        found = _PREEMPTOR.search(str((condition(workload, kind) or {}).get("message", "")))
        if found:
            job = found.group(2) or ""
            return found.group(1), "" if job == "UNKNOWN" else job
    return "", ""


def classify(workload: _Obj | None, job: _Obj | None, pods: Sequence[_Obj] = ()) -> Classified:
    """Phase of a job. `pods` only make the sentence better: why a pod does not start."""
    if job is None:
        return Classified(Phase.DELETED, "NotFound", "the Job does not exist any more")
    ended = _ended(job)
    if ended:
        return ended
    if job["metadata"].get("deletionTimestamp"):
        return Classified(Phase.DELETED, "Deleting", "the Job is being deleted")
    if workload is None:
        return Classified(Phase.SUBMITTED, "NoWorkload", "Kueue has not made a Workload for the Job yet")
    past = records.history(job)
    if is_true(workload, "Evicted"):
        return _evicted(workload, job, past)
    if workload.get("spec", {}).get("active") is False:
        return Classified(Phase.SUSPENDED, "Deactivated", f"is deactivated; {_REACTIVATE}")
    if not is_true(workload, "QuotaReserved"):
        return _waiting(workload, Phase.PREEMPTED if past else Phase.QUEUED)
    if not is_true(workload, "Admitted"):
        return _fenced(workload)
    return _admitted(job, past, pods)


def _ended(job: _Obj) -> Classified | None:
    if is_true(job, "Complete"):
        return Classified(Phase.SUCCEEDED, "Complete", "finished")
    if is_true(job, "Failed"):
        found = condition(job, "Failed") or {}
        return Classified(Phase.FAILED, str(found.get("reason") or "Failed"), str(found.get("message") or "failed"))
    return None


def _evicted(workload: _Obj, job: _Obj, past: Sequence[AttemptRecord]) -> Classified:
    why = condition(workload, "Evicted") or {}
    reason = str(why.get("reason") or "Evicted")
    words = _EVICTED_WORDS.get(reason, f"was evicted ({reason})")
    kueues = str(why.get("message") or "")
    last = past[-1] if past else None
    if last and last.preempted_by:
        due = _DUE.search(kueues)
        words += f" by {last.preempted_by}" + (f" ({due.group(1)})" if due else "")
    elif kueues and (reason not in _EVICTED_WORDS or reason in _BY_A_CHECK):
        words += f": {kueues}"
    saved = records.checkpoint(job)
    attempt = records.integer(job, names.ANN_ATTEMPT)
    if saved is not None and attempt and saved.attempt == attempt:
        state, done = f"checkpoint at step {saved.step} is committed", True
    else:
        state, done = "no checkpoint of this attempt yet", annotation(job, names.ANN_HOLD) == names.HOLD_RELEASED
    if last and last.note:
        state = last.note
    if not done and _has_pods(job):
        seen = records.progress(job)
        doing = _CHECKPOINT_WORDS.get(seen.phase if seen and seen.attempt == attempt else "", "writes a checkpoint")
        return Classified(Phase.CHECKPOINTING, reason, f"{words}; {doing}")
    if workload.get("spec", {}).get("active") is False:
        return Classified(Phase.SUSPENDED, reason, f"{words}; {state}; {_REACTIVATE}")
    return Classified(Phase.PREEMPTED, reason, f"{words}; {state}; {_goes_on(workload, reason)}")


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


def _waiting(workload: _Obj, phase: Phase) -> Classified:
    found = condition(workload, "QuotaReserved") or {}
    reason = str(found.get("reason") or "Pending")
    words = _PENDING_WORDS.get(reason, f"waits ({reason})")
    message = str(found.get("message") or "")
    return Classified(phase, reason, f"{words}: {message}" if message else words)


def _fenced(workload: _Obj) -> Classified:
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    waiting = [check for check in checks if check.get("state") != "Ready"]
    text = "; ".join(f"{check['name']}: {check.get('message') or check.get('state')}" for check in waiting)
    return Classified(Phase.ADMITTED, "WaitingForChecks", f"has quota, waits for {text or 'its admission'}")


def _admitted(job: _Obj, past: Sequence[AttemptRecord], pods: Sequence[_Obj]) -> Classified:
    last = past[-1] if past else None
    restoring = bool(last and last.restored_from)
    wanted = int(job["spec"].get("parallelism") or 1)
    ready = int((job.get("status") or {}).get("ready") or 0)
    where = f" on {last.flavor}" if last and last.flavor else ""
    seen = records.progress(job)
    now = seen if seen and last and seen.attempt == last.attempt else None
    if last and last.first_step_at is not None:
        step = now.step if now else last.first_step
        return Classified(Phase.RUNNING, "Running", f"runs with {wanted} workers{where}, {step} steps done")
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
                return reason, f"pod {name}, container {container['name']}: {waiting.get('message') or reason}"
        scheduled = condition(pod, "PodScheduled") or {}
        if scheduled.get("status") == "False":
            return str(scheduled.get("reason") or "Unschedulable"), f"pod {name}: {scheduled.get('message')}"
    return None
