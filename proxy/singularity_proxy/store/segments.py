"""Files in segments: some thousand chunks that follow each other, read at once."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from operator import sub
from pathlib import Path
from typing import Final

from ..errors import StoreError
from . import chunking, memory

READ_SIZE: Final = 4 << 20
"""Bytes."""
ROOM: Final = READ_SIZE + chunking.LARGEST
"""Bytes: one read, and before it the beginning of a chunk that the previous read did not complete."""


_AT_ONCE: Final = 4096
_ZEROS: Final = bytes(chunking.KEY_SIZE)


@dataclass(frozen=True)
class Chunks:
    """Chunks that follow each other. In columns, because a loop over pairs costs more than cutting."""

    keys: list[bytes] = field(default_factory=list)
    """b"" for zeros."""
    sizes: array[int] = field(default_factory=lambda: array("I"))
    """Bytes."""


class Packed:
    """Chunks of a whole file, for as long as its upload takes: 20 bytes of memory for each."""

    def __init__(self) -> None:
        self._keys = bytearray()
        self.sizes = array("I")

    def extend(self, chunks: Chunks) -> None:
        """Chunks that follow the others."""
        self._keys += b"".join([key or _ZEROS for key in chunks.keys])
        self.sizes.extend(chunks.sizes)

    def parts(self) -> Iterator[Chunks]:
        """All of them again, some thousand at a time."""
        view = memoryview(self._keys)
        for begin in range(0, len(self.sizes), _AT_ONCE):
            sizes = self.sizes[begin : begin + _AT_ONCE]
            at = begin * chunking.KEY_SIZE
            data = bytes(view[at : at + len(sizes) * chunking.KEY_SIZE])
            keys = (data[i : i + chunking.KEY_SIZE] for i in range(0, len(data), chunking.KEY_SIZE))
            yield Chunks([b"" if key == _ZEROS else key for key in keys], sizes)


def keyed(data: memoryview, ends: Sequence[int]) -> Chunks:
    """The chunks of `data` that end there, named by content."""
    return Chunks(chunking.keys_of(data, ends), array("I", map(sub, ends, [0, *ends])))


def read(opened: int, path: Path, check: Callable[[], None]) -> Iterator[tuple[Chunks, memoryview]]:
    """All chunks of a file, and their content, which is there until the next ones are asked for.

    :param opened: its descriptor, which is closed in the end
    :param path: its name for error messages
    :param check: called before every read
    :raises StoreError: it cannot be read
    """
    # One buffer for the whole file: the first use of new memory costs more than the work on it.
    room = memory.room(ROOM)
    try:
        with open(opened, "rb", buffering=0) as file:
            yield from _cut(_Source(file), room, check)
    except OSError as error:
        raise StoreError(f"cannot read image file {path}: {error}") from error


class _Source:
    """A file that is read once. What was not in the page cache before does not stay there: new memory for it costs more
    processor time than all the work on it."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._drops = _is_cold(file.fileno())

    def readinto(self, room: memoryview) -> int:
        """Bytes read, 0 at the end. Raises OSError."""
        count = self._file.readinto(room)
        if self._drops and count:
            end = self._file.tell()
            os.posix_fadvise(self._file.fileno(), end - count, count, os.POSIX_FADV_DONTNEED)
        return count


def _is_cold(file: int) -> bool:
    """Whether the file's first byte is on the disk alone."""
    try:
        os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # the file system does not say
        pass
    return False


def _cut(source: _Source, room: memoryview, check: Callable[[], None]) -> Iterator[tuple[Chunks, memoryview]]:
    """The chunks of the rest of a file. Raises OSError."""
    rest = 0
    while True:
        check()
        count = source.readinto(room[rest : rest + READ_SIZE])
        text = room[: rest + count]
        ends = chunking.ends(text, not count)
        end = ends[-1] if ends else 0
        yield keyed(text, ends), text[:end]
        rest = len(text) - end
        room[:rest] = text[end:]
        if not count:
            return
