"""Pages that a process has freed lazily, and that the kernel takes from it between being sent and being compared.

Allocators free so (`MADV_FREE`): jemalloc, mimalloc, Go's. The parent of a family has sent its old content by then, and
reads zeroes from now on. A child that really has zeroes there must not be given the parent's old content.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_reader import restored

from singularity_proxy.launcher.snapshot import page_frames, page_images, shared_pages
from singularity_proxy.launcher.snapshot.page_disk import PageDisk
from singularity_proxy.launcher.snapshot.page_frames import IoVec, PageFrames
from singularity_proxy.launcher.snapshot.page_images import PageImage
from singularity_proxy.launcher.snapshot.page_stream import BLOCK, PAGE, PRESENT, PROCESS
from singularity_proxy.launcher.snapshot.relative_memory import RelativeMemory

PAGES = 96
"""More than are compared at once: what lies behind the buffer of a comparison once passed for the parent's."""
SIZE = PAGES * PAGE
PROCESS_MADVISE, MADV_PAGEOUT = 440, 21
FREED, ZEROES, OWN, KEPT = range(4)
"""Of the parent: freed or not. Of the child: zeroes, content of its own, or what the parent had at the fork."""
CASES = list(itertools.product((FREED, KEPT), (ZEROES, OWN, KEPT)))
libc = ctypes.CDLL(None, use_errno=True)


class Family:
    """A parent and its child, which both stand still."""

    def __init__(self, case: list[tuple[int, int]]) -> None:
        self._map = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._case = case
        out, into = os.pipe()
        self.parent = os.fork()
        if not self.parent:
            self._live(into)
        self.child = int.from_bytes(os.read(out, 4), "little")
        os.waitpid(self.parent, os.WUNTRACED)
        for file in (out, into):
            os.close(file)
        self._files = {pid: os.open(f"/proc/{pid}/mem", os.O_RDWR) for pid in (self.parent, self.child)}

    def _live(self, into: int) -> None:
        content = random.Random(1)
        for at in range(0, SIZE, PAGE):
            self._map[at : at + PAGE] = content.randbytes(PAGE)
        out, told = os.pipe()
        child = os.fork()
        if not child:
            for number, (_, mine) in enumerate(self._case):
                if mine in (ZEROES, OWN):
                    self._map[number * PAGE : (number + 1) * PAGE] = bytes([7 if mine == OWN else 0]) * PAGE
            os.write(told, b"1")
            signal.pause()
        os.read(out, 1)
        for number, (mine, _) in enumerate(self._case):
            if mine == FREED:
                self._map.madvise(mmap.MADV_FREE, number * PAGE, PAGE)
        os.write(into, child.to_bytes(4, "little"))
        os.kill(os.getpid(), signal.SIGSTOP)

    def content(self, pid: int) -> memoryview:
        return memoryview(bytearray(os.pread(self._files[pid], SIZE, self.address)))

    def memory(self, pid: int) -> RelativeMemory:
        return RelativeMemory(os.dup(self._files[pid]), pid)

    def reclaim(self) -> int:
        """As the kernel does when memory is scarce. Returns how many pages of the parent are not what they were."""
        before = self.content(self.parent)
        process = os.pidfd_open(self.parent)
        part = IoVec(self.address, SIZE)
        assert libc.syscall(PROCESS_MADVISE, process, ctypes.byref(part), 1, MADV_PAGEOUT, 0) >= 0
        os.close(process)
        now = self.content(self.parent)
        return sum(before[at : at + PAGE] != now[at : at + PAGE] for at in range(0, SIZE, PAGE))

    def end(self) -> None:
        for pid in (self.child, self.parent):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(self.parent, 0)
        for file in self._files.values():
            os.close(file)


@pytest.fixture(params=range(3))
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    chance = random.Random(request.param)
    made = Family([chance.choice(CASES) for _ in range(PAGES)])
    yield made
    made.end()


@pytest.mark.parametrize("frames", [False, True], ids=["bytes", "frames"])
def test_a_page_that_has_vanished_is_compared_with_what_was_sent_of_it(
    tmp_path: Path, family: Family, frames: bool
) -> None:
    if frames and not page_frames.usable():
        pytest.skip("frames are hidden (CAP_SYS_ADMIN), or sockets copy what is spliced")
    disk = PageDisk(tmp_path)

    def image(pid: int, number: int, base: PageImage | None = None) -> PageImage:
        seen = PageFrames(pid) if frames else None
        return PageImage(tmp_path, PROCESS, pid, number, disk, base, family.memory(pid), seen)

    first, sent = image(family.parent, page_images.FIRST_ID), family.content(family.parent)
    first.take(family.address, sent, PRESENT)
    vanished = family.reclaim()
    second, wanted = image(family.child, page_images.FIRST_ID + 1, first), family.content(family.child)
    at = 0
    for there, size in second.look(family.address, SIZE):
        if there:
            second.leave_out(family.address + at, size, PRESENT)
        else:
            second.take(family.address + at, wanted[at : at + size], PRESENT)
        at += size
    for made in (first, second):
        made.write_pagemap()
        made.close()
    page_images.write_shared(tmp_path, [first, second])
    disk.end(tmp_path)
    disk.close()
    shared_pages.prepare(tmp_path)
    assert SIZE > BLOCK and vanished, "the kernel took nothing: nothing was tested"
    assert second.shared, "what both have is left out as ever"
    found = restored(tmp_path, f"pagemap-{family.child}.img")
    assert b"".join(found[family.address // PAGE + page] for page in range(PAGES)) == wanted
