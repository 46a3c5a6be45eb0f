"""Files in segments: some thousand grains that follow each other, read at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from ..errors import StoreError
from . import chunking, memory

READ_SIZE: Final = 4 << 20
"""Bytes."""
ROOM: Final = READ_SIZE + chunking.LARGEST
"""Bytes: a read, and before it the begin of a grain that the read before did not end."""
Grains = list[tuple[bytes, int]]
"""Of each its key, b"" for zeros, and its length in bytes."""


@dataclass(frozen=True)
class Segment:
    """The grains of `size` bytes with this sha256."""

    size: int
    sha256: bytes
    grains: Grains


def keyed(data: memoryview, ends: Sequence[int]) -> Grains:
    """The grains of `data` that end there, named by content."""
    found: Grains = []
    begin = 0
    for end in ends:
        grain = data[begin:end]
        found.append((b"" if chunking.is_zero(grain) else chunking.key_of(grain), end - begin))
        begin = end
    return found


def read(opened: int, path: Path, seen: Sequence[Segment], check: Callable[[], None]) -> Iterator[Grains]:
    """All grains of a file.

    :param opened: its descriptor, which is closed in the end
    :param path: what it is called
    :param seen: what somebody has found at its beginning before. It is taken over as far as the bytes are the same,
        which costs a digest of them, two thirds of what cutting and naming cost.
    :param check: called before every read
    :raises StoreError: it cannot be read
    """
    # One buffer for the whole file: memory that is new to the process costs more than what is done with it.
    room = memory.room(ROOM)
    try:
        with open(opened, "rb", buffering=0) as source:
            for segment in seen:
                check()
                data = room[: source.readinto(room[: segment.size])]
                if hashlib.sha256(data).digest() != segment.sha256:
                    source.seek(-len(data), 1)
                    break
                yield segment.grains
            yield from _cut(source, room, check)
    except OSError as error:
        raise StoreError(f"cannot read image file {path}: {error}") from error


def _cut(source: FileIO, room: memoryview, check: Callable[[], None]) -> Iterator[Grains]:
    """The grains of the rest of a file. Raises OSError."""
    rest = 0
    while True:
        check()
        count = source.readinto(room[rest : rest + READ_SIZE])
        text = room[: rest + count]
        ends = chunking.ends(text, not count)
        yield keyed(text, ends)
        end = ends[-1] if ends else 0
        rest = len(text) - end
        room[:rest] = text[end:]
        if not count:
            return
