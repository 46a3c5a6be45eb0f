"""Questions about one Job, Workload or pod that its labels, spec and status answer. Pure.

`snapshot` asks them once per look; whoever holds a raw object, such as an informer, asks what it needs. No annotation
is read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from singularity_proxy.protocol import decode, exit_codes, user_namespace
from singularity_proxy.protocol.messages import LAST_WORDS_BYTES, LastWords

from ..contract import job_names, kinds
from ..kube import devices, server_time
from ..kube.resources import TRAINJOB, condition, is_true, label
from ..kube.resources import finished as finished

_OWNERS = {(kind.name, kind.group) for kind in kinds.KINDS}
_TERMINAL = ("Succeeded", "Failed")
_PREEMPTOR = re.compile(r"workload \(UID: ([^,)\s]+)(?:, JobUID: ([^,)\s]+))?")
_NO_JOB = "UNKNOWN"
"""Kueue's word for a JobUID that it does not know."""


# --- Job ----------------------------------------------------------------------------------------------------------
def managed(job: Mapping[str, Any] | None) -> bool:
    return label(job, job_names.LABEL_MANAGED) == "true" and not delegated(job)


def delegated(job: Mapping[str, Any] | None) -> bool:
    """Whether MultiKueue runs the Job in another cluster: here it is only a record of what happens there."""
    return ((job or {}).get("spec") or {}).get("managedBy") == job_names.MULTIKUEUE_CONTROLLER


def copied(obj: Mapping[str, Any] | None) -> bool:
    """Whether MultiKueue has copied the Job or Workload into this cluster: its attempts are numbered elsewhere."""
    return label(obj, job_names.MULTIKUEUE_ORIGIN_LABEL) is not None


def kept(job: Mapping[str, Any]) -> bool:
    """Whether a deletion of the Job waits until its records have been read."""
    return job_names.FINALIZER_RECORDS in (job["metadata"].get("finalizers") or ())


def suspended(job: Mapping[str, Any]) -> bool:
    return bool((job.get("spec") or {}).get("suspend"))


def never_started(job: Mapping[str, Any]) -> bool:
    """A Job as it was created, suspended: no start has ever changed its spec. Its version must guard what follows."""
    status = job.get("status") or {}
    untouched = job["metadata"].get("generation") == 1 and not status.get("startTime") and not status.get("active")
    return untouched and suspended(job)


def failing(job: Mapping[str, Any]) -> bool:
    """Whether the Job controller has decided that the Job ends (a condition that precedes Complete and Failed)."""
    return any(is_true(job, name) for name in ("FailureTarget", "SuccessCriteriaMet", "Complete", "Failed"))


def leaves(workload: Mapping[str, Any]) -> bool:
    """Whether Kueue is about to suspend the Job: for a deleted Workload too, which keeps its quota until then."""
    return is_true(workload, "Evicted") or "deletionTimestamp" in workload["metadata"]


def parallelism(job: Mapping[str, Any]) -> int:
    """Pods that run now when none is missing."""
    return int((job.get("spec") or {}).get("parallelism", 1))


# --- Pods ---------------------------------------------------------------------------------------------------------
def can_write(pod: Mapping[str, Any]) -> bool:
    """Whether a process of the pod may still be alive. A node that is silent leaves its pods here on purpose."""
    return (pod.get("status") or {}).get("phase") not in _TERMINAL


def phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def end_of(pod: Mapping[str, Any]) -> LastWords | None:
    """How the first of the pod's containers that was not asked to end has ended; None if there is none.

    The launcher leaves its message in the container's termination message. If the kernel kills the whole container
    (cgroup v2), no process is left to do so, and the node reports the end. A message that is none of the launcher's is
    text without a cause.
    """
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated") or {}
        code = ended.get("exitCode", 0)
        text = str(ended.get("message") or "").strip()
        row = exit_codes.of(code)
        if not text and not row.reads:
            continue
        said = decode.message(LastWords, text, LAST_WORDS_BYTES)
        found = LastWords(text) if isinstance(said, decode.Unreadable) else said
        if ended.get("reason") == "OOMKilled" and found.cause != "memory":
            limit = ((status.get("resources") or {}).get("limits") or {}).get("memory")
            more = f", the limit of the container is {limit}" if limit else ""
            return LastWords(f"out of memory: the kernel killed it{more}", "memory")
        return replace(found, text=found.text.strip() or f"it ended with code {code}: {row.reads}")
    return None


