"""The guard of pods is in force where jobs of ours can run: in namespaces with a LocalQueue of a fenced ClusterQueue.

Its policies ask for a label of the namespace. Who fences a queue and gives a namespace a way to it has decided that the
namespace trains, so nobody has to label it besides. A namespace that has the label with another value stays as it is:
no job begins there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..contract import job_names
from ..errors import KubeError
from ..fencing import is_fenced
from ..job.view import Job
from ..jobs.preflight import disarmed, unguarded
from ..kube.client import Kube
from ..kube.resources import NAMESPACE, Object, finished, label

log = logging.getLogger(__name__)

LOOK_S = 300.0
"""A namespace whose label was there is looked at again after this long, one without it each time."""


def to_guard(local_queues: Iterable[Mapping[str, Any]], cluster_queues: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the namespaces from which jobs of ours can be queued. Pure."""
    fenced = {queue["metadata"]["name"] for queue in cluster_queues if is_fenced(queue)}
    return {
        str(queue["metadata"]["namespace"])
        for queue in local_queues
        if (queue.get("spec") or {}).get("clusterQueue") in fenced
    }


class Guarded:
    """Keeps the label. The functions give our copies of the objects; `clock` seconds that only grow."""

    def __init__(
        self,
        kube: Kube,
        local_queues: Callable[[], Sequence[Object]],
        cluster_queues: Callable[[], Sequence[Object]],
        jobs: Callable[[], Sequence[Object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._clock = kube, clock
        self._local_queues, self._cluster_queues, self._jobs = local_queues, cluster_queues, jobs
        self._seen: dict[str, float] = {}
        """When each namespace was last looked at: guarded, or not ours to guard."""
        self._ours: set[str] = set()
        """Those that were guarded once: if they lose the label, they get it again, whatever runs there."""
        self._open: set[str] = set()
        """Those that are not guarded, as far as we know."""
        self.problem = ""
        """What of the guard of pods is not in force in any namespace, as far as we know: see `installed`."""

    def why_not(self, namespace: str) -> str:
        """Say why no job begins in a namespace, "" where one does."""
        if self.problem:
            return disarmed(self.problem)
        return unguarded(namespace) if namespace in self._open else ""

    def keep(self) -> None:
        """Label what lacks it. One namespace that refuses delays no other; raises the last KubeError."""
        now, problem = self._clock(), None
        found = to_guard(self._local_queues(), self._cluster_queues())
        self._seen = {name: at for name, at in self._seen.items() if name in found}
        self._open &= found
        due = [name for name in sorted(found) if name in self._open or now - self._seen.get(name, -LOOK_S) >= LOOK_S]
        old = self._old() if due else set()
        for namespace in due:
            try:
                self._guard(namespace, old)
                self._seen[namespace] = now
            except KubeError as error:
                problem = error
        if problem is not None:
            raise problem

    def _old(self) -> set[str]:
        """Namespaces with jobs that have begun. Where there is no label, they did so under a release without it."""
        live = [job for job in self._jobs() if finished(job) is None]
        return {str(job["metadata"]["namespace"]) for job in live if Job.parse(job).has_begun}

    def _guard(self, namespace: str, old: set[str]) -> None:
        found = self._kube.find(NAMESPACE, None, namespace)
        value = label(found, job_names.LABEL_TRAINING)
        self._open.discard(namespace)
        if value == job_names.TRAINING_ENABLED:
            self._ours.add(namespace)
        elif found is not None:
            self._open.add(namespace)
        if found is None or value or found["metadata"].get("deletionTimestamp"):
            return
        if namespace in old and namespace not in self._ours:
            log.warning(
                "namespace %s is not guarded while jobs of an earlier release run there; it will be then", namespace
            )
            return
        body = {"metadata": {"labels": {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}}}
        self._kube.patch(NAMESPACE, None, namespace, body, found["metadata"].get("resourceVersion"))
        self._ours.add(namespace)
        self._open.discard(namespace)
        log.info("namespace %s is guarded: a LocalQueue there leads to a fenced queue", namespace)
