"""Where the seconds of a piece of work go."""

from __future__ import annotations

import time
from collections.abc import Callable


class Laps:
    """Each lap begins where the one before it has ended; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """What passed since the last lap was `name`."""
        now = self._clock()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
