"""Watches Jobs through their holds: started, deadline, released, suspended."""

from __future__ import annotations

import threading
import time
from collections.abc import Set
from datetime import datetime

from kueue_integration.contract import job_names
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, Object, annotation

from .events import changes


class HoldWatch:
    """Unix times, by name of the Job, at which the watch brought the news."""

    def __init__(self, kube: Kube, namespace: str, jobs: Set[str]) -> None:
        self._kube, self._namespace, self._jobs = kube, namespace, jobs
        self.started: dict[str, float] = {}
        self.deadline: dict[str, float] = {}
        self.released: dict[str, float] = {}
        self.suspended: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> HoldWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _run(self) -> None:
        for job in changes(self._kube, JOB, self._namespace, self._stop):
            name = str(job["metadata"]["name"])
            if name in self._jobs:
                self._note(name, job, time.time())

    def _note(self, name: str, job: Object, now: float) -> None:
        if (job.get("status") or {}).get("ready"):
            self.started.setdefault(name, now)
        due = annotation(job, job_names.ANN_HOLD_DEADLINE)
        if due:
            self.deadline.setdefault(name, datetime.fromisoformat(due).timestamp())
        if name in self.started and annotation(job, job_names.ANN_HOLD) == job_names.HOLD_RELEASED:
            self.released.setdefault(name, now)
        if name in self.started and job["spec"].get("suspend"):
            self.suspended.setdefault(name, now)
