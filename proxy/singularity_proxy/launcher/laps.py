"""Where the seconds of a piece of work go."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection


class Laps:
    """Each lap begins where the one before it has ended; `clock` is monotonic.

    :param absent: laps in which there is nothing to do: the moment that they take is the next lap's
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, absent: Collection[str] = ()) -> None:
        self._clock = clock
        self._absent = absent
        self._since = clock()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """What passed since the last lap was `name`."""
        if name in self._absent:
            return
        now = self._clock()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
