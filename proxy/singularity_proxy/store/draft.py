"""A pack that is being filled. It is built in place, in the memory of its content, and that memory is reused for pack
after pack.

The first use of new memory costs more processor time than a digest of it. So the content stays in one place on its way
from the file to the store. Stored blocks are never longer than their content, so they move to the front. Encrypted ones
have a place of their own, which is reused, too.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from typing import Final

from . import memory, pack, sealing
from .chunking import DIGEST, DIGESTS, LARGEST

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL: Final = 1
WORTH: Final = 0.85
"""A block is stored compressed if that makes it smaller than this part of itself; a sample decides whether to try.
Weights shrink to 0.92, for 0.8 s of processor time per GB: that is not worth it."""
SAMPLE: Final = 4 << 10
SAMPLES: Final = 4
"""Pieces of a block that are tried together, and the bytes of each."""
_BEGIN: Final = pack.HEAD_SIZE
"""Where the blocks begin: the head is put right before them."""


class Draft:
    """Room for one pack. One thread at a time.

    `full` says when it has to be built: no more than one chunk (`LARGEST`) goes over the edge.

    :param seal_key: b"" for packs without a seal
    :param data_key: what they are encrypted with; None: they are not
    """

    def __init__(self, seal_key: bytes = b"", data_key: sealing.DataKey | None = None) -> None:
        self._seal_key, self._data_key = seal_key, data_key
        size = _BEGIN + pack.CONTENT_SIZE + LARGEST
        self._room = memory.room(size)
        # An encrypted block is longer than its content, and must not overlap it. So it is made where it stays.
        self._out = self._room if data_key is None else memory.room(size + pack.MOST_BLOCKS * sealing.TAG)
        self._compressor = zstd.ZstdCompressor(LEVEL)
        self._lengths = array("I")
        self.keys: list[bytes] = []
        self.size = 0
        """Bytes of content."""

    @property
    def full(self) -> bool:
        return self.size >= pack.CONTENT_SIZE or len(self.keys) == pack.MOST_CHUNKS

    def add(self, keys: Sequence[bytes], lengths: Sequence[int]) -> memoryview:
        """Where the caller puts the content of the next chunks, before anything else is called."""
        self.keys += keys
        self._lengths.extend(lengths)
        begin = _BEGIN + self.size
        self.size += sum(lengths)
        return self._room[begin : _BEGIN + self.size]

    def clear(self) -> None:
        """Nothing is in it any more."""
        self.keys, self._lengths, self.size = [], array("I"), 0

    def build(self) -> tuple[str, memoryview]:
        """sha256 of the head (hex) and bytes of the pack, until `clear`. The content is gone."""
        blocks: list[tuple[int, int, int, bytes]] = []
        read = write = _BEGIN
        seal = None if self._data_key is None else sealing.Draft(self._data_key)
        codec = pack.RAW
        for length in pack.block_lengths(self._lengths):
            # Like its neighbour: where that was worth it no sample is asked.
            codec, stored = self._compress(self._room[read : read + length], sampled=codec == pack.RAW)
            digest = b"" if codec == pack.RAW else DIGESTS[DIGEST](stored)
            blocks.append((len(stored), length, codec, digest))
            if seal is not None:
                stored = seal.cipher.encrypt_into(len(blocks), memoryview(stored), self._out[write:])
            end = write + len(stored)
            if seal is None and (write != read or codec != pack.RAW):
                self._out[write:end] = stored
            read, write = read + length, end
        head = pack.encode_head(self.keys, self._lengths, blocks, self._seal_key)
        if seal is not None:
            head = seal.begin(head)
        begin = _BEGIN - len(head)
        self._out[begin:_BEGIN] = head
        return hashlib.sha256(head).hexdigest(), self._out[begin:write]

    def _compress(self, content: memoryview, sampled: bool) -> tuple[int, bytes | memoryview]:
        if sampled:
            step = len(content) // SAMPLES
            sample = b"".join(content[at : at + SAMPLE] for at in range(step // 2, len(content), max(1, step)))
            if len(self._zstd(sample)) >= WORTH * len(sample):
                return pack.RAW, content
        packed = self._zstd(content)
        return (pack.ZSTD, packed) if len(packed) < WORTH * len(content) else (pack.RAW, content)

    def _zstd(self, data: bytes | memoryview) -> bytes:
        """One frame. The compressor's tables are large: to make them for each block would cost as much as a sample."""
        return self._compressor.compress(data, self._compressor.FLUSH_FRAME)
