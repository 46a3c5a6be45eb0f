"""A queue of keys that are due now or later. A key is in it once, with its earliest time."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Thread-safe. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._busy: set[K] = set()
        self._postponed: set[K] = set()

    def __len__(self) -> int:
        with self._changed:
            return len(self._due)

    def due(self) -> int:
        """Keys whose time has come and that nobody has taken."""
        now = time.monotonic()
        with self._changed:
            return sum(when <= now for when in self._due.values())

    def add(self, key: K, delay_s: float = 0.0) -> None:
        """Make `key` due in `delay_s` seconds; an earlier time that it has already stands."""
        when = time.monotonic() + max(0.0, delay_s)
        with self._changed:
            if key in self._due and self._due[key] <= when:
                return
            self._due[key] = when
            self._count += 1
            heapq.heappush(self._heap, (when, self._count, key))
            if len(self._heap) > 2 * len(self._due) + 64:  # of a late time that is set again and again one is enough
                self._heap = [(at, number, name) for number, (name, at) in enumerate(self._due.items())]
                heapq.heapify(self._heap)
            self._changed.notify()

    def get(self, timeout_s: float) -> K | None:
        """The next due key, taken out; None if none is due within `timeout_s` seconds."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while True:
                now = time.monotonic()
                while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
                    heapq.heappop(self._heap)  # superseded by an earlier time, or taken
                if self._heap and self._heap[0][0] <= now:
                    _, _, key = heapq.heappop(self._heap)
                    del self._due[key]
                    return key
                if now >= end:
                    return None
                self._changed.wait(min(end, self._heap[0][0] if self._heap else end) - now)

    # --- several workers ----------------------------------------------------------------------------------------------
    def claim(self, timeout_s: float) -> K | None:
        """As `get`, but never a key that another worker has claimed; `done` must follow."""
        end = time.monotonic() + timeout_s
        while True:
            key = self.get(max(0.0, end - time.monotonic()))
            if key is None:
                return None
            with self._changed:
                if key not in self._busy:
                    self._busy.add(key)
                    return key
                self._postponed.add(key)

    def done(self, key: K) -> None:
        """The claimed `key` may be claimed again; what was due meanwhile is due now."""
        with self._changed:
            self._busy.discard(key)
            again = key in self._postponed
            self._postponed.discard(key)
        if again:
            self.add(key)
