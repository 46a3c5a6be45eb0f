"""What happens when in a simulation: events in the order of time, and of their making where the time is the same."""

from __future__ import annotations

import heapq

from .active import Active
from .outcome import Kind


class Clock:
    """`now` is the time of the event that was taken last, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Kind, Active | None, int]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._events)

    def at(self, when: float, kind: Kind, active: Active | None = None) -> None:
        """An event of a job is void as soon as its version has changed."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, kind, active, active.version if active else 0))

    def next_of(self, active: Active, after_s: float, kind: Kind) -> None:
        """The job's earlier events are void."""
        active.version += 1
        active.stamp += 1
        self.at(self.now + after_s, kind, active)

    def take(self) -> tuple[Kind, Active | None] | None:
        """The earliest event, None if it is void."""
        self.now, _, kind, active, version = heapq.heappop(self._events)
        return None if active is not None and version != active.version else (kind, active)
