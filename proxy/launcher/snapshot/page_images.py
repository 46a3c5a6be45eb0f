"""Memory images of a dump, written in CRIU's place: what a process has in common with its base is left out.

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
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from . import protobuf
from .page_stream import IN_PARENT, LAZY, PAGE, PROCESS, Entry
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


class PageImage:
    """Pages of one process or one shared memory segment."""

    def __init__(self, folder: Path, kind: int, number: int, pages_id: int, base: PageImage | None = None) -> None:
        self.number, self.pages_id, self.base = number, pages_id, base
        self.name = f"pagemap-{number}.img" if kind == PROCESS else f"pagemap-shmem-{number}.img"
        self.shared = 0
        """Pages that are left out."""
        self._folder = folder
        self._entries: list[Entry] = []
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(folder / f"pages-{pages_id}.img", flags, 0o600)
        self._size = 0
        self._starts: list[int] = []
        self._places: list[tuple[int, int, int]] = []
        """Where the content lies, by ascending address: end address, descriptor, offset."""

    def close(self) -> None:
        os.close(self._file)

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
                self._place(part, size, self._file, self._size)
                _write(self._file, content[at : at + size])
                self._size += size
            at += size

    def pagemap(self) -> bytes:
        """The pagemap image."""
        head = protobuf.encode([Field(HEAD_PAGES_ID, VARINT, self.pages_id)])
        return protobuf.image(BEGIN, [head, *map(_message, self._entries)])

    def write_pagemap(self) -> None:
        (self._folder / self.name).write_bytes(self.pagemap())

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
            mine = bytes(content[start - address : at])
            theirs = os.pread(file, end - start, offset)
            for equal, size in runs(mine, theirs):
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


def runs(mine: bytes, theirs: bytes) -> Iterator[tuple[bool, int]]:
    """(equal, bytes) of pages that follow each other and are equal, or are not. Both have whole pages."""
    if mine == theirs:
        yield True, len(mine)
        return
    before, size = False, 0
    for equal, part in _pages(mine, theirs):
        if size and equal != before:
            yield before, size
            size = 0
        before, size = equal, size + part
    yield before, size


def _pages(mine: bytes, theirs: bytes) -> Iterator[tuple[bool, int]]:
    for coarse in range(0, len(mine), _COARSE):
        one, other = mine[coarse : coarse + _COARSE], theirs[coarse : coarse + _COARSE]
        if one == other:
            yield True, len(one)
            continue
        for at in range(0, len(one), PAGE):
            yield one[at : at + PAGE] == other[at : at + PAGE], min(PAGE, len(one) - at)


def write_shared(folder: Path, images: Mapping[int, PageImage]) -> None:
    """What `shared_pages` needs. `images`: of processes, by PID."""
    found = {str(pid): image.base.number for pid, image in images.items() if image.shared and image.base}
    (folder / SHARED).write_text(json.dumps(found))


def _message(entry: Entry) -> bytes:
    numbers = ((ADDRESS, entry.address), (OLD_PAGES, 0), (FLAGS, entry.flags), (PAGES, entry.pages))
    return protobuf.encode(Field(number, VARINT, value) for number, value in numbers)


def _write(file: int, content: memoryview) -> None:
    while len(content):
        content = content[os.write(file, content) :]
