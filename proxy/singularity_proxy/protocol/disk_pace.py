"""Whether files of images are written past the page cache (`O_DIRECT`): where the disk is fast enough.

Nobody reads such files soon but one reader, once. In the page cache they push out what others need, and count as memory
of the pod. New memory for them also costs CPU time. It was 0.2 to 3 s per GB, and 0.06 s past the page cache. Offsets,
sizes and memory are whole pages, as that needs.

A slow disk would keep everybody waiting. So writes are timed, and the rest goes through the page cache where the disk
is too slow. Time that was spent on waiting for a processor does not count: a busy machine makes no slow disk. The page
cache would need more of the processor. A file system without `O_DIRECT` gets all through the page cache.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PAGE: Final = 4096
PIECE: Final = 256 << 10
"""Bytes of a write through the page cache. For larger ones the kernel looks for larger pieces of free memory. Memory
that was just in use is in smaller ones, and costs a virtual machine less than fresh memory of the host."""
SLOWEST: Final = 400e6
"""Bytes per second. The page cache takes about as much from one process where its memory is new."""
TRIED: Final = 64 << 20
"""Bytes after which the disk is judged."""
SCHEDULED: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a processor, nanoseconds of waiting for one."""


class DiskPace:
    """Of one disk, which one thread at a time writes to.

    :param direct: whether to go past the page cache at all
    """

    def __init__(self, direct: bool = True) -> None:
        self.direct = direct
        """Whether writes go past the page cache."""
        self._bytes, self._took = 0, 0.0

    @contextlib.contextmanager
    def timed(self, size: int) -> Iterator[None]:
        """Around a write of so many bytes."""
        began = without_waits()
        yield
        self._bytes, self._took = self._bytes + size, self._took + without_waits() - began
        if self._bytes >= TRIED and self._bytes < self._took * SLOWEST:
            self.direct = False


def without_waits() -> float:
    """A clock for this thread that stands still while it waits for a processor."""
    now = time.monotonic()
    with contextlib.suppress(OSError, IndexError, ValueError):  # a kernel without these statistics
        now -= int(SCHEDULED.read_bytes().split()[1]) / 1e9
    return now
