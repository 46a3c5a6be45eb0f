"""What the controller reads from Jobs, Workloads and Pods. Pure; raises BadAnnotationError instead of guessing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from proxy.protocol import exit_codes, names
from proxy.protocol.decode import Unreadable
from proxy.protocol.messages import AttemptRecord, CheckpointRef, to_json

from ..contract import annotation_values, job_names, kinds
from ..contract import attempt_records as jobs
from ..kube import server_time
from ..kube.resources import Object, annotation, condition, is_true, label
from .errors import BadAnnotationError

T = TypeVar("T")
CONTROLLER_UID_LABEL = "batch.kubernetes.io/controller-uid"
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
"""On a pod until the Job controller has counted it."""
_OWNERS = {(kind.name, kind.group) for kind in kinds.KINDS}
_TERMINAL = ("Succeeded", "Failed")
NO_MEMORY = "out of memory"
"""How the launcher begins (`proxy.launcher.memory`)."""
_PREEMPTOR = re.compile(r"\(UID: ([^,)\s]+)(?:, JobUID: ([^,)\s]+))?")


# --- Job ----------------------------------------------------------------------------------------------------------
def managed(job: Object | None) -> bool:
    return label(job, job_names.LABEL_MANAGED) == "true" and not delegated(job)


def delegated(job: Object | None) -> bool:
    """Whether MultiKueue runs the Job in another cluster: here it is only a record of what happens there."""
    return ((job or {}).get("spec") or {}).get("managedBy") == job_names.MULTIKUEUE_CONTROLLER


def copied(obj: Object | None) -> bool:
    """Whether MultiKueue has copied the Job or Workload into this cluster: its attempts are numbered elsewhere."""
    return label(obj, job_names.MULTIKUEUE_ORIGIN_LABEL) is not None


def kept(job: Object) -> bool:
    """Whether a deletion of the Job waits until its records have been read."""
    return job_names.FINALIZER_RECORDS in (job["metadata"].get("finalizers") or ())


def going(job: Object) -> bool:
    """Whether the Job is being deleted and nothing more can be written on it."""
    return bool(job["metadata"].get("deletionTimestamp")) and not kept(job)


def suspended(job: Object) -> bool:
    return bool((job.get("spec") or {}).get("suspend"))


def never_started(job: Object) -> bool:
    """A Job as it was created, suspended: no start has ever changed its spec. Its version must guard what follows."""
    status = job.get("status") or {}
    untouched = job["metadata"].get("generation") == 1 and not status.get("startTime") and not status.get("active")
    return untouched and suspended(job)


def finished(job: Object) -> Mapping[str, Any] | None:
    """The Job's Complete or Failed condition once it is True."""
    for name in ("Complete", "Failed"):
        if is_true(job, name):
            return condition(job, name)
    return None


def failing(job: Object) -> bool:
    """Whether the Job controller has decided that the Job ends (a condition that precedes Complete and Failed)."""
    return any(is_true(job, name) for name in ("FailureTarget", "SuccessCriteriaMet", "Complete", "Failed"))


def hold(job: Object) -> str | None:
    """None: plain Kueue behaviour."""
    text = annotation(job, job_names.ANN_HOLD)
    return None if text == job_names.HOLD_OFF else text


def leaves(workload: Object) -> bool:
    """Whether Kueue is about to suspend the Job: for a deleted Workload too, which keeps its quota until then."""
    return is_true(workload, "Evicted") or "deletionTimestamp" in workload["metadata"]


def asked_at(workload: Object | None, seen_at: float) -> float:
    """Since when Kueue has wanted to suspend the Job, Unix seconds: by the Workload alone, which tenants cannot write.

    `seen_at` is when it was first seen: all that is known of a Workload that is gone without a trace.
    """
    times = [condition(workload, "Evicted")] if is_true(workload, "Evicted") else []
    deleted = ((workload or {}).get("metadata") or {}).get("deletionTimestamp")
    times += [{"lastTransitionTime": deleted}] if deleted else []
    try:
        return min((server_time.observed(item, seen_at) for item in times), default=seen_at)
    except (ValueError, OverflowError):  # the schema allows times that are none for us
        return seen_at


def held(job: Object, workload: Object | None) -> bool:
    """Whether Kueue's suspend of the Job is denied now, as far as the Job itself shows: our policy knows more."""
    waits = workload is None or leaves(workload)
    return waits and hold(job) == job_names.HOLD_ARMED and managed(job) and not suspended(job) and not failing(job)


def hold_deadline(job: Object) -> float | None:
    """Unix seconds. Raises BadAnnotationError."""
    return _readable(job, job_names.ANN_HOLD_DEADLINE, annotation_values.moment(job, job_names.ANN_HOLD_DEADLINE))


def _count(job: Object, name: str, default: int) -> int:
    found = _readable(job, name, annotation_values.whole(job, name, most=jobs.MAX_COUNT))
    return default if found is None else found


