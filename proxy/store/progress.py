"""How far a transfer is: counted by many threads, told to one listener, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), from any thread, once for every 8 MiB or so."""


def ignore(done: int, total: int) -> None:
    """For those who do not want to know."""


class Count:
    """Adds up and tells."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        progress(0, total)

    def expect(self, total: int) -> None:
        """So many bytes it is in all, it has turned out."""
        with self._lock:
            self._total = total
            self._progress(self._done, total)

    def add(self, size: int) -> None:
        """So many bytes more are done."""
        with self._lock:
            self._done += size
            self._progress(self._done, self._total)
