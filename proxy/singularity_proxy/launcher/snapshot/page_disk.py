"""Writes pages of a dump to the disk, past the page cache where the disk is fast enough.

Nobody reads these files soon but the sidecar, once. In the page cache they push out what others need, and count as
memory of the pod. New memory for them also costs CPU time, which the ranks wait for. It was 0.2 to 3 s per GB, and
0.06 s past the page cache (`O_DIRECT`). Offsets and sizes are whole pages, as that needs.

A slow disk would keep the ranks waiting. So writes are timed, and the rest goes through the page cache where the disk
is too slow. Time that was spent on waiting for a processor does not count: a busy machine makes no slow disk. The page
cache would need more of the processor. A file system without `O_DIRECT` gets all through the page cache.

A thread writes, while pages are received and compared.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

BLOCK: Final = 2 << 20
_BLOCKS: Final = 4
SLOWEST: Final = 400e6
"""Bytes per second. The page cache takes about as much from one process where its memory is new."""
_TRIED: Final = 64 << 20
"""Bytes after which the disk is judged."""
_PIECE: Final = 256 << 10
"""Bytes of a write through the page cache. For larger ones the kernel looks for larger pieces of free memory. Memory
that was just in use is in smaller ones, and costs a virtual machine less than fresh memory of the host."""
SCHEDULED: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a processor, nanoseconds of waiting for one."""


class PageDisk:
    """:param folder: of the files

    Raises OSError from every method: there is no room.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._room = [memoryview(mmap.mmap(-1, BLOCK)) for _ in range(_BLOCKS)]
        """Blocks to be filled, the one that is being filled first."""
        self._held = self._at = 0
        self._number = 0
        self._files: list[int] = []
        """Descriptors of the current file: through the page cache, and past it if that can be."""
        self._busy: deque[tuple[Future[None], memoryview]] = deque()
        self._thread = ThreadPoolExecutor(1)
        self.direct = True
        """Whether blocks go past the page cache."""
        self._bytes, self._took = 0, 0.0

    def open(self, number: int) -> None:
        """The next file, maybe an empty one."""
        self._finish()
        path = self._folder / f"pages-{number}.img"
        self._number, self._at = number, 0
        self._files.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.suppress(OSError):
            self._files.append(os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC))

    def write(self, number: int, content: memoryview) -> None:
        """Append whole pages to file `number`, the last that was opened."""
        assert number == self._number, f"pages of file {number} came after file {self._number} was begun"
        while size := len(content):
            part = min(size, BLOCK - self._held)
            self._room[0][self._held : self._held + part] = content[:part]
            self._held, content = self._held + part, content[part:]
            if self._held == BLOCK:
                self._hand_on()

    def end(self, folder: Path) -> None:
        """All of it is in the files. `folder`: of the images, which needs nothing more."""
        self._finish()

    def close(self) -> None:
        self._thread.shutdown()
        self._close_files()

    def _hand_on(self) -> None:
        if self._held:
            block = self._room.pop(0)
            self._busy.append((self._thread.submit(self._put, block[: self._held], self._at), block))
            self._at, self._held = self._at + self._held, 0
            if not self._room:
                self._wait()

    def _wait(self) -> None:
        written, block = self._busy.popleft()
        written.result()
        self._room.append(block)

    def _finish(self) -> None:
        self._hand_on()
        while self._busy:
            self._wait()
        self._close_files()

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def _put(self, part: memoryview, at: int) -> None:
        began, size = _without_waits(), len(part)
        while len(part):
            try:
                file, most = (self._files[-1], BLOCK) if self.direct else (self._files[0], _PIECE)
                count = os.pwrite(file, part[:most], at)
            except OSError as error:
                if not self.direct or error.errno != errno.EINVAL:
                    raise
                self.direct = False
                continue
            part, at = part[count:], at + count
        self._bytes, self._took = self._bytes + size, self._took + _without_waits() - began
        if self._bytes >= _TRIED and self._bytes < self._took * SLOWEST:
            self.direct = False


def _without_waits() -> float:
    """A clock for this thread that stands still while it waits for a processor."""
    now = time.monotonic()
    with contextlib.suppress(OSError, IndexError, ValueError):  # a kernel without these statistics
        now -= int(SCHEDULED.read_bytes().split()[1]) / 1e9
    return now
