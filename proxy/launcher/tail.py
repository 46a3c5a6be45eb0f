"""A rank's log file, copied line by line to the container's stdout with a prefix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LONGEST = 8192
"""A line without an end is passed on in pieces of about this many bytes."""
CHUNK = 1 << 20


class Tail:
    """:param position: byte of the file to begin at; lines before it were shown by an earlier pod
    :param see: called with every line
    """

    def __init__(
        self, path: Path, prefix: str, out: BinaryIO, position: int = 0, see: Callable[[bytes], None] | None = None
    ) -> None:
        self.path = path
        self.position = position
        self._prefix = prefix.encode()
        self._out = out
        self._see = see
        self._rest = b""

    def pump(self, final: bool = False) -> int:
        """Copy what is new, at most `CHUNK` bytes unless `final`. Returns the number of bytes read.

        `final`: everything there is, including a last line without an end.
        """
        total = 0
        while True:
            data = self._read()
            total += len(data)
            self._emit(data)
            if not final or not data:
                break
        if final and self._rest:
            self._line(self._rest)
            self._rest = b""
        self._out.flush()
        return total

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                data = file.read(CHUNK)
        except FileNotFoundError:
            return b""
        self.position += len(data)
        return data

    def _emit(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > LONGEST:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> None:
        self._out.write(self._prefix + line + b"\n")
        if self._see is not None:
            self._see(line)