def _readable(job: Object, name: str, found: T | Unreadable) -> T:
    """Raises BadAnnotationError for what cannot be read."""
    if isinstance(found, Unreadable):
        raise BadAnnotationError(name, annotation(job, name) or "", found.why)
    return found


def attempt(job: Object) -> int:
    """Current attempt, 0 before the first admission. Raises BadAnnotationError.

    The history knows it too: no pod is called stale because somebody removed the annotation. Numbers only grow.
    """
    try:
        known = history(job)[-1].attempt
    except (BadAnnotationError, IndexError):
        return _count(job, job_names.ANN_ATTEMPT, 0)
    try:
        return max(known, _count(job, job_names.ANN_ATTEMPT, 0))
    except BadAnnotationError:
        return known


def parallelism(job: Object) -> int:
    """Pods that run now when none is missing."""
    return int((job.get("spec") or {}).get("parallelism", 1))


def workers_wanted(job: Object) -> int:
    """Raises BadAnnotationError."""
    return _count(job, job_names.ANN_WORKERS, parallelism(job))


def fewest_workers(job: Object) -> int:
    """Raises BadAnnotationError."""
    return _count(job, job_names.ANN_MIN_WORKERS, workers_wanted(job))


def world_size(job: Object, default: int) -> int:
    """Raises BadAnnotationError."""
    return _count(job, job_names.ANN_WORLD_SIZE, default)


def budget(job: Object, maximum: float) -> float:
    """Seconds that Kueue may be held back for a checkpoint: the value of the job, if it can be read, but not more than
    `maximum`."""
    found = jobs.budget(job)
    return float(maximum if found is None or isinstance(found, Unreadable) else min(found, maximum))


def checkpoint(job: Object) -> CheckpointRef | None:
    """The committed checkpoint. Raises BadAnnotationError."""
    return _readable(job, names.ANN_CHECKPOINT, annotation_values.message(job, names.ANN_CHECKPOINT, CheckpointRef))


def of_store(job: Object, ref: CheckpointRef) -> bool:
    """Whether the checkpoint is in the Job's own store: pods read nowhere else, whatever the annotation names."""
    store = annotation(job, job_names.ANN_STORE)
    return store is None or ref.url.rstrip("/") == store.rstrip("/")


def checkpoints(job: Object) -> list[CheckpointRef]:
    """The newest that were committed, oldest first; empty if they cannot be read.

    Then there is no older checkpoint to return to, but a new one can still be committed.
    """
    return jobs.checkpoints(job)


def history(job: Object) -> list[AttemptRecord]:
    """Oldest first. Raises BadAnnotationError."""
    return _readable(job, job_names.ANN_HISTORY, annotation_values.messages(job, job_names.ANN_HISTORY, AttemptRecord))


# --- Pods ---------------------------------------------------------------------------------------------------------
def can_write(pod: Object) -> bool:
    """Whether a process of the pod may still be alive. A node that is silent leaves its pods here on purpose."""
    return (pod.get("status") or {}).get("phase") not in _TERMINAL


def ranks_ended(job: Object, pods: Iterable[Object]) -> bool:
    """Whether every rank of the Job has ended with 0: before that no pod ends with 0, whatever its attempt.

    Kubernetes never makes the pod of a complete index again, so those that are left cannot train any more. A pod that
    is as old as the Job, or older, may be one of a Job of this name that was deleted.
    """
    if (job.get("status") or {}).get("succeeded"):
        return True
    return any(phase(pod) == "Succeeded" and created(pod) > created(job) for pod in pods)


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def end_of(pod: Object) -> str:
    """How the first of the pod's containers that was not asked to end has ended, for people; "" if there is none.

    The launcher leaves its message in the container's termination message. If the kernel kills the whole container
    (cgroup v2), no process is left to do so, and the node reports the end.
    """
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated") or {}
        code = ended.get("exitCode", 0)
        text = str(ended.get("message") or "").strip()
        row = exit_codes.of(code)
        if not text and not row.reads:
            continue
        if ended.get("reason") == "OOMKilled" and NO_MEMORY not in text:
            limit = ((status.get("resources") or {}).get("limits") or {}).get("memory")
            text = f"{NO_MEMORY}: the kernel killed it" + (f", the limit of the container is {limit}" if limit else "")
        return text or f"it ended with code {code}: {row.reads}"
    return ""


def ends_of(pods: Iterable[Object]) -> list[str]:
    """How those of the pods have ended that were not asked to, one killed for memory first."""
    return sorted(filter(None, map(end_of, pods)), key=lambda text: NO_MEMORY not in text)


def pod_index(pod: Object) -> int | None:
    return annotation_values.readable(annotation_values.whole(pod, INDEX_ANNOTATION), None)


