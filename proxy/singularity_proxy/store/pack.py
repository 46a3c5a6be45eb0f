"""The pack: some thousand chunks in one object, known by the sha256 of its head. Pure functions, no I/O.

    head   magic, number of chunks, number of blocks, name of the digest of its content, seal
           per block: bytes stored, bytes of content, codec, digest of the stored bytes if they are compressed
           per chunk: key (16 bytes of the digest of its content), length
    data   the blocks; a chunk lies in one block

The name verifies the head, and the head verifies every block: a compressed one by its digest, so nothing unverified
reaches the decompressor, and each by the keys of its chunks. So a part of a pack can be read and verified alone.

Uploads find chunks by their keys. Whoever may write to the store can make a pack whose head and blocks fit each other.
So the content of each chunk is compared with its key where it is used. The seal is a MAC of the head by a key that only
the pods of one attempt have (`trust`).

An encrypted pack is a `sealing` object. The head is its first part, and each block is a part. The name is the sha256 of
the head as it is stored.

Packs of version 2 are read, too. They have neither name of a digest nor seal: theirs is sha256, also of blocks that are
not compressed.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from . import sealing
from .chunking import DIGEST, DIGESTS, KEY_SIZE, LARGEST

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CONTENT_SIZE: Final = 8 << 20
"""Bytes of content after which a pack is closed."""
MOST_CHUNKS: Final = 8192
BLOCK_SIZE: Final = 256 << 10
"""Bytes of content after which a block is closed."""
_MAGIC: Final = b"SGPACK\x00\x03"
_START: Final = struct.Struct("<8sII16s32s")
_SEAL: Final = slice(_START.size - 32, _START.size)
_MAGIC_2: Final = b"SGPACK\x00\x02"
_START_2: Final = struct.Struct("<8sII")
_BLOCK: Final = struct.Struct("<IIB32s")
_LENGTH: Final = 4
MOST_BLOCKS: Final = (CONTENT_SIZE + LARGEST) // BLOCK_SIZE + 2
HEAD_SIZE: Final = _START.size + MOST_BLOCKS * _BLOCK.size + MOST_CHUNKS * (KEY_SIZE + _LENGTH) + sealing.OVERHEAD
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
    digest: bytes


@dataclass(frozen=True)
class Head:
    """`starts[i]` is where chunk i begins in the content; one more entry for its end."""

    keys: list[bytes]
    starts: list[int]
    blocks: list[Block]
    size: int
    """Bytes of the whole pack."""
    digest: str
    """Name of the digest of its content, one of `DIGESTS`."""
    old: bool = False
    """Of version 2."""
    cipher: sealing.Cipher | None = None
    """Of its blocks."""

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


def encode_head(
    keys: Sequence[bytes], lengths: array[int], blocks: Sequence[tuple[int, int, int, bytes]], seal_key: bytes = b""
) -> bytes:
    """The head of a pack.

    :param blocks: bytes stored, bytes of content, codec, digest (of `RAW` nothing)
    :param seal_key: b"" for a pack without a seal
    """
    if sys.byteorder == "big":
        lengths = array("I", lengths)
        lengths.byteswap()
    start = _START.pack(_MAGIC, len(keys), len(blocks), DIGEST.encode(), b"")
    head = bytearray().join((start, *(_BLOCK.pack(*block) for block in blocks), *keys, lengths.tobytes()))
    if seal_key:
        head[_SEAL] = _seal(seal_key, head)
    return bytes(head)


def is_sealed(head: bytes, seal_key: bytes) -> bool:
    """Whether this head, which may be followed by anything, has the seal by this key. It need not be a valid head."""
    if head[: len(_MAGIC)] != _MAGIC or len(head) < _START.size:
        return False
    found = bytearray(head[: head_size(head)])
    seal = bytes(found[_SEAL])
    found[_SEAL] = bytes(len(seal))
    return hmac.compare_digest(seal, _seal(seal_key, found))


def _seal(key: bytes, head: bytearray) -> bytes:
    """Of a head in whose place there are zeros."""
    return hmac.digest(key, b"pack" + head, hashlib.sha256)


def plain_head(data: bytes, key_of: sealing.KeyOf) -> bytes:
    """The head that `data` begins with, decrypted; not verified. More may follow. Raises PackError, StoreError."""
    try:
        return sealing.opened(data, key_of)[0]
    except sealing.SealError as error:
        raise PackError(str(error)) from None


def read_head(digest: str, data: bytes | memoryview, key_of: sealing.KeyOf = sealing.no_key) -> Head:
    """Parse and verify the head with this sha256 (hex); `data` holds at least the head.

    Raises PackError, and StoreError where the data key is not to be had.
    """
    if not sealing.key_id(data):
        return _parsed(digest, data)
    end = sealing.begin_size(data)
    if len(data) < end or end > HEAD_SIZE:
        raise PackError("does not begin like a pack of this version")
    if hashlib.sha256(memoryview(data)[:end]).hexdigest() != digest:
        raise PackError("does not match its digest")
    try:
        first, cipher = sealing.opened(bytes(data[:end]), key_of)
    except sealing.SealError as error:
        raise PackError(str(error)) from None
    return _parsed(None, first, end, cipher)


def _parsed(digest: str | None, data: bytes | memoryview, at: int = 0, cipher: sealing.Cipher | None = None) -> Head:
    """:param at: where the blocks begin, if not after the head. Raises PackError."""
    more_each = 0 if cipher is None else sealing.TAG
    old = data[: len(_MAGIC_2)] == _MAGIC_2
    start = _START_2 if old else _START
    if len(data) < start.size:
        raise PackError(f"has only {len(data)} bytes")
    magic, count, blocks, *more = start.unpack_from(data)
    end = start.size + blocks * _BLOCK.size + count * (KEY_SIZE + _LENGTH)
    if magic not in (_MAGIC, _MAGIC_2) or count > MOST_CHUNKS or blocks > MOST_BLOCKS or len(data) < end:
        raise PackError("does not begin like a pack of this version")
    if digest is not None and hashlib.sha256(memoryview(data)[:end]).hexdigest() != digest:
        raise PackError("does not match its digest")
    named = "sha256" if old else more[0].rstrip(b"\0").decode(errors="replace")
    if named not in DIGESTS:
        raise PackError(f"names its content by {named!r}, which this build does not know: use the one that wrote it")
    keys_at = start.size + blocks * _BLOCK.size
    lengths_at = keys_at + count * KEY_SIZE
    keys = [bytes(data[i : i + KEY_SIZE]) for i in range(keys_at, lengths_at, KEY_SIZE)]
    lengths = struct.unpack_from(f"<{count}I", data, lengths_at)
    table, offset, begin = [], at or end, 0
    for stored, length, codec, digest_of in _BLOCK.iter_unpack(memoryview(data)[start.size : keys_at]):
        table.append(Block(offset, stored + more_each, begin, length, codec, digest_of))
        offset, begin = table[-1].offset + table[-1].stored, begin + length
    starts = list(accumulate(lengths, initial=0))
    edges = {block.begin for block in table}
    if starts[-1] != begin or begin > CONTENT_SIZE + LARGEST or not edges.issubset(starts):
        raise PackError("has a head that contradicts itself")
    return Head(keys, starts, table, offset, named, old, cipher)


def head_size(data: bytes | memoryview) -> int:
    """Bytes of the head that begins with `data`, which may be cut; not verified."""
    if len(data) < _START.size:
        return HEAD_SIZE
    if sealing.key_id(data):
        return min(sealing.begin_size(data), HEAD_SIZE)
    start = _START_2 if data[: len(_MAGIC_2)] == _MAGIC_2 else _START
    count: int
    blocks: int
    _, count, blocks, *_ = start.unpack_from(data)
    return min(start.size + blocks * _BLOCK.size + count * (KEY_SIZE + _LENGTH), HEAD_SIZE)


def block_at(head: Head, at: int) -> int:
    """Number of the block that holds content byte `at`."""
    return bisect_right(head.blocks, at, key=lambda b: b.begin) - 1


def read_block(head: Head, number: int, data: bytes | memoryview, base: int = 0) -> memoryview:
    """Verified content of a block; `data` is the pack from byte `base` on, and a raw block is a part of it. Raises
    PackError."""
    block = head.blocks[number]
    stored = memoryview(data)[block.offset - base : block.offset - base + block.stored]
    if head.cipher is not None:
        try:
            stored = memoryview(head.cipher.decrypt(number + 1, stored))
        except sealing.SealError as error:
            raise PackError(f"{error} (bytes {block.offset} to {block.offset + block.stored})") from None
    if block.codec == RAW:
        content = stored  # the keys of its chunks verify each byte of it: one look is enough
    else:
        _check_digest(head, block, stored)
        try:
            content = memoryview(zstd.ZstdDecompressor().decompress(stored, max_length=block.length + 1))
        except zstd.ZstdError as error:
            raise PackError(f"cannot be decompressed: {error}") from None
    wrong = _wrong_chunk(head, block, content)
    if wrong is not None:
        if head.old:
            _check_digest(head, block, stored)  # altered on the way, and not made like this
        raise PackError(f"has chunk {wrong} of other content than its key {head.keys[wrong].hex()} says")
    if len(content) != block.length:
        raise PackError("has a block of another length than its head says")
    return content


def _check_digest(head: Head, block: Block, stored: memoryview) -> None:
    """Raises PackError."""
    if DIGESTS[head.digest](stored) != block.digest:
        raise PackError(f"does not match its digest (bytes {block.offset} to {block.offset + block.stored})")


def _wrong_chunk(head: Head, block: Block, content: memoryview) -> int | None:
    """Number of the first chunk of the block that is not what its key says."""
    digest = DIGESTS[head.digest]
    first = bisect_left(head.starts, block.begin)
    last = bisect_left(head.starts, block.begin + block.length, first)
    at = 0
    for chunk in range(first, last):
        end = head.starts[chunk + 1] - block.begin
        if digest(content[at:end])[:KEY_SIZE] != head.keys[chunk]:
            return chunk
        at = end
    return None
