"""Memory images of a dump, written in CRIU's place, without the pages that a process has in common with its base.

A loader worker is a copy of the rank that forked it, and nearly all of its pages are still its parent's. CRIU writes
each process whole. Here a page is left out where the base, a relative, has the same bytes at the same address. Bytes
are compared, not page frames: a page that moves, or that the kernel merges, cannot deceive us. Compaction, huge pages,
KSM, and NUMA balancing change which frame holds the bytes. None of them changes a byte that a process reads.

The bytes of the base are read from its memory, so no disk has to keep them for the comparison. CRIU has stopped the
whole family before the first page, and has left the base before it enters the next process. So the memory of the base
is what was sent of it. What cannot be read is not equal: then the page is written, and nothing is lost but room.

    pagemap-PID.img    entries IN_PARENT for what the base has, PRESENT for the rest
    pages-N.img        content of the latter, in order
    shared.json        PID -> PID of its base, for images with entries of the first kind

CRIU looks pages IN_PARENT up in the folder `parent`, for incremental dumps. `shared_pages` makes that folder at the
restore: the store takes no links.
"""

from __future__ import annotations

import bisect
import ctypes
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from . import protobuf
from .page_disk import PageDisk
from .page_sink import PageSink
from .page_stream import BLOCK, IN_PARENT, LAZY, PAGE, PROCESS, Entry
from .protobuf import VARINT, Field
from .relative_memory import RelativeMemory

SHARED: Final = "shared.json"
BEGIN: Final = protobuf.magic(0x56084025)
"""Of a pagemap image."""
HEAD_PAGES_ID: Final = 1
ADDRESS, OLD_PAGES, FLAGS, PAGES = 1, 2, 4, 5
"""Fields of pagemap_entry. The second is required, and not used where the last is there."""
FIRST_ID: Final = 0x10001
"""Of the files of pages. Those that CRIU numbers itself begin with 1."""
_COARSE: Final = 16 * PAGE
"""Bytes that are compared first: most of a block is equal, or most is not."""
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class PageImage:
    """Pages of one process or one shared memory segment.

    :param base: of the same family, and complete
    :param sink: gets the content
    :param memory: of the process; None: nobody may read it. Closed here
    """

    def __init__(
        self,
        folder: Path,
        kind: int,
        number: int,
        pages_id: int,
        sink: PageSink | PageDisk,
        base: PageImage | None = None,
        memory: RelativeMemory | None = None,
    ) -> None:
        self.kind, self.number, self.pages_id, self.base = kind, number, pages_id, base
        self.memory = memory
        self.name = f"pagemap-{number}.img" if kind == PROCESS else f"pagemap-shmem-{number}.img"
        self.shared = 0
        """Pages that are left out."""
        self._folder = folder
        self._comparison: Comparison = base._comparison if base is not None else Comparison()
        self._entries: list[Entry] = []
        self._sink = sink
        sink.open(pages_id)
        self._starts: list[int] = []
        self._ends: list[int] = []
        """Of the addresses whose content came, ascending."""

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()

    def add(self, entry: Entry) -> None:
        """An entry without content."""
        if self._entries:
            last = self._entries[-1]
            if last.flags == entry.flags and last.address + last.pages * PAGE == entry.address:
                self._entries[-1] = Entry(last.address, last.pages + entry.pages, last.flags)
                return
        self._entries.append(entry)

    def take(self, address: int, content: memoryview, flags: int) -> None:
        """Whole pages of content. Raises OSError: they cannot be written."""
        at = 0
        for equal, size in self._compared(address, content):
            part = address + at
            if equal:
                self.add(Entry(part, size // PAGE, flags & LAZY | IN_PARENT))
                self.shared += size // PAGE
            else:
                self.add(Entry(part, size // PAGE, flags))
                self._sink.write(self.pages_id, content[at : at + size])
            at += size
        self._cover(address, len(content))

    def write_pagemap(self) -> None:
        head = protobuf.encode([Field(HEAD_PAGES_ID, VARINT, self.pages_id)])
        (self._folder / self.name).write_bytes(protobuf.image(BEGIN, [head, *map(_message, self._entries)]))

    def _compared(self, address: int, content: memoryview) -> Iterator[tuple[bool, int]]:
        """Runs of (the base has the same, bytes) that make up the content."""
        if self.base is None or self.base.memory is None:
            yield False, len(content)
            return
        at = 0
        for start, end in self.base.covered(address, address + len(content)):
            if start > address + at:
                yield False, start - address - at
            at = end - address
            yield from self._comparison.runs(content[start - address : at], self.base.memory, start)
        if at < len(content):
            yield False, len(content) - at

    def covered(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Addresses between two whose content came: (from, to), ascending, gaps left out."""
        for index in range(max(bisect.bisect_right(self._starts, begin) - 1, 0), len(self._starts)):
            if self._starts[index] >= end:
                return
            low, high = max(self._starts[index], begin), min(self._ends[index], end)
            if low < high:
                yield low, high

    def _cover(self, address: int, size: int) -> None:
        if self._ends and address < self._ends[-1]:
            return  # CRIU's entries ascend; of others nothing is shared
        if self._ends and address == self._ends[-1]:
            self._ends[-1] = address + size
            return
        self._starts.append(address)
        self._ends.append(address + size)


class Comparison:
    """Compares content with the memory of a process. Its buffer is made once: fresh buffers would cost more than the
    comparison."""

    def __init__(self) -> None:
        self._theirs = memoryview(bytearray(BLOCK))
        self._at = _address(self._theirs)

    def runs(self, mine: memoryview, memory: RelativeMemory, address: int) -> Iterator[tuple[bool, int]]:
        """(equal, bytes) of whole pages that follow each other and are equal, or are not."""
        size = len(mine)
        if not memory.read(self._theirs[:size], address):
            yield False, size
            return
        here = _address(mine)
        if self._same(here, 0, size):
            yield True, size
            return
        before, length = False, 0
        for equal, part in self._pages(here, size):
            if length and equal != before:
                yield before, length
                length = 0
            before, length = equal, length + part
        yield before, length

    def _pages(self, here: int, size: int) -> Iterator[tuple[bool, int]]:
        for coarse in range(0, size, _COARSE):
            most = min(_COARSE, size - coarse)
            if self._same(here, coarse, most):
                yield True, most
                continue
            for at in range(coarse, coarse + most, PAGE):
                yield self._same(here, at, PAGE), PAGE

    def _same(self, here: int, at: int, size: int) -> bool:
        return bool(_memcmp(here + at, self._at + at, size) == 0)


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def write_shared(folder: Path, images: Iterable[PageImage]) -> None:
    """What `shared_pages` needs."""
    found = {str(image.number): image.base.number for image in images if image.shared and image.base}
    (folder / SHARED).write_text(json.dumps(found))


def _message(entry: Entry) -> bytes:
    numbers = ((ADDRESS, entry.address), (OLD_PAGES, 0), (FLAGS, entry.flags), (PAGES, entry.pages))
    return protobuf.encode(Field(number, VARINT, value) for number, value in numbers)
