"""Whether a local copy is older than this controller's own last write: then no decision can be based on it yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from ..kube.resources import Object, version_of

STALE_S = 5.0
"""If a watch needs longer than this to show a write, nobody waits for it: decisions then use fresh reads."""
_CROWD = 1000


class Expectations:
    """Versions that were replaced a moment ago, by UID. Thread-safe.

    Kubernetes' own controllers call this an expectation (`controller_utils.go`, `ControllerExpectations`). Without it,
    three reads that find nothing to do follow each answer of the fence: the watch shows the Job's change before the
    Workload's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._replaced: dict[str, tuple[str, float]] = {}

    def note(self, written: Iterable[tuple[Object, Object]]) -> None:
        """`(before, after)` of each write. A write that changed nothing has no event to wait for."""
        now = self._clock()
        with self._lock:
            for before, after in written:
                if version_of(before) != version_of(after):
                    self._replaced[before["metadata"]["uid"]] = (version_of(before), now + STALE_S)
            if len(self._replaced) > _CROWD:  # of objects that went away before their event was looked at
                self._replaced = {uid: found for uid, found in self._replaced.items() if found[1] > now}

    def behind(self, *copies: Object | None) -> float:
        """Longest time to wait for the watch, in seconds, because one of `copies` is a replaced version; or 0."""
        now = self._clock()
        with self._lock:
            return max((self._left(copy, now) for copy in copies if copy is not None), default=0.0)

    def _left(self, copy: Object, now: float) -> float:
        uid = copy["metadata"].get("uid", "")
        version, until = self._replaced.get(uid, ("", 0.0))
        if version == version_of(copy) and until > now:
            return until - now
        self._replaced.pop(uid, None)
        return 0.0
