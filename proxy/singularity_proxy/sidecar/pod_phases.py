"""How long the phases of this pod took: its start, and its last checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..protocol import names, phases
from ..protocol.messages import LauncherEvent
from ..protocol.phases import SavePhases, StartPhases


class PodPhases:
    """Begins with the sidecar. `clock` is monotonic; `before` are seconds of `containers` and `load`: None measures."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, before: tuple[float, float] | None = None) -> None:
        self._clock = clock
        self._containers, self._load = before_us() if before is None else before
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
            self.start = replace(
                event.start,
                containers=self._containers,
                load=self._load,
                join=self._join,
                fetch=self._fetch,
                image=max(0.0, self._lap() - phases.total(event.start)),
            )

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


def before_us(folder: Path = Path(names.IMAGE_DIR), process: Path = Path("/proc/self/stat")) -> tuple[float, float]:
    """Seconds from the pod's volumes to this process, and since its start; 0 where that cannot be seen.

    The kubelet makes `folder`, an emptyDir, before it starts containers; nobody writes to it before us. So its date and
    our look at the clock are of one node.
    """
    try:
        age = time.time() - folder.stat().st_mtime
        begun = int(process.read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    load = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - begun)
    return max(0.0, age - load), load
