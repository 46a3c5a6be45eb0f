"""How much of a rank's output is passed on: a token bucket that says what it dropped. Pure but for the clock.

A rank that prints 100 MB/s must not fill the node's disk. Once it drops lines, it does so for at least a second, so
that the remaining output has readable runs of whole lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ...protocol import names
from ..errors import CommandError

BYTES_PER_S: Final = 256 << 10
"""About 2500 lines a second, for as long as the rank likes."""
BURST_S: Final = 16
"""Output of this many seconds may come at once."""


class LogRate:
    """:param bytes_per_s: 0: no limit"""

    def __init__(self, bytes_per_s: int = BYTES_PER_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = bytes_per_s
        self._clock = clock
        self._room = float(bytes_per_s * BURST_S)
        self._at = clock()
        self._lines = self._bytes = 0

    def take(self, size: int) -> bool:
        """Whether a line of `size` bytes may be passed on."""
        if not self._per_s:
            return True
        self._refill()
        if self.dropping or self._room < min(size, self._per_s):
            return False
        self._room -= size
        return True

    def drop(self, lines: int, size: int) -> None:
        """Count bytes that were not passed on."""
        if not self.dropping:
            self._room = min(self._room, 0.0)  # a second must pass before the next line
        self._lines += lines
        self._bytes += size

    @property
    def dropping(self) -> bool:
        return self._bytes > 0

    def notice(self, final: bool = False) -> str:
        """A sentence about what was dropped once lines are passed on again, or at the end; else ""."""
        if not self.dropping:
            return ""
        self._refill()
        if self._room < self._per_s and not final:
            return ""
        lines, size = self._lines, self._bytes
        self._lines = self._bytes = 0
        return (
            f"[launcher] {lines} lines ({size / 1e6:.1f} MB) are not shown: more than {self._per_s / 1024:.4g} KiB/s; "
            f"set {names.ENV_LOG_RATE} to allow more"
        )

    def _refill(self) -> None:
        now = self._clock()
        self._room = min(self._per_s * BURST_S, self._room + (now - self._at) * self._per_s)
        self._at = now


def from_env(env: Mapping[str, str]) -> int:
    """Bytes per second that a rank may print. Raises CommandError that names the variable."""
    text = env.get(names.ENV_LOG_RATE) or str(BYTES_PER_S)
    if not text.isdecimal():
        raise CommandError(f"{names.ENV_LOG_RATE} = {text!r}: bytes per second as a whole number, 0 for no limit")
    return int(text)