def gone_at(pod: Object) -> float | None:
    """Unix seconds at which the kubelet kills a pod that is being deleted. None: it is not, or it has ended."""
    text = pod["metadata"].get("deletionTimestamp")
    return server_time.parse(str(text)) if text and can_write(pod) else None


def created(obj: Object) -> float:
    return server_time.parse(str(obj["metadata"]["creationTimestamp"]))


def of_attempt(pods: Iterable[Object], number: int) -> list[Object]:
    return [p for p in pods if annotation(p, job_names.ANN_ATTEMPT) == str(number)]


def roster(job: Object, number: int) -> frozenset[str] | None:
    """UIDs (their first characters) of the pods that attempt `number` took its first step with; None: not known."""
    found = annotation_values.message(job, job_names.ANN_PODS, jobs.Roster)
    if found is None or isinstance(found, Unreadable) or found.attempt != number:
        return None
    return frozenset(found.uids) or None


def roster_of(pods: Iterable[Object], number: int, count: int) -> str | None:
    """The annotation for `roster`, None unless each of the `count` indexes of the attempt has exactly one pod."""
    own = [pod for pod in of_attempt(pods, number) if phase(pod) != "Failed"]
    if len(own) != count or len({pod_index(pod) for pod in own}) != count:
        return None
    return to_json(jobs.Roster(number, [short_uid(pod) for pod in own]))


def short_uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])[:8]


def our_template(owner: Object) -> bool:
    """Whether pods made from the `template` of this Job or podset carry our label."""
    template = (owner.get("spec") or owner).get("template") or {}
    return label({"metadata": template.get("metadata") or {}}, job_names.LABEL_MANAGED) == "true"


# --- Workload -----------------------------------------------------------------------------------------------------
def check(workload: Object, name: str) -> Mapping[str, Any] | None:
    """Our admission check's state in the Workload."""
    for item in (workload.get("status") or {}).get("admissionChecks") or ():
        if item.get("name") == name:
            found: Mapping[str, Any] = item
            return found
    return None


def has_our_pods(workload: Object) -> bool:
    """Whether pods of a podset carry our label, which the label of the Workload's owner, if it has one yet, may not."""
    return any(map(our_template, (workload.get("spec") or {}).get("podSets") or ()))


def reservation(workload: Object) -> str | None:
    """Identity of the quota reservation, None without one."""
    if not is_true(workload, "QuotaReserved") or not (workload.get("status") or {}).get("admission"):
        return None
    reserved = condition(workload, "QuotaReserved") or {}
    return f"{workload['metadata']['uid']}/{reserved.get('lastTransitionTime', '')}"


def reserved_at(workload: Object) -> float:
    """Unix seconds of the quota reservation (whole ones), 0 without one."""
    return server_time.transition(condition(workload, "QuotaReserved")) or 0.0


@dataclass(frozen=True)
class Admission:
    """Where a Workload has quota. A training Job has one podset."""

    cluster_queue: str
    podset: str
    count: int
    flavors: Mapping[str, str]
    """Resource -> ResourceFlavor."""
    usage: Mapping[str, str]
    """Resource -> quantity, all pods together."""

    @property
    def flavor(self) -> str:
        """The flavor to show: the CPU's, else the first."""
        return self.flavors.get("cpu") or next(iter(self.flavors.values()), "")


def admission(workload: Object) -> Admission | None:
    """The current reservation, None without one. `count` falls back to the podset's own."""
    if reservation(workload) is None:
        return None
    given = workload["status"]["admission"]
    assignments: Sequence[Mapping[str, Any]] = given.get("podSetAssignments") or [{}]
    first = assignments[0]
    podsets = (workload.get("spec") or {}).get("podSets") or [{}]
    return Admission(
        cluster_queue=str(given.get("clusterQueue", "")),
        podset=str(first.get("name") or podsets[0].get("name", "main")),
        count=int(first.get("count") or podsets[0].get("count", 1)),
        flavors={str(k): str(v) for k, v in (first.get("flavors") or {}).items()},
        usage={str(k): str(v) for k, v in (first.get("resourceUsage") or {}).items()},
    )


def owner_job(workload: Object) -> str | None:
    """The name of the Workload's job (`kinds.job_key`), None if its owner is of another kind."""
    for owner in workload["metadata"].get("ownerReferences") or ():
        if (owner.get("kind"), str(owner.get("apiVersion", "")).partition("/")[0]) in _OWNERS:
            return kinds.owner_key(str(owner["kind"]), str(owner["name"]))
    return None


def preemptor_uids(workload: Object) -> list[str]:
    """UIDs (Workload's, then its Job's) of who preempted this Workload last, from Kueue's message.

    Kueue keeps the message ("Previously: ...") when the Workload has quota again.
    """
    for name in ("Evicted", "Preempted"):
        found = condition(workload, name) or {}
        match = _PREEMPTOR.search(str(found.get("message", "")))
        if match and (name == "Evicted" or found.get("status") == "True"):
            return [uid for uid in match.groups() if uid]
    return []
