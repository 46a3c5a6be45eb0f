"""Kueue's scheduler benchmark without pods: an admitted Workload is declared finished when its running time is over."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone

from kueue_integration.controller.work_queue import WorkQueue
from kueue_integration.errors import KubeError
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import WORKLOAD, Object, condition, is_true

from .events import changes

FINISHERS = 8
RUNTIME = "bench/runtime-ms"


class Finisher:
    """Watches the Workloads of `namespace`; `admitted` and `finished` hold the time of each, by name.

    `queued` holds those that Kueue has put into their queue, `ready` those whose checks are all Ready.
    """

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self.queued: set[str] = set()
        self.ready: set[str] = set()
        self.admitted: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self._running: dict[str, Object] = {}
        self._due: WorkQueue[str] = WorkQueue()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._watch, daemon=True)]
        self._threads += [threading.Thread(target=self._finish, daemon=True) for _ in range(FINISHERS)]

    def __enter__(self) -> Finisher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def settled(self, checked: bool) -> set[str]:
        """Those for which nothing is written any more until their queue is opened."""
        return self.queued & self.ready if checked else self.queued

    def _watch(self) -> None:
        for workload in changes(self._kube, WORKLOAD, self._namespace, self._stop):
            name = str(workload["metadata"]["name"])
            checks = [check["state"] for check in workload.get("status", {}).get("admissionChecks") or ()]
            if condition(workload, "QuotaReserved") is not None:
                self.queued.add(name)
            if checks and set(checks) == {"Ready"}:
                self.ready.add(name)
            if name not in self.admitted and is_true(workload, "Admitted"):
                self.admitted[name] = time.monotonic()
                runtime = int(workload["metadata"]["annotations"][RUNTIME]) / 1000
                self._running[name] = workload
                self._due.add(name, runtime)

    def _finish(self) -> None:
        while not self._stop.is_set():
            name = self._due.get(timeout_s=0.2)
            if name is None:
                continue
            try:
                body = {"status": {"conditions": _with_end(self._running[name])}}
                self._kube.patch(WORKLOAD, self._namespace, name, body, subresource="status")
                self.finished[name] = time.monotonic()
                del self._running[name]
            except KubeError:
                self._due.add(name, 0.5)


def _with_end(workload: Object) -> list[Object]:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    end = {"type": "Finished", "status": "True", "reason": "JobFinished", "message": "done", "lastTransitionTime": now}
    return [*workload["status"]["conditions"], end]
