"""Lines with elapsed time, from any thread."""

from __future__ import annotations

import threading
import time


class Progress:
    """`say` prints one line with the seconds since this object was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            print(f"[{time.monotonic() - self._start:6.1f} s] {text}", flush=True)
