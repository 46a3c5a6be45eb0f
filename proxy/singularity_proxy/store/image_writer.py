"""Writes content of packs to the files of images, past the page cache where that pays (`disk_pace`).

Chunks begin and end anywhere. So runs that follow each other in a file are put together in memory that is reused, from
there whole pages go past the page cache, and the rest of the first and the last page through it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from pathlib import Path
from typing import Final

from ..protocol.disk_pace import PAGE, PIECE, DiskPace

ROOM: Final = 4 << 20
"""Bytes that a writer puts together."""
LEAST: Final = 128 << 10
"""Bytes: what is shorter goes through the page cache, as each write past it waits for the disk."""
_CANNOT: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class Disk:
    """What the writers of one download have in common. :param direct: see `DiskPace`"""

    def __init__(self, direct: bool) -> None:
        self.pace = DiskPace(direct)
        self.turn = threading.Lock()
        """One write at a time, so that its time says how fast the disk is."""
        self._own = threading.local()

    def writer(self) -> ImageWriter:
        """The one of this thread, with nothing in it."""
        if not hasattr(self._own, "writer"):
            self._own.writer = ImageWriter(self)
        found: ImageWriter = self._own.writer
        return found


class ImageWriter:
    """One thread. Files are there already, with their full size. Every method raises OSError.

    What was put is written once `close` returns, which is called whatever happens.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._room = memoryview(mmap.mmap(-1, ROOM + PAGE))
        self._path: Path | None = None
        self._file = -1
        self._at = self._held = 0
        """Where the content of the room begins in the file, and its bytes."""

    def put(self, path: Path, offset: int, content: memoryview) -> None:
        """Bytes of a file from `offset` on."""
        if path != self._path or offset != self._at + self._held:
            self._flush()
            self._open(path)
            self._at = offset
        while content:
            begin = self._at % PAGE + self._held
            part = min(len(content), len(self._room) - begin)
            self._room[begin : begin + part] = content[:part]
            self._held, content = self._held + part, content[part:]
            if begin + part == len(self._room):
                self._write(last=False)

    def close(self, good: bool) -> None:
        """`good`: write what is left."""
        try:
            if good:
                self._flush()
        finally:
            self._held, self._path = 0, None
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _open(self, path: Path) -> None:
        if path == self._path:
            return
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._path = path

    def _flush(self) -> None:
        if self._held:
            self._write(last=True)

    def _write(self, last: bool) -> None:
        """:param last: nothing follows: all of it, else what may stay stays"""
        data = self._room[self._at % PAGE :][: self._held]
        end = self._at + self._held
        first, after = -(-self._at // PAGE) * PAGE, end // PAGE * PAGE
        done = self._at
        if self._disk.pace.direct and after - first >= LEAST:
            self._through(data[: first - self._at], self._at)
            done = first + self._past(data[first - self._at : after - self._at], first)
        rest = data[done - self._at :]
        if not last and done == after:
            self._room[: len(rest)] = bytes(rest)
            self._at, self._held = done, len(rest)
        else:
            self._through(rest, done)
            self._at, self._held = end, 0

    def _past(self, data: memoryview, at: int) -> int:
        """Write whole pages past the page cache; how many bytes that were, fewer where it cannot be."""
        done, size = 0, len(data)
        with self._disk.turn, self._disk.pace.timed(size):
            try:
                # The same descriptor in turns: some network file systems take a file from one descriptor alone.
                fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_DIRECT)
                while done < size and not done % PAGE:
                    done += os.pwrite(self._file, data[done:], at + done)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self._disk.pace.direct = False
            fcntl.fcntl(self._file, fcntl.F_SETFL, 0)
        return done

    def _through(self, data: memoryview, at: int) -> None:
        while data:
            count = os.pwrite(self._file, data[:PIECE], at)
            data, at = data[count:], at + count
