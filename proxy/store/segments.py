"""Files in segments: some thousand grains that follow each other, read at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import StoreError
from . import chunking

READ_SIZE: Final = 4 << 20
"""Bytes."""
Grains = list[tuple[bytes, int]]
"""Of each its key, b"" for zeros, and its length in bytes."""


@dataclass(frozen=True)
class Segment:
    """The grains of `size` bytes with this sha256."""

    size: int
    sha256: bytes
    grains: Grains


def pieces(data: bytes, final: bool) -> list[bytes]:
    """The whole grains that `data` begins with; all of it if it is the end of a file (`final`)."""
    ends = chunking.ends(data, final)
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def keyed(found: Sequence[bytes]) -> Grains:
    """What `pieces` has found, named by content."""
    return [(b"" if chunking.is_zero(grain) else chunking.key_of(grain), len(grain)) for grain in found]


def read(opened: int, path: Path, seen: Sequence[Segment], check: Callable[[], None]) -> Iterator[Grains]:
    """All grains of a file.

    :param opened: its descriptor, which is closed in the end
    :param path: what it is called
    :param seen: what somebody has found at its beginning before. It is taken over as far as the bytes are the same,
        which costs a digest of them, a fifth of what cutting and naming cost.
    :param check: called before every read
    :raises StoreError: it cannot be read
    """
    try:
        with open(opened, "rb", buffering=0) as source:
            for segment in seen:
                check()
                data = source.read(segment.size)
                if hashlib.sha256(data).digest() != segment.sha256:
                    source.seek(-len(data), 1)
                    break
                yield segment.grains
            rest = b""
            while True:
                check()
                data = source.read(READ_SIZE)
                text = rest + data
                found = pieces(text, not data)
                yield keyed(found)
                rest = text[sum(map(len, found)) :]
                if not data:
                    return
    except OSError as error:
        raise StoreError(f"cannot read image file {path}: {error}") from error
