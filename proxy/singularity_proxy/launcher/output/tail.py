"""A rank's log file, copied line by line to the container's stdout with a prefix. Copied blocks are given back to the
file system.

The rank writes to a file, not to a pipe: CRIU can restore a file alone. Two rules keep its log from filling the node's
disk. No more than `LogRate` allows is passed on, and blocks that were read are given back to the file system. The file
keeps its size, on which the writer's position and CRIU depend.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from .rate_limit import LogRate

LONGEST: Final = 8192
"""A line without an end is passed on in pieces of about this many bytes."""
CHUNK: Final = 1 << 20
MOST: Final = 64 << 20
"""Bytes read at a time: a rank that prints faster than that in one turn of the launcher's loop has a faster disk."""
LAST: Final = 64 << 10
"""The last bytes that a rank printed, this many, are always passed on: they have an error, or the result."""
GIVE_BACK: Final = 1 << 20
_PUNCH_HOLE_KEEP_SIZE: Final = 3
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Tail:
    """:param position: byte of the file to begin at; lines before it were shown by an earlier pod
    :param see: called with every line that is passed on, and with the last one of those that are not
    """

    def __init__(
        self,
        path: Path,
        prefix: str,
        out: BinaryIO,
        position: int = 0,
        see: Callable[[bytes], None] | None = None,
        rate: LogRate | None = None,
    ) -> None:
        self.path = path
        self.position = position
        self._prefix = prefix.encode()
        self._out = out
        self._see = see
        self._rate = rate or LogRate()
        self._rest = b""
        self._given_back = position - position % GIVE_BACK

    def pump(self, final: bool = False) -> int:
        """Copy what is new, at most `MOST` bytes unless `final`. Returns the number of bytes read.

        `final`: everything there is, including a last line without an end.
        """
        self._notice()
        total = self._copy(None if final else MOST, LAST if final else 0)
        if final:
            self._notice(final=True)
            self._rate = LogRate(0)
            total += self._copy(None, 0)
            if self._rest:
                self._line(self._rest)
                self._rest = b""
        self._give_back()
        self._out.flush()
        return total

    def _copy(self, most: int | None, leave: int) -> int:
        """Copy up to `most` bytes, but not the last `leave` bytes of the file."""
        total = 0
        try:
            with self.path.open("rb") as file:
                while most is None or total < most:
                    left = os.fstat(file.fileno()).st_size - leave - self.position
                    file.seek(self.position)
                    data = file.read(min(CHUNK, left)) if left > 0 else b""
                    if not data:
                        break
                    self.position += len(data)
                    total += len(data)
                    self._take(data)
        except FileNotFoundError:
            pass
        return total

    def _take(self, data: bytes) -> None:
        text, begin = self._rest + data, 0
        while (end := text.find(b"\n", begin)) >= 0:
            if not self._rate.take(end + 1 - begin + len(self._prefix)):
                begin = self._drop(text, begin)
                break
            self._line(text[begin:end])
            begin = end + 1
        self._rest = text[begin:]
        if len(self._rest) > LONGEST:
            if self._rate.take(len(self._rest)):
                self._line(self._rest)
            else:
                self._rate.drop(0, len(self._rest))
            self._rest = b""

    def _drop(self, text: bytes, begin: int) -> int:
        """All whole lines of `text` from `begin`; returns where the last one ends."""
        end = text.rfind(b"\n")
        self._rate.drop(text.count(b"\n", begin), end + 1 - begin)
        if self._see is not None:
            self._see(text[max(begin, text.rfind(b"\n", begin, end) + 1) : end])
        return end + 1

    def _notice(self, final: bool = False) -> None:
        said = self._rate.notice(final)
        if said:
            self._out.write(self._prefix + said.encode() + b"\n")

    def _line(self, line: bytes) -> None:
        self._out.write(self._prefix + line + b"\n")
        if self._see is not None:
            self._see(line)

    def _give_back(self) -> None:
        """A file system without this call keeps the blocks; that is no reason to stop."""
        size = (self.position - self._given_back) // GIVE_BACK * GIVE_BACK
        if size:
            try:
                with self.path.open("r+b") as file:
                    done = _fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, self._given_back, size)
            except OSError:
                return
            self._given_back += size if done == 0 else 0
