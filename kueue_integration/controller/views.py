"""What the controller reads from Jobs, Workloads and Pods. Pure; raises BadAnnotationError instead of guessing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord, CheckpointRef, MessageError, from_json, list_from_json

from .. import kinds
from ..resources import Object, annotation, condition, is_true, label
from . import clock
from .errors import BadAnnotationError

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
    return label(job, names.LABEL_MANAGED) == "true" and not delegated(job)


def delegated(job: Object | None) -> bool:
    """Whether MultiKueue runs the Job in another cluster: here it is only a record of what happens there."""
    return ((job or {}).get("spec") or {}).get("managedBy") == names.MULTIKUEUE_CONTROLLER


def copied(obj: Object | None) -> bool:
    """Whether MultiKueue has copied the Job or Workload into this cluster: its attempts are numbered elsewhere."""
    return label(obj, names.MULTIKUEUE_ORIGIN_LABEL) is not None


def kept(job: Object) -> bool:
    """Whether a deletion of the Job waits until its records have been read."""
    return names.FINALIZER_RECORDS in (job["metadata"].get("finalizers") or ())


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
    text = annotation(job, names.ANN_HOLD)
    return None if text == names.HOLD_OFF else text


def leaves(workload: Object) -> bool:
    """Whether Kueue is about to suspend the Job: for a deleted Workload too, which keeps its quota until then."""
    return is_true(workload, "Evicted") or "deletionTimestamp" in workload["metadata"]


def hold_deadline(job: Object) -> float | None:
    """Unix seconds. Raises BadAnnotationError."""
    text = annotation(job, names.ANN_HOLD_DEADLINE)
    if text is None:
        return None
    try:
        return clock.parse(text)
    except ValueError as error:
        raise BadAnnotationError(names.ANN_HOLD_DEADLINE, text, f"not an RFC 3339 time ({error})") from None


def _count(job: Object, name: str, default: int) -> int:
    text = annotation(job, name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise BadAnnotationError(name, text, "not a whole number")
    return int(text)


def attempt(job: Object) -> int:
    """Current attempt, 0 before the first admission. Raises BadAnnotationError.

    The history knows it too: no pod is called stale because somebody removed the annotation. Numbers only grow.
    """
    try:
        known = history(job)[-1].attempt
    except (BadAnnotationError, IndexError):
        return _count(job, names.ANN_ATTEMPT, 0)
    try:
        return max(known, _count(job, names.ANN_ATTEMPT, 0))
    except BadAnnotationError:
        return known


def parallelism(job: Object) -> int:
    """Pods that run now when none is missing."""
    return int((job.get("spec") or {}).get("parallelism", 1))


def workers_wanted(job: Object) -> int:
    """Raises BadAnnotationError."""
    return _count(job, names.ANN_WORKERS, parallelism(job))


def fewest_workers(job: Object) -> int:
    """Raises BadAnnotationError."""
    return _count(job, names.ANN_MIN_WORKERS, workers_wanted(job))


def world_size(job: Object, default: int) -> int:
    """Raises BadAnnotationError."""
    return _count(job, names.ANN_WORLD_SIZE, default)


def budget(job: Object, maximum: float) -> float:
    """Seconds that Kueue may be held back for a checkpoint. Raises BadAnnotationError."""
    return min(float(_count(job, names.ANN_BUDGET, int(maximum))), float(maximum))


def checkpoint(job: Object) -> CheckpointRef | None:
    """The committed checkpoint. Raises BadAnnotationError."""
    text = annotation(job, names.ANN_CHECKPOINT)
    if not text:
        return None
    try:
        return from_json(CheckpointRef, text)
    except MessageError as error:
        raise BadAnnotationError(names.ANN_CHECKPOINT, text, str(error)) from None


def checkpoints(job: Object) -> list[CheckpointRef]:
    """Checkpoints after which their attempt went on, oldest first. Raises BadAnnotationError."""
    text = annotation(job, names.ANN_CHECKPOINTS)
    try:
        return list_from_json(CheckpointRef, text) if text else []
    except MessageError as error:
        raise BadAnnotationError(names.ANN_CHECKPOINTS, text or "", str(error)) from None


def history(job: Object) -> list[AttemptRecord]:
    """Oldest first. Raises BadAnnotationError."""
    text = annotation(job, names.ANN_HISTORY)
    if not text:
        return []
    try:
        return list_from_json(AttemptRecord, text)
    except MessageError as error:
        raise BadAnnotationError(names.ANN_HISTORY, text, str(error)) from None


# --- Pods ---------------------------------------------------------------------------------------------------------
def can_write(pod: Object) -> bool:
    """Whether a process of the pod may still be alive. A node that is silent leaves its pods here on purpose."""
    return (pod.get("status") or {}).get("phase") not in _TERMINAL


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def end_of(pod: Object) -> str:
    """How the first of the pod's containers that was not asked to end has ended, for people; "" if there is none.

    The launcher leaves its words in the container's termination message. Where the kernel kills the whole container
    (cgroup v2) nobody of it is left to say anything, and the node does.
    """
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated") or {}
        code = ended.get("exitCode", 0)
        text = str(ended.get("message") or "").strip()
        if code == 0 or (code == names.EXIT_PREEMPTED and not text):
            continue
        if ended.get("reason") == "OOMKilled" and NO_MEMORY not in text:
            limit = ((status.get("resources") or {}).get("limits") or {}).get("memory")
            text = f"{NO_MEMORY}: the kernel killed it" + (f", the limit of the container is {limit}" if limit else "")
        return text or f"it ended with code {code}"
    return ""


def ends_of(pods: Iterable[Object]) -> list[str]:
    """How those of the pods have ended that were not asked to, one killed for memory first."""
    return sorted(filter(None, map(end_of, pods)), key=lambda text: NO_MEMORY not in text)


def pod_index(pod: Object) -> int | None:
    text = annotation(pod, INDEX_ANNOTATION)
    return int(text) if text is not None and text.isdigit() else None


def gone_at(pod: Object) -> float | None:
    """Unix seconds at which the kubelet kills a pod that is being deleted. None: it is not, or it has ended."""
    text = pod["metadata"].get("deletionTimestamp")
    return clock.parse(str(text)) if text and can_write(pod) else None


def created(obj: Object) -> float:
    return clock.parse(str(obj["metadata"]["creationTimestamp"]))


def of_attempt(pods: Iterable[Object], number: int) -> list[Object]:
    return [p for p in pods if annotation(p, names.ANN_ATTEMPT) == str(number)]


def roster(job: Object, number: int) -> frozenset[str] | None:
    """UIDs (their first characters) of the pods that attempt `number` took its first step with; None: not known."""
    try:
        data = json.loads(annotation(job, names.ANN_PODS) or "{}")
        known = data["attempt"] == number and frozenset(map(str, data["uids"]))
    except (ValueError, KeyError, TypeError):
        return None
    return known or None


def roster_of(pods: Iterable[Object], number: int, count: int) -> str | None:
    """The annotation for `roster`, None unless each of the `count` indexes of the attempt has exactly one pod."""
    own = [pod for pod in of_attempt(pods, number) if phase(pod) != "Failed"]
    if len(own) != count or len({pod_index(pod) for pod in own}) != count:
        return None
    return json.dumps({"attempt": number, "uids": [short_uid(pod) for pod in own]}, separators=(",", ":"))


def short_uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])[:8]


def our_template(owner: Object) -> bool:
    """Whether pods made from the `template` of this Job or podset carry our label."""
    template = (owner.get("spec") or owner).get("template") or {}
    return label({"metadata": template.get("metadata") or {}}, names.LABEL_MANAGED) == "true"


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
    return clock.transition(condition(workload, "QuotaReserved")) or 0.0


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
    """What the job of the Workload is called (`kinds.job_key`), None when its owner is something else."""
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
