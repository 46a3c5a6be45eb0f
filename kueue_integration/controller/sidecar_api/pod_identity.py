"""For which Job may a pod speak? `tokens` tells which pod it is; its owner, and who manages it, tell the Job."""

from __future__ import annotations

from collections.abc import Sequence

from ...contract import kinds
from ...kube.client import Kube
from ...kube.resources import JOB, JOBSET, TRAINJOB, Kind, Object, label, selector
from ..cache import World
from ..errors import RefusedError
from ..snapshot import Pod
from .tokens import Speaker

CONTROLLER_UID_LABEL = "batch.kubernetes.io/controller-uid"


class Identities:
    """Whether a pod is one of a Job. Its methods block."""

    def __init__(self, kube: Kube, world: World) -> None:
        self._kube = kube
        self._world = world

    def pod(self, speaker: Speaker, namespace: str, job: Object) -> Object:
        """The speaker's pod, which is one of `job`. Raises RefusedError 403, KubeError."""
        key = kinds.job_key(job)
        found = None
        if speaker.namespace == namespace:
            found = self._pod_of(self._world.pods_of(namespace, key), speaker, job)
            if found is None:  # our copy may not have a pod that has just started
                found = self._pod_of(self._kube.list_pods(namespace, selector(kinds.pod_labels(key))), speaker, job)
        if found is not None:
            return found
        raise not_of(speaker, namespace, key)

    def known(self, speaker: Speaker, job: Object) -> Object | None:
        """The same by our copy of the pods alone; None where only the API server can tell. Does not block."""
        if not kinds.is_job(job):
            return None
        return self._pod_of(self._world.pods_of(speaker.namespace, kinds.job_key(job)), speaker, job)

    def _pod_of(self, pods: Sequence[Object], speaker: Speaker, job: Object) -> Object | None:
        """The speaker's pod if the Job owns it. Labels are not enough: a pod's creator chooses them."""
        for pod in pods:
            meta = pod["metadata"]
            if (meta["name"], meta["uid"]) == (speaker.pod, speaker.uid) and self._owns(job, pod):
                return pod
        return None

    def _owns(self, job: Object, pod: Object) -> bool:
        if kinds.is_job(job):
            return _controlled(job, pod)
        # The pods of a JobSet belong to a Job that belongs to it, those of a TrainJob to a Job of its JobSet.
        namespace = str(pod["metadata"]["namespace"])
        child = self._controller(pod, JOB, namespace)
        parent = child
        if parent is not None and job["kind"] == TRAINJOB.name:
            parent = self._controller(parent, JOBSET, namespace)
        if child is None or parent is None or [o.get("uid") for o in _controllers(parent)] != [job["metadata"]["uid"]]:
            return False
        return _controlled(child, pod)

    def _controller(self, obj: Object, kind: Kind, namespace: str) -> Object | None:
        """The one of `kind` that controls `obj`, by name and UID."""
        for owner in _controllers(obj):
            if owner.get("kind") == kind.name:
                found = self._kube.find(kind, namespace, owner["name"])
                if found is not None and found["metadata"]["uid"] == owner.get("uid"):
                    return found
        return None


def not_of(speaker: Speaker, namespace: str, key: str) -> RefusedError:
    return RefusedError(403, f"pod {speaker.namespace}/{speaker.pod} is not a pod of Job {namespace}/{key}")


def _controlled(job: Object, pod: Object) -> bool:
    """Whether the Job controls the pod and the Job controller manages it.

    Labels and a plain owner reference are not enough: a pod's creator chooses them. The reference must be the
    controlling one, and the Job controller's own marks must name this Job by its UID. The Job controller counts a pod
    that has all of these, or removes it as surplus.
    """
    uid = job["metadata"]["uid"]
    owners = _controllers(pod)
    ours = [o for o in owners if o.get("kind") == "Job" and str(o.get("apiVersion", "")).startswith("batch/")]
    index, completions = Pod.parse(pod).index, int((job.get("spec") or {}).get("completions") or 1)
    return (
        [owner.get("uid") for owner in ours] == [uid]
        and label(pod, CONTROLLER_UID_LABEL) == uid
        and index is not None
        and index < completions
    )


def _controllers(obj: Object) -> list[Object]:
    return [owner for owner in obj["metadata"].get("ownerReferences") or () if owner.get("controller")]


def require_attempt(pod: Object, attempt: int) -> None:
    """Raises RefusedError 403: a pod speaks for the attempt that it was started for, and for no other."""
    own = Pod.parse(pod).attempt_word
    if own != str(attempt):
        raise RefusedError(403, f"pod {pod['metadata']['name']} was started for attempt {own}, not for {attempt}")


def require_leader(pod: Object) -> None:
    """Raises RefusedError 403."""
    if Pod.parse(pod).index != 0:
        raise RefusedError(403, f"pod {pod['metadata']['name']} is not the leader (completion index 0)")
