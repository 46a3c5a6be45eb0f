"""Which pod is it that talks to us? TokenReview says which, the pod's owner says for which Job it may speak."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.protocol import names

from .. import kinds
from ..k8s import Kube
from ..resources import JOB, JOBSET, TRAINJOB, Kind, Object, annotation, label, selector
from . import views
from .errors import RefusedError
from .world import World

POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
CACHE_S = 60.0
CACHE_MAX = 10_000


@dataclass(frozen=True)
class Speaker:
    """The pod that a token was made for."""

    namespace: str
    pod: str
    uid: str


class Identities:
    """Thread-safe. A reviewed token is believed for a minute: pods report once a second."""

    def __init__(self, kube: Kube, world: World) -> None:
        self._kube = kube
        self._world = world
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[float, Speaker]] = {}

    def speaker(self, token: str) -> Speaker:
        """Raises RefusedError 401, KubeError."""
        digest = hashlib.sha256(token.encode()).digest()
        now = time.monotonic()
        with self._lock:
            found = self._known.get(digest)
        if found is not None and found[0] > now:
            return found[1]
        speaker = self._review(token)
        with self._lock:
            if len(self._known) >= CACHE_MAX:
                self._known = {key: value for key, value in self._known.items() if value[0] > now}
            if len(self._known) < CACHE_MAX:
                self._known[digest] = (now + CACHE_S, speaker)
        return speaker

    def _review(self, token: str) -> Speaker:
        status = self._kube.review_token(token, [names.TOKEN_AUDIENCE])
        if not status.get("authenticated") or names.TOKEN_AUDIENCE not in (status.get("audiences") or ()):
            raise RefusedError(401, f"the bearer token is not valid for audience {names.TOKEN_AUDIENCE}")
        user = status.get("user") or {}
        extra = user.get("extra") or {}
        parts = str(user.get("username", "")).split(":")
        pod, uid = (extra.get(POD_NAME) or [""])[0], (extra.get(POD_UID) or [""])[0]
        if parts[:2] != ["system", "serviceaccount"] or len(parts) != 4 or not pod or not uid:
            raise RefusedError(401, "the bearer token is not bound to a pod: use the projected service account token")
        return Speaker(parts[2], pod, uid)

    def pod(self, token: str, namespace: str, job: Object) -> Object:
        """The pod of `job` that owns `token`. Raises RefusedError 401 or 403, KubeError."""
        speaker = self.speaker(token)
        key = kinds.job_key(job)
        found = None
        if speaker.namespace == namespace:
            found = self._own(self._world.pods_of(namespace, key), speaker, job)
            if found is None:  # our copy may not have a pod that has just started
                found = self._own(self._kube.list_pods(namespace, selector(kinds.pod_labels(key))), speaker, job)
        if found is not None:
            return found
        raise RefusedError(403, f"pod {speaker.namespace}/{speaker.pod} is not a pod of Job {namespace}/{key}")

    def _own(self, pods: Sequence[Object], speaker: Speaker, job: Object) -> Object | None:
        """The speaker's pod if the Job owns it. Labels are not enough: whoever makes a pod chooses them."""
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


def _controlled(job: Object, pod: Object) -> bool:
    """Whether the Job controls the pod and the Job controller manages it.

    Labels and a plain owner reference are not enough: whoever makes a pod chooses them. The reference must be the
    controlling one, and the Job controller's own marks must name this Job by its UID: a pod that has all of them is
    one that the Job controller counts, or removes as one too many.
    """
    uid = job["metadata"]["uid"]
    owners = _controllers(pod)
    ours = [o for o in owners if o.get("kind") == "Job" and str(o.get("apiVersion", "")).startswith("batch/")]
    index, completions = views.pod_index(pod), int((job.get("spec") or {}).get("completions") or 1)
    return (
        [owner.get("uid") for owner in ours] == [uid]
        and label(pod, views.CONTROLLER_UID_LABEL) == uid
        and index is not None
        and index < completions
    )


def _controllers(obj: Object) -> list[Object]:
    return [owner for owner in obj["metadata"].get("ownerReferences") or () if owner.get("controller")]


def require_attempt(pod: Object, attempt: int) -> None:
    """Raises RefusedError 403: a pod speaks for the attempt that it was started for, and for no other."""
    own = annotation(pod, names.ANN_ATTEMPT)
    if own != str(attempt):
        raise RefusedError(403, f"pod {pod['metadata']['name']} was started for attempt {own}, not for {attempt}")


def require_leader(pod: Object) -> None:
    """Raises RefusedError 403."""
    if views.pod_index(pod) != 0:
        raise RefusedError(403, f"pod {pod['metadata']['name']} is not the leader (completion index 0)")
