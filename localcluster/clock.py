"""Progress lines with the seconds since the beginning."""

from __future__ import annotations

import time

from .cache import Progress


class Clock:
    """:param progress: takes whole lines"""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        self._progress(f"[{time.monotonic() - self._began:5.1f} s] {text}")