def gone_at(pod: Mapping[str, Any]) -> float | None:
    """Unix seconds at which the kubelet kills a pod that is being deleted. None: it is not, or it has ended."""
    text = pod["metadata"].get("deletionTimestamp")
    return server_time.parse(str(text)) if text and can_write(pod) else None


def created(obj: Mapping[str, Any]) -> float:
    return server_time.parse(str(obj["metadata"]["creationTimestamp"]))


def privileges(job: Mapping[str, Any], workload: Mapping[str, Any] | None = None) -> str:
    """Say where the capabilities of the Job's pods count; "" where its training container has none, or is not seen.

    `workload`: its podsets have the whole pod template of a TrainJob, which itself says only what its runtime does not.
    """
    train = kinds.CONTAINER_NODE if job.get("kind") == TRAINJOB.name else job_names.CONTAINER_TRAIN
    for owner in (job.get("spec") or {}, *((((workload or {}).get("spec")) or {}).get("podSets") or ())):
        pod = (owner.get("template") or {}).get("spec") or {}
        trains = [c for c in pod.get("containers") or () if c.get("name") == train]
        if any(((c.get("securityContext") or {}).get("capabilities") or {}).get("add") for c in trains):
            return user_namespace.USER_NAMESPACE if pod.get("hostUsers") is False else user_namespace.NODE
    return ""


def rights(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `privileges` reads of a container, for copies that keep little; a name of any length is none."""
    added = ((container.get("securityContext") or {}).get("capabilities") or {}).get("add")
    return {"securityContext": {"capabilities": {"add": [str(added[0])[:64]]}}} if added else {}


def our_template(owner: Mapping[str, Any]) -> bool:
    """Whether pods made from the `template` of this Job or podset carry our label."""
    template = (owner.get("spec") or owner).get("template") or {}
    return label({"metadata": template.get("metadata") or {}}, job_names.LABEL_MANAGED) == "true"


# --- Workload -----------------------------------------------------------------------------------------------------
def check(workload: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Our admission check's state in the Workload."""
    for item in (workload.get("status") or {}).get("admissionChecks") or ():
        if item.get("name") == name:
            found: Mapping[str, Any] = item
            return found
    return None


def has_our_pods(workload: Mapping[str, Any]) -> bool:
    """Whether pods of a podset carry our label, which the label of the Workload's owner, if it has one yet, may not."""
    return any(map(our_template, (workload.get("spec") or {}).get("podSets") or ()))


def reservation(workload: Mapping[str, Any]) -> str | None:
    """Identity of the quota reservation, None without one."""
    if not is_true(workload, "QuotaReserved") or not (workload.get("status") or {}).get("admission"):
        return None
    reserved = condition(workload, "QuotaReserved") or {}
    return f"{workload['metadata']['uid']}/{reserved.get('lastTransitionTime', '')}"


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
        """The flavor to show: its devices', else the CPU's."""
        return devices.flavor(self.flavors)


def admission(workload: Mapping[str, Any]) -> Admission | None:
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


def owner_job(workload: Mapping[str, Any]) -> str | None:
    """The name of the Workload's job (`kinds.job_key`), None if its owner is of another kind."""
    for owner in workload["metadata"].get("ownerReferences") or ():
        if (owner.get("kind"), str(owner.get("apiVersion", "")).partition("/")[0]) in _OWNERS:
            return kinds.owner_key(str(owner["kind"]), str(owner["name"]))
    return None


def preemptor_uids(workload: Mapping[str, Any]) -> list[str]:
    """UIDs (Workload's, then its Job's) of who preempted this Workload last, from Kueue's message.

    Kueue keeps the message ("Previously: ...") when the Workload has quota again.
    """
    for name in ("Evicted", "Preempted"):
        found = condition(workload, name) or {}
        match = _PREEMPTOR.search(str(found.get("message", "")))
        if match and (name == "Evicted" or found.get("status") == "True"):
            return [uid for uid in match.groups() if uid and uid != _NO_JOB]
    return []
