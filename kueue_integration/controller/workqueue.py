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

    def __len__(self) -> int:
        with self._changed:
            return len(self._due)

    def add(self, key: K, delay_s: float = 0.0) -> None:
        """Make `key` due in `delay_s` seconds; an earlier time that it has already stands."""
        when = time.monotonic() + max(0.0, delay_s)
        with self._changed:
            if key in self._due and self._due[key] <= when:
                return
            self._due[key] = when
            self._count += 1
            heapq.heappush(self._heap, (when, self._count, key))
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
