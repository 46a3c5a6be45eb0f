"""Kueue's scheduler benchmark without pods: an admitted Workload is declared finished when its running time is over."""

from __future__ import annotations

import queue
import threading
import time
from datetime import datetime, timezone
from typing import Any

from kueue_integration.errors import KubeError
from kueue_integration.k8s import Kube
from kueue_integration.resources import WORKLOAD, Object, is_true

from .events import changes

FINISHERS = 4
RUNTIME = "bench/runtime-ms"


class Finisher:
    """Watches the Workloads of `namespace`; `admitted` and `finished` hold the time of each, by name."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self.admitted: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self._due: queue.PriorityQueue[tuple[float, str, Any]] = queue.PriorityQueue()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._watch, daemon=True)]
        self._threads += [threading.Thread(target=self._finish, daemon=True) for _ in range(FINISHERS)]

    def __enter__(self) -> Finisher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _watch(self) -> None:
        for workload in changes(self._kube, WORKLOAD, self._namespace, self._stop):
            name = str(workload["metadata"]["name"])
            if name not in self.admitted and is_true(workload, "Admitted"):
                self.admitted[name] = time.monotonic()
                runtime = int(workload["metadata"]["annotations"][RUNTIME]) / 1000
                self._due.put((time.monotonic() + runtime, name, workload))

    def _finish(self) -> None:
        while not self._stop.is_set():
            try:
                when, name, workload = self._due.get(timeout=0.2)
            except queue.Empty:
                continue
            # The running times are below a second, so nobody behind waits long for the one in front.
            self._stop.wait(max(0.0, when - time.monotonic()))
            try:
                body = {"status": {"conditions": _with_end(workload)}}
                self._kube.patch(WORKLOAD, self._namespace, name, body, subresource="status")
                self.finished[name] = time.monotonic()
            except KubeError:
                self._due.put((time.monotonic() + 0.5, name, workload))


def _with_end(workload: Object) -> list[Object]:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    end = {"type": "Finished", "status": "True", "reason": "JobFinished", "message": "done", "lastTransitionTime": now}
    return [*workload["status"]["conditions"], end]
