"""The pack: some thousand chunks in one object, known by the sha256 of its head. Pure functions, no I/O.

    head   magic, number of chunks, number of blocks
           per block: bytes stored, bytes of content, codec, sha256 of the stored bytes
           per chunk: key (16 bytes), length
    data   the blocks; a chunk lies in one block

The digest verifies the head, and the head verifies every block. So a part of a pack can be read and verified alone, and
nothing unverified reaches the decompressor.

Uploads find chunks by their keys, in any pack of the job. Whoever may write to the store can make a pack whose head and
blocks fit each other. So the content of each chunk is compared with its key as well.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from .chunking import KEY_SIZE, LARGEST

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CONTENT_SIZE: Final = 8 << 20
"""Bytes of content after which a pack is closed."""
MOST_CHUNKS: Final = 8192
BLOCK_SIZE: Final = 256 << 10
"""Bytes of content after which a block is closed."""
_MAGIC: Final = b"SGPACK\x00\x02"
_START: Final = struct.Struct("<8sII")
_BLOCK: Final = struct.Struct("<IIB32s")
_LENGTH: Final = 4
_MOST_BLOCKS: Final = (CONTENT_SIZE + LARGEST) // BLOCK_SIZE + 2
HEAD_SIZE: Final = _START.size + _MOST_BLOCKS * _BLOCK.size + MOST_CHUNKS * (KEY_SIZE + _LENGTH)
"""Bytes: no head is longer."""
RAW, ZSTD = 0, 1


class PackError(ValueError):
    """The bytes are not the requested pack. The message ends a sentence that begins with the pack's name."""


@dataclass(frozen=True)
class Block:
    offset: int
    """In the pack."""
    stored: int
    begin: int
    """In the content."""
    length: int
    codec: int
    sha256: bytes


@dataclass(frozen=True)
class Head:
    """`starts[i]` is where chunk i begins in the content; one more entry for its end."""

    keys: list[bytes]
    starts: list[int]
    blocks: list[Block]
    size: int
    """Bytes of the whole pack."""

    def span(self, first: int, count: int) -> tuple[int, int]:
        """Where `count` chunks from number `first` lie in the content. Raises PackError."""
        if first < 0 or count < 1 or first + count > len(self.keys):
            raise PackError(f"has no chunks {first} to {first + count - 1}, only {len(self.keys)}")
        return self.starts[first], self.starts[first + count]


def block_lengths(lengths: Iterable[int]) -> list[int]:
    """Bytes of content of each block, of chunks of these lengths."""
    found: list[int] = []
    size = 0
    for length in lengths:
        size += length
        if size >= BLOCK_SIZE:
            found.append(size)
            size = 0
    return [*found, size] if size else found


def encode_head(keys: Sequence[bytes], lengths: array[int], blocks: Sequence[tuple[int, int, int, bytes]]) -> bytes:
    """The head of a pack; a block is (bytes stored, bytes of content, codec, sha256)."""
    if sys.byteorder == "big":
        lengths = array("I", lengths)
        lengths.byteswap()
    start = _START.pack(_MAGIC, len(keys), len(blocks))
    return b"".join((start, *(_BLOCK.pack(*block) for block in blocks), *keys, lengths.tobytes()))


def read_head(digest: str, data: bytes) -> Head:
    """Parse and verify the head with this sha256 (hex); `data` holds at least the head. Raises PackError."""
    if len(data) < _START.size:
        raise PackError(f"has only {len(data)} bytes")
    magic, count, blocks = _START.unpack_from(data)
    end = _START.size + blocks * _BLOCK.size + count * (KEY_SIZE + _LENGTH)
    if magic != _MAGIC or count > MOST_CHUNKS or blocks > _MOST_BLOCKS or len(data) < end:
        raise PackError("does not begin like a pack of this version")
    if hashlib.sha256(memoryview(data)[:end]).hexdigest() != digest:
        raise PackError("does not match its digest")
    keys_at = _START.size + blocks * _BLOCK.size
    lengths_at = keys_at + count * KEY_SIZE
    keys = [data[i : i + KEY_SIZE] for i in range(keys_at, lengths_at, KEY_SIZE)]
    lengths = struct.unpack_from(f"<{count}I", data, lengths_at)
    table, offset, begin = [], end, 0
    for stored, length, codec, sha256 in _BLOCK.iter_unpack(memoryview(data)[_START.size : keys_at]):
        table.append(Block(offset, stored, begin, length, codec, sha256))
        offset, begin = offset + stored, begin + length
    starts = list(accumulate(lengths, initial=0))
    edges = {block.begin for block in table}
    if starts[-1] != begin or begin > CONTENT_SIZE + LARGEST or not edges.issubset(starts):
        raise PackError("has a head that contradicts itself")
    return Head(keys, starts, table, offset)


def head_size(data: bytes) -> int:
    """Bytes of the head that begins with `data`, which may be cut; not verified."""
    if len(data) < _START.size:
        return HEAD_SIZE
    count: int
    blocks: int
    _, count, blocks = _START.unpack_from(data)
    return min(_START.size + blocks * _BLOCK.size + count * (KEY_SIZE + _LENGTH), HEAD_SIZE)


def block_at(head: Head, at: int) -> int:
    """Number of the block that holds content byte `at`."""
    return bisect_right(head.blocks, at, key=lambda b: b.begin) - 1


def read_block(head: Head, number: int, data: bytes, base: int = 0) -> bytes:
    """Verified content of a block; `data` is the pack from byte `base` on. Raises PackError."""
    block = head.blocks[number]
    stored = data[block.offset - base : block.offset - base + block.stored]
    if block.codec == RAW:
        content = stored  # the keys of its chunks verify each byte of it, too: one look is enough
    else:
        _check_digest(block, stored)
        try:
            content = zstd.ZstdDecompressor().decompress(stored, max_length=block.length + 1)
        except zstd.ZstdError as error:
            raise PackError(f"cannot be decompressed: {error}") from None
    wrong = _wrong_chunk(head, block, content)
    if wrong is not None:
        _check_digest(block, stored)  # altered on the way, and not made like this
        raise PackError(f"has chunk {wrong} of other content than its key {head.keys[wrong].hex()} says")
    if len(content) != block.length:
        raise PackError("has a block of another length than its head says")
    return content


def _check_digest(block: Block, stored: bytes) -> None:
    """Raises PackError."""
    if hashlib.sha256(stored).digest() != block.sha256:
        raise PackError(f"does not match its digest (bytes {block.offset} to {block.offset + block.stored})")


def _wrong_chunk(head: Head, block: Block, content: bytes) -> int | None:
    """Number of the first chunk of the block that is not what its key says."""
    view, sha256 = memoryview(content), hashlib.sha256
    first = bisect_left(head.starts, block.begin)
    last = bisect_left(head.starts, block.begin + block.length, first)
    at = 0
    for chunk in range(first, last):
        end = head.starts[chunk + 1] - block.begin
        if sha256(view[at:end]).digest()[:KEY_SIZE] != head.keys[chunk]:
            return chunk
        at = end
    return None
