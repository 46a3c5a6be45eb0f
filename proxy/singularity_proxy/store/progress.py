"""How far a transfer is: many threads count, and one listener hears the counts in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), from any thread, once for every 8 MiB or so."""


def ignore(done: int, total: int) -> None:
    """A listener that ignores progress."""


class Count:
    """Adds up bytes and calls the listener."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        progress(0, total)

    def expect(self, total: int) -> None:
        """Set the total, which became known only now, in bytes."""
        with self._lock:
            self._total = total
            self._progress(self._done, total)

    def add(self, size: int) -> None:
        """Add to the bytes that are done."""
        with self._lock:
            self._done += size
            self._progress(self._done, self._total)
