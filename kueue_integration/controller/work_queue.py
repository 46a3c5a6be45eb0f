"""A queue of keys that are due now or later: one key once in each lane, with its earliest time."""

from __future__ import annotations

import enum
import heapq
import threading
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Lane(enum.IntEnum):
    """What is due in a lane is taken before what is due in the next one."""

    FIRST = 0
    """What must not wait behind a crowd: it says whether the queue is served at all."""
    USUAL = 1
    LAST = 2
    """What is looked at only to be sure."""


class _Due(Generic[K]):
    """The keys of one lane."""

    def __init__(self) -> None:
        self.times: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def add(self, key: K, when: float) -> bool:
        """Whether that is news: an earlier time that it has already stands."""
        if key in self.times and self.times[key] <= when:
            return False
        self.times[key] = when
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, key))
        if len(self._heap) > 2 * len(self.times) + 64:  # of a late time that is set again and again one is enough
            self._heap = [(at, number, name) for number, (name, at) in enumerate(self.times.items())]
            heapq.heapify(self._heap)
        return True

    def next_at(self) -> float | None:
        while self._heap and self.times.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # superseded by an earlier time, or taken
        return self._heap[0][0] if self._heap else None

    def take(self) -> K:
        """The key that `next_at` is about."""
        key = heapq.heappop(self._heap)[2]
        del self.times[key]
        return key


class WorkQueue(Generic[K]):
    """Thread-safe. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lanes: tuple[_Due[K], ...] = tuple(_Due() for _ in Lane)
        self._busy: set[K] = set()
        self._postponed: set[K] = set()

    def __len__(self) -> int:
        with self._changed:
            return len({key for lane in self._lanes for key in lane.times})

    def due(self) -> int:
        """Keys whose time has come and that nobody has taken."""
        now = time.monotonic()
        with self._changed:
            return len({key for lane in self._lanes for key, when in lane.times.items() if when <= now})

    def add(self, key: K, delay_s: float = 0.0, lane: Lane = Lane.USUAL) -> None:
        """Make `key` due in `delay_s` seconds; an earlier time that it has already in this lane stands."""
        with self._changed:
            if self._lanes[lane].add(key, time.monotonic() + max(0.0, delay_s)):
                self._changed.notify()

    def get(self, timeout_s: float) -> K | None:
        """The next due key, taken out; None if none is due within `timeout_s` seconds."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while True:
                now, soonest = time.monotonic(), end
                for number, lane in enumerate(self._lanes):
                    when = lane.next_at()
                    if when is not None and when <= now:
                        key = lane.take()
                        for later in self._lanes[number + 1 :]:  # once is enough for both
                            if key in later.times and later.times[key] <= now:
                                del later.times[key]
                        return key
                    soonest = soonest if when is None else min(soonest, when)
                if now >= end:
                    return None
                self._changed.wait(soonest - now)

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
