"""When a restore has taken too long: nothing of it has moved for a while, or all of it takes longer than it can.

CRIU may wait for ever, for a lock of its own or for a server of files that does not answer. The job would hold its
quota meanwhile. How long a restore takes depends on its size; one that works uses CPU time, or reads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..ranks import process_scan

STILL_S = 60.0
"""Disks and networks of a cloud pause for seconds."""
LEAST_S = 600.0
SLOWEST = 20 << 20
"""Bytes per second of a disk that is very busy."""
Activity = dict[int, tuple[int, ...]]


def limit_s(images: Path) -> float:
    """How long a restore of these images may take."""
    total = 0
    for path in images.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return LEAST_S + total / SLOWEST


def activity(pids: Sequence[int], proc: Path = process_scan.PROC) -> Activity:
    """By process: ticks of CPU time, and bytes that it has read and written. Equal to an earlier one: nothing moved."""
    found: Activity = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = process_scan.stat_words(proc / str(pid) / "stat")
            found[pid] = (int(words[11]), int(words[12]), *_bytes(proc / str(pid) / "io"))
    return found


def _bytes(path: Path) -> tuple[int, ...]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ()
    return tuple(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar", "read_bytes")))


class Standstill:
    """:param look: what the processes have done so far
    :param still_s: seconds without a change that are too long
    """

    def __init__(
        self, look: Callable[[], Activity], still_s: float = STILL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self.still_s, self._clock = look, still_s, clock
        self._seen: Activity | None = None
        self._since = clock()

    def over(self) -> bool:
        """Whether nothing has moved for `still_s`. To be asked now and then."""
        seen, now = self._look(), self._clock()
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since >= self.still_s
