"""What a stream leaves to another pod of the job: it waits on the disk, compressed, until the store shows who has it.

Chunks wait in blocks. A block is compressed as one, because nobody reads a chunk of it alone. A block whose chunks the
store has by then is never read.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from ..errors import StoreError
from . import memory
from .chunking import LARGEST
from .draft import LEVEL

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK: Final = 256 << 10
"""Bytes of content; no more than one chunk goes over the edge."""
log = logging.getLogger(__name__)


@dataclass
class Block:
    """:param content: kept in memory, as the disk had no room; None: `size` bytes of the file, from `at`"""

    keys: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    at: int = 0
    size: int = 0
    content: bytes | None = None


class Spill:
    """A file without a name in `folder`, of at most `most` bytes."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._file: IO[bytes] | None = None
        self._size = 0
        self._room = memory.room(BLOCK + LARGEST)
        self._held = 0
        self._open = Block()
        self._compressor = zstd.ZstdCompressor(LEVEL)
        self.blocks: list[Block] = []
        self.full = most <= 0
        """Nothing more may wait."""

    def add(self, key: bytes, chunk: memoryview) -> None:
        """Only if it is not full."""
        self._room[self._held : self._held + len(chunk)] = chunk
        self._held += len(chunk)
        self._open.keys.append(key)
        self._open.sizes.append(len(chunk))
        if self._held >= BLOCK:
            self.flush()

    def flush(self) -> None:
        """Everything that was added is in `blocks`. What finds no room on the disk stays in memory, one block."""
        if not self._held:
            return
        block, self._open = self._open, Block()
        content, self._held = self._room[: self._held], 0
        data = self._compressor.compress(content, self._compressor.FLUSH_FRAME)
        if not self._written(data):
            self.full, block.content = True, bytes(content)
        block.at, block.size = self._size, len(data)
        if block.content is None:
            self._size += len(data)
        self.blocks.append(block)

    def _written(self, data: bytes) -> bool:
        if self._size + len(data) > self._most:
            return False
        try:
            if self._file is None:  # it outlives this call: `close`
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            rest, at = memoryview(data), self._size
            while rest:
                done = os.pwrite(self._file.fileno(), rest, at)
                rest, at = rest[done:], at + done
        except OSError as error:
            log.warning("pages that another pod stores first are stored here, too: %s", error)
            if self._file is not None:
                os.truncate(self._file.fileno(), self._size)  # others need the disk, too
            return False
        return True

    def read(self, block: Block) -> memoryview:
        """The chunks of a block, one after the other. Raises StoreError."""
        if block.content is not None:
            return memoryview(block.content)
        assert self._file is not None, "the block is in it"
        try:
            data = os.pread(self._file.fileno(), block.size, block.at)
            return memoryview(zstd.decompress(data))
        except (OSError, zstd.ZstdError) as error:
            raise StoreError(f"cannot read back what waited below {self._folder}: {error}") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
