"""Holds that have lasted as long as they may, for the Lease: the policy lets the suspend of these Jobs through.

They are listed there a little ahead, with the end of each hold, so that no hold waits for the next renewal of the
Lease. This way out needs no write on a Job. The Job's owner may fill its annotations up, or rewrite them faster than we
do, and somebody else's webhook may refuse our writes. Nobody but us writes the Lease.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable

from ..job import states
from ..kube.resources import Object
from . import hold
from .snapshot import Job, Workload

log = logging.getLogger(__name__)

AHEAD_S = 15.0
"""More than the Lease takes to be renewed and read."""
MOST = 2000
"""Entries in the Lease, 96 kB. A Job whose suspend goes through leaves the list, so there are hardly ever two."""


class Overdue:
    """`jobs` gives all managed Jobs, `now` the API server's time in Unix seconds. Thread-safe."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[Object]],
        workload_of: Callable[[Object], Object | None],
        settings: hold.Settings,
        now: Callable[[], float],
    ) -> None:
        self._jobs, self._workload_of, self._settings, self._now = jobs, workload_of, settings, now
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}

    def seen_at(self, job: Job, workload: Workload | None) -> float | None:
        """When Kueue was first seen to want the Job suspended, Unix seconds; None: it does not, or is not held."""
        uid = _uid(job.raw)
        with self._lock:
            if not _held(job, workload):
                self._seen.pop(uid, None)
                return None
            return self._seen.setdefault(uid, self._now())

    def _ends(self, job: Object, workload: Object | None) -> float | None:
        """When the hold of the Job ends, Unix seconds; None: there is no hold to end."""
        if workload is not None and not states.leaves(workload):  # so it is with nearly all: nothing has to be parsed
            with self._lock:
                self._seen.pop(_uid(job), None)
            return None
        seen = Job.parse(job), None if workload is None else Workload.parse(workload)
        at = self.seen_at(*seen)
        return None if at is None else hold.due(*seen, at, self._settings)

    def entries(self) -> list[str]:
        """`UID/SECONDS` of the Jobs whose hold is over or about to be. The content of one Job never affects the
        others."""
        now, known = self._now(), set()
        found: list[tuple[bool, float, str]] = []
        for job in self._jobs():
            uid = _uid(job)
            known.add(uid)
            try:
                workload = self._workload_of(job)
                ends = self._ends(job, workload)
            except Exception:
                log.exception("Job %s cannot be judged: its suspend is let through", uid)
                workload, ends = None, now
            if ends is not None and now + AHEAD_S >= ends:
                # Jobs that Kueue does not know come last: anybody can create many of them.
                found.append((workload is None, ends, uid))
        with self._lock:
            self._seen = {uid: at for uid, at in self._seen.items() if uid in known}
        if len(found) > MOST:
            log.error("%d holds end now or are over and not let go; the Lease takes %d", len(found), MOST)
        # Whole seconds, like the API server's own times, with which the policy compares them.
        return [f"{uid}/{math.ceil(ends)}" for _, ends, uid in sorted(found)[:MOST]]


def _held(job: Job, workload: Workload | None) -> bool:
    """Whether Kueue's suspend of the Job is denied now, as far as the Job itself shows: our policy knows more."""
    waits = workload is None or workload.leaves
    return waits and job.armed and job.managed and not job.suspended and not job.failing


def _uid(job: Object) -> str:
    return str(job["metadata"].get("uid", ""))
