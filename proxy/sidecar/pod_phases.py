"""How long the phases of this pod took: its start, and its last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..protocol.messages import LauncherEvent
from ..protocol.phases import SavePhases, StartPhases


class PodPhases:
    """Begins with the sidecar. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._join = 0.0
        self._fetch: float | None = None
        self._dumped = 0.0
        self.start: StartPhases | None = None
        """Of this attempt; None before its ranks run, and if a previous sidecar of this pod gave the plan."""
        self.save: SavePhases | None = None
        """Of the last checkpoint, once it is uploaded."""
        self._told: SavePhases | None = None

    def joined(self) -> None:
        """Store, controller and leader are there."""
        self._join = self._lap()

    def planned(self) -> None:
        """The launcher may have its plan: the images are here."""
        self._fetch = self._lap()

    def run(self, event: LauncherEvent) -> None:
        """The launcher has started or restored the ranks."""
        if event.start is not None and self._fetch is not None:
            self.start = replace(event.start, join=self._join, fetch=self._fetch)

    def dumped(self, event: LauncherEvent) -> None:
        """The launcher has all images."""
        self._dumped, self._told, self.save = self._clock(), event.save, None

    def uploaded(self) -> None:
        """The store has them."""
        if self._told is not None:
            self.save = replace(self._told, upload=max(0.0, self._clock() - self._dumped))

    def _lap(self) -> float:
        was, self._since = self._since, self._clock()
        return self._since - was
