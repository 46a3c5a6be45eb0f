"""Writes pages of a dump to the disk, past the page cache where the disk is fast enough (`disk_pace`).

A thread writes, while pages are received and compared.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ...protocol.disk_pace import PIECE, DiskPace

BLOCK: Final = 2 << 20
_BLOCKS: Final = 4


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
        self.pace = DiskPace()

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
        pace = self.pace
        with pace.timed(len(part)):
            while len(part):
                try:
                    file, most = (self._files[-1], BLOCK) if pace.direct else (self._files[0], PIECE)
                    count = os.pwrite(file, part[:most], at)
                except OSError as error:
                    if not pace.direct or error.errno != errno.EINVAL:
                        raise
                    pace.direct = False
                    continue
                part, at = part[count:], at + count
