"""Where files are cut into chunks: pure functions, no I/O.

Cut by file offset. CRIU's page images keep their layout between two dumps of one process well enough that unchanged
pages fall on the same offsets; a content-defined chunker can replace `cuts` without touching anything else, because a
manifest lists every chunk with its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

CHUNK_SIZE: Final = 1 << 20
"""Bytes."""


def cuts(size: int, chunk_size: int = CHUNK_SIZE) -> Iterator[tuple[int, int]]:
    """`(offset, length)` of every chunk of a file of `size` bytes, in order; none for an empty file."""
    if size < 0 or chunk_size < 1:
        raise ValueError(f"size = {size}, chunk_size = {chunk_size}: want size >= 0 and chunk_size >= 1")
    for offset in range(0, size, chunk_size):
        yield offset, min(chunk_size, size - offset)


def digest_of(data: bytes) -> str:
    """Lower-case hex sha256."""
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=64)
def zero_digest(size: int) -> str:
    """Digest of `size` zero bytes: such a chunk need not be fetched, a hole in the file is the same content."""
    return digest_of(bytes(size))
