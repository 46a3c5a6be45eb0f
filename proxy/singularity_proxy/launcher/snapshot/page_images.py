"""Memory images of a dump, written in CRIU's place, without the pages that a process has in common with its base.

A loader worker is a copy of the rank that forked it, and nearly all of its pages are still its parent's. CRIU writes
each process whole. Here a page is left out where the base, a relative, has the same page at the same address, or one
with the same bytes. The first is seen without a look at the bytes (`page_frames`). For the rest bytes are compared.

The bytes of the base are read from its memory, so no disk has to keep them for the comparison. CRIU has stopped the
whole family before the first page, and has left the base before it enters the next process. So the memory of the base
is what was sent of it, but for pages that the kernel has taken from it since (`relative_memory.lazily_freed`): there
zeroes prove nothing. What cannot be read is not equal: then the page is written, and nothing is lost but room.

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

from . import page_frames, protobuf
from .page_disk import PageDisk
from .page_frames import PageFrames
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
    :param frames: of its pages; None: they are hidden. Closed here
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
        frames: PageFrames | None = None,
    ) -> None:
        self.kind, self.number, self.pages_id, self.base = kind, number, pages_id, base
        self.memory, self.frames = memory, frames
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
        for file in (self.memory, self.frames):
            if file is not None:
                file.close()

    def add(self, entry: Entry) -> None:
        """An entry without content."""
        if self._entries:
            last = self._entries[-1]
            if last.flags == entry.flags and last.address + last.pages * PAGE == entry.address:
                self._entries[-1] = Entry(last.address, last.pages + entry.pages, last.flags)
                return
        self._entries.append(entry)

    def look(self, address: int, size: int) -> Iterator[tuple[bool, int]]:
        """Runs of (the base has these very pages, bytes) that make up `size`. To be called before they are taken."""
        theirs = self.base.frames if self.base is not None else None
        memory = self.base.memory if self.base is not None else None
        for known, at, part in self._parts(address, size):
            sure = known and (memory is None or not memory.may_vanish(at, part))  # a huge page of zeroes has a frame
            if sure and self.frames is not None and theirs is not None:
                yield from page_frames.shared(self.frames, theirs, at, part)
            else:
                yield False, part

    def leave_out(self, address: int, size: int, flags: int) -> None:
        """Pages that the base has."""
        self.add(Entry(address, size // PAGE, flags & LAZY | IN_PARENT))
        self.shared += size // PAGE
        self._cover(address, size)

    def take(self, address: int, content: memoryview, flags: int) -> None:
        """Whole pages of content. Raises OSError: they cannot be written."""
        at = 0
        for equal, size in self._compared(address, content):
            part = address + at
            if equal:
                self.leave_out(part, size, flags)
            else:
                self.add(Entry(part, size // PAGE, flags))
                self._sink.write(self.pages_id, content[at : at + size])
                self._cover(part, size)
            at += size

    def write_pagemap(self) -> None:
        head = protobuf.encode([Field(HEAD_PAGES_ID, VARINT, self.pages_id)])
        (self._folder / self.name).write_bytes(protobuf.image(BEGIN, [head, *map(_message, self._entries)]))

    def _compared(self, address: int, content: memoryview) -> Iterator[tuple[bool, int]]:
        """Runs of (the base has the same, bytes) that make up the content."""
        memory = self.base.memory if self.base is not None else None
        for known, at, size in self._parts(address, len(content)):
            if not known or memory is None:
                yield False, size
                continue
            mine = content[at - address : at - address + size]
            for begin in range(0, size, BLOCK):  # as long as the buffer of the comparison
                yield from self._comparison.runs(mine[begin : begin + BLOCK], memory, at + begin)

    def _parts(self, address: int, size: int) -> Iterator[tuple[bool, int, int]]:
        """(content of these addresses came for the base, address, bytes)"""
        at, end = address, address + size
        for low, high in self.base.covered(at, end) if self.base is not None else ():
            if low > at:
                yield False, at, low - at
            yield True, low, high - low
            at = high
        if at < end:
            yield False, at, end - at

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
        self._theirs, self._zero_page = memoryview(bytearray(BLOCK)), memoryview(bytearray(PAGE))
        self._at, self._zeroes = _address(self._theirs), _address(self._zero_page)

    def runs(self, mine: memoryview, memory: RelativeMemory, address: int) -> Iterator[tuple[bool, int]]:
        """(equal, bytes) of whole pages that follow each other and are equal, or are not; BLOCK at most."""
        size = len(mine)
        assert size <= BLOCK, size  # memcmp would go on behind the buffer
        if not memory.read(self._theirs[:size], address):
            yield False, size
            return
        here = _address(mine)
        doubtful = memory.may_vanish(address, size)
        if not doubtful and self._same(here, 0, size):
            yield True, size
            return
        before, length = False, 0
        for equal, part in self._surely(here, size) if doubtful else self._pages(here, size):
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

    def _surely(self, here: int, size: int) -> Iterator[tuple[bool, int]]:
        """Where a page of zeroes may have been something else when it was sent."""
        for at in range(0, size, PAGE):
            yield self._same(here, at, PAGE) and _memcmp(here + at, self._zeroes, PAGE) != 0, PAGE

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
