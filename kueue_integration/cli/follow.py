"""Follow the logs of a job over its attempts: one thread per pod, and a sentence wherever lines may be missing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

from ..contract import attempt_records, job_names, kinds
from ..errors import Invalid, KubeError, NotFound
from ..job.pods import Pod
from ..jobs import status as library
from ..kube.api import Kube
from ..kube.resources import POD, Object, selector

_LOOK_S = 1.0
_AGAIN = 5
"""Times that a broken stream is opened again."""


class Follower:
    """`say` gets the sentences about gaps. `tail` and `since_s` apply to the pods that are there at the start."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        container: str,
        say: Callable[[str], None],
        tail: int | None = None,
        since_s: float | None = None,
    ) -> None:
        self._kube, self._namespace, self._name, self._container = kube, namespace, name, container
        self._say, self._tail, self._since_s = say, tail, since_s
        self._lines: queue.Queue[str] = queue.Queue()
        self._readers: dict[str, threading.Thread] = {}
        self._read: set[int] = set()
        """Attempts of which a pod was read."""
        self._passed: set[int] = set()
        """Attempts whose absence has been reported, or that were over before we came."""

    def lines(self) -> Iterator[str]:
        """Lines of all pods as they come, until the job is final and every stream has ended. Raises KubeError."""
        next_look, final, first = 0.0, False, True
        while True:
            if time.monotonic() >= next_look and not final:
                next_look = time.monotonic() + _LOOK_S
                try:
                    final = self._look(first)
                    first = False
                except KubeError as error:
                    if first or not error.transient:
                        raise
                    self._say(f"the API server does not answer, trying again: {error}")
            try:
                yield self._lines.get(timeout=_LOOK_S)
            except queue.Empty:
                if final and not any(thread.is_alive() for thread in self._readers.values()):
                    return

    def _look(self, first: bool) -> bool:
        """Start readers for new pods. Whether the job has ended."""
        # Before the pods: what it started must still be read.
        job = kinds.find(self._kube, self._namespace, self._name)
        final = job is None or library.summarise(job, None, []).final
        for pod in self._kube.list(POD, self._namespace, selector({job_names.LABEL_JOB: self._name})):
            if pod["metadata"]["uid"] in self._readers or not started(pod, self._container):
                continue
            self._read.add(Pod.parse(pod).attempt or 0)
            how = (self._tail, self._since_s) if first else (None, None)
            thread = threading.Thread(target=self._reader, args=(pod["metadata"]["name"], *how), daemon=True)
            self._readers[pod["metadata"]["uid"]] = thread
            thread.start()
        self._tell_missed(job, first)
        return final

    def _tell_missed(self, job: Object | None, first: bool) -> None:
        missed = [
            a.attempt
            for a in attempt_records.history(job)
            if a.ended_by is not None and a.attempt not in self._read | self._passed
        ]
        self._passed.update(missed)
        for attempt in missed:
            when = "it had ended before this began" if first else "its pods came and went between two looks"
            self._say(f"lines of attempt {attempt} may be missing: {when}")

    def _reader(self, pod: str, tail: int | None, since_s: float | None) -> None:
        heard = time.monotonic()
        for left in reversed(range(_AGAIN)):
            try:
                stream = self._kube.pod_logs(
                    self._namespace, pod, self._container, follow=True, tail=tail, since_s=since_s
                )
                for line in stream:
                    heard = time.monotonic()
                    self._lines.put(line)
                return
            except (NotFound, Invalid) as error:
                self._say(f"log of pod {pod}: lines may be missing, the pod is gone: {error}")
                return
            except KubeError as error:
                if not error.transient or not left:
                    self._say(f"log of pod {pod} broke off, lines are missing: {error}")
                    return
                self._say(f"log of pod {pod} broke off and is opened again, lines may be missing or repeated")
                time.sleep(_LOOK_S)  # the pace of asking again
                tail, since_s = None, time.monotonic() - heard + 1.0


def started(pod: Object, container: str) -> bool:
    """Whether the container has a log by now."""
    status = pod.get("status") or {}
    found = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    return any(c["name"] == container and "waiting" not in (c.get("state") or {"waiting": {}}) for c in found)
