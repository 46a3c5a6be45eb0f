"""Memory images of a dump, written in CRIU's place, without the pages that a process has in common with its base.

A loader worker is a copy of the rank that forked it, and nearly all of its pages are still its parent's. CRIU writes
each process whole. Here a page is left out where the base, a relative, has the same bytes at the same address. Bytes
are compared, not page frames: no right to see frames is needed, and no page that moves can deceive us.

    pagemap-PID.img    entries IN_PARENT for what the base has, PRESENT for the rest
    pages-N.img        content of the latter, in order
    shared.json        PID -> PID of its base, for images with entries of the first kind

CRIU looks pages IN_PARENT up in the folder `parent`, for incremental dumps. `shared_pages` makes that folder at the
restore: the store takes no links.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from . import protobuf
from .page_sink import PageSink
from .page_stream import BLOCK, IN_PARENT, LAZY, PAGE, PROCESS, Entry
from .protobuf import VARINT, Field

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

    :param sink: gets the content; None: the disk does
    :param kept: it may be the base of another process, so the disk gets its content in any case, until `drop`
    """

    def __init__(
        self,
        folder: Path,
        kind: int,
        number: int,
        pages_id: int,
        base: PageImage | None = None,
        sink: PageSink | None = None,
        *,
        kept: bool = True,
    ) -> None:
        self.kind, self.number, self.pages_id, self.base = kind, number, pages_id, base
        self.name = f"pagemap-{number}.img" if kind == PROCESS else f"pagemap-shmem-{number}.img"
        self.shared = 0
        """Pages that are left out."""
        self._folder = folder
        self._comparison: Comparison = base._comparison if base is not None else Comparison()
        self._entries: list[Entry] = []
        self._sink = sink
        if sink is not None:
            sink.open(pages_id)
        self._path = folder / f"pages-{pages_id}.img"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600) if kept or sink is None else -1
        self._size = 0
        self._starts: list[int] = []
        self._places: list[tuple[int, int, int]] = []
        """Where the content lies, by ascending address: end address, descriptor, offset."""

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def drop(self) -> None:
        """What the sidecar has taken is of no use on the disk."""
        if self._sink is not None and self._file >= 0:
            self._path.unlink()

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
                self._keep(part, content[at : at + size])
            at += size

    def _keep(self, address: int, content: memoryview) -> None:
        if self._file >= 0:
            self._place(address, len(content), self._file, self._size)
            _write(self._file, content)
            self._size += len(content)
        if self._sink is not None:
            self._sink.write(self.pages_id, content)

    def write_pagemap(self) -> None:
        head = protobuf.encode([Field(HEAD_PAGES_ID, VARINT, self.pages_id)])
        (self._folder / self.name).write_bytes(protobuf.image(BEGIN, [head, *map(_message, self._entries)]))

    def _compared(self, address: int, content: memoryview) -> Iterator[tuple[bool, int]]:
        """Runs of (the base has the same, bytes) that make up the content."""
        if self.base is None:
            yield False, len(content)
            return
        at = 0
        for start, end, file, offset in self.base.places(address, address + len(content)):
            if start > address + at:
                yield False, start - address - at
            at = end - address
            for equal, size in self._comparison.runs(content[start - address : at], file, offset):
                if equal:
                    self._place(start, size, file, offset)
                start, offset = start + size, offset + size
                yield equal, size
        if at < len(content):
            yield False, len(content) - at

    def places(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Where content between two addresses lies: (from, to, descriptor, offset), ascending, gaps left out."""
        for index in range(max(bisect.bisect_right(self._starts, begin) - 1, 0), len(self._starts)):
            start, (stop, file, offset) = self._starts[index], self._places[index]
            if start >= end:
                return
            low, high = max(start, begin), min(stop, end)
            if low < high:
                yield low, high, file, offset + low - start

    def _place(self, address: int, size: int, file: int, offset: int) -> None:
        if self._places:
            stop, last, before = self._places[-1]
            if address < stop:
                return  # CRIU's entries ascend; of others nothing is shared
            if (stop, last, before + stop - self._starts[-1]) == (address, file, offset):
                self._places[-1] = (address + size, last, before)
                return
        self._starts.append(address)
        self._places.append((address + size, file, offset))


class Comparison:
    """Compares content with the content of a file. Its buffer is made once: fresh buffers would cost more than the
    comparison."""

    def __init__(self) -> None:
        self._theirs = memoryview(bytearray(BLOCK))
        self._at = _address(self._theirs)

    def runs(self, mine: memoryview, file: int, offset: int) -> Iterator[tuple[bool, int]]:
        """(equal, bytes) of whole pages that follow each other and are equal, or are not. Raises OSError."""
        size = len(mine)
        if os.preadv(file, [self._theirs[:size]], offset) != size:
            raise OSError(errno.EIO, "a file of pages ends too early")
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


def _write(file: int, content: memoryview) -> None:
    while len(content):
        content = content[os.write(file, content) :]
