"""Pages that lie in a relative's frames are left out unread, and no other page is.

A parent and its child send their memory as CRIU does, by reference. Nobody may read the memory of either. So whatever
is left out was found by its frames.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from image_reader import restored

from singularity_proxy.launcher.errors import DumpError
from singularity_proxy.launcher.snapshot import page_frames, page_images, page_server, shared_pages
from singularity_proxy.launcher.snapshot.page_disk import PageDisk
from singularity_proxy.launcher.snapshot.page_frames import PageFrames
from singularity_proxy.launcher.snapshot.page_stream import ADD_F, CLOSE, HEADER, OPEN2, PAGE, PRESENT, PROCESS, Drain

PARENT, CHILD = 10, 11
PAGES = 600
STEP = 16

pytestmark = [
    pytest.mark.skipif(
        not page_frames.usable(), reason="frames are hidden (CAP_SYS_ADMIN), or sockets copy what is spliced"
    ),
]


class Block:
    """Private memory of this process, and of what it forks."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map[:] = random.Random(1).randbytes(PAGES * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        assert self.address % PAGE == 0

    def change(self, page: int) -> None:
        self.map[page * PAGE] ^= 255

    def rewrite(self, page: int) -> None:
        """The same bytes in a frame of its own."""
        self.map[page * PAGE] ^= 255
        self.map[page * PAGE] ^= 255

    def send(self, peer: socket.socket, number: int, pages: int = PAGES) -> None:
        """As CRIU does: an image with one entry; the content goes by reference."""
        peer.sendall(HEADER.pack(OPEN2, 0, 0, number << 8 | PROCESS))
        peer.sendall(HEADER.pack(ADD_F | PRESENT << 16, PAGES, self.address, number << 8 | PROCESS))
        out, into = os.pipe()
        for at in range(0, pages * PAGE, STEP * PAGE):
            size = min(STEP * PAGE, pages * PAGE - at)
            assert page_frames.give(into, self.address + at, size) == size
            while size:
                size -= os.splice(out, peer.fileno(), size)


class Child:
    """A forked process. `dirty` is done to its memory; then it sends when it is asked to."""

    def __init__(self, block: Block, dirty: Callable[[Block], None], pages: int = PAGES) -> None:
        self.peer, theirs = socket.socketpair()
        go, self._go = os.pipe()
        ready, done = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            with contextlib.suppress(BaseException):
                os.close(self._go)
                self.peer.close()
                dirty(block)
                os.write(done, b"1")
                os.read(go, 1)
                block.send(theirs, CHILD, pages)
                if pages == PAGES:
                    theirs.sendall(HEADER.pack(CLOSE, 0, 0, 0))
            os._exit(0)
        theirs.close()
        os.read(ready, 1)
        for file in (go, ready, done):
            os.close(file)

    def sends(self) -> None:
        os.write(self._go, b"1")

    def end(self) -> None:
        self.peer.close()
        os.close(self._go)
        os.waitpid(self.pid, 0)


@pytest.fixture
def block() -> Block:
    return Block()


def received(folder: Path, block: Block, child: Child) -> dict[int, int]:
    """Number of pages that were written for each process."""
    ours, theirs = socket.socketpair()
    frames = {PARENT: os.getpid(), CHILD: child.pid}
    family = page_server.Family({CHILD: [PARENT]}, lambda pid: None, lambda pid: PageFrames(frames[pid]))

    def relay() -> None:
        """What the child sends comes after the parent's, on the same connection, still by reference."""
        out, into = os.pipe()
        with contextlib.suppress(OSError):
            block.send(ours, PARENT)
            child.sends()
            while size := os.splice(child.peer.fileno(), into, STEP * PAGE):
                while size:
                    size -= os.splice(out, ours.fileno(), size)
            ours.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=relay)
    disk = PageDisk(folder)
    try:
        sender.start()
        ours.settimeout(None)
        answers = threading.Thread(target=lambda: ours.recv(2))
        answers.start()
        page_server.receive(theirs, folder, family, disk)
    finally:
        disk.close()
        theirs.close()
        sender.join(120)
        ours.close()
        child.end()
    written = {}
    for index, pid in enumerate((PARENT, CHILD)):
        written[pid] = (folder / f"pages-{page_images.FIRST_ID + index}.img").stat().st_size // PAGE
    return written


def memory(folder: Path, pid: int, block: Block) -> bytes:
    found = restored(folder, f"pagemap-{pid}.img")
    first = block.address // PAGE
    return b"".join(found[first + page] for page in range(PAGES))


def alter(block: Block) -> None:
    for page in (3, 100, 101, 300, PAGES - 1):
        block.change(page)
    block.rewrite(400)


def test_what_lies_in_the_frames_of_the_parent_is_left_out_unread(tmp_path: Path, block: Block) -> None:
    before = bytes(block.map)
    written = received(tmp_path, block, Child(block, alter))
    assert written[PARENT] == PAGES
    touched = {page // STEP for page in (3, 100, 101, 300, 400, PAGES - 1)}
    least = sum(min(STEP, PAGES - step * STEP) for step in touched)
    assert least <= written[CHILD] < PAGES // 2, "whole steps; more only where the kernel was moving pages"
    shared_pages.prepare(tmp_path)
    assert memory(tmp_path, PARENT, block) == before
    alter(block)
    assert memory(tmp_path, CHILD, block) == bytes(block.map)


def test_a_child_that_has_changed_everything_has_nothing_in_common(tmp_path: Path, block: Block) -> None:
    def everything(block: Block) -> None:
        for page in range(PAGES):
            block.rewrite(page)

    assert received(tmp_path, block, Child(block, everything)) == {PARENT: PAGES, CHILD: PAGES}


def test_pages_that_are_not_in_memory_are_never_the_same(tmp_path: Path, block: Block) -> None:
    """Both have none there: no frame of one is a frame of the other."""
    child = Child(block, lambda block: None)
    empty = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(empty))
    mine, theirs = PageFrames(os.getpid()), PageFrames(child.pid)
    try:
        assert list(page_frames.shared(mine, theirs, address, 20 * PAGE)) == [(False, 20 * PAGE)]
        assert list(page_frames.shared(mine, theirs, block.address, 20 * PAGE)) == [(True, 20 * PAGE)]
        assert list(page_frames.shared(mine, theirs, 1 << 62, PAGE)) == [(False, PAGE)]
    finally:
        mine.close()
        theirs.close()
        child.end()


def test_a_child_that_dies_while_it_sends_ends_the_dump(tmp_path: Path, block: Block) -> None:
    with pytest.raises(DumpError, match="closed the connection"):
        received(tmp_path, block, Child(block, lambda block: None, pages=PAGES // 2))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_drain_takes_what_it_is_asked_for_and_no_more(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with contextlib.closing(Drain()) as drain:
        ours.sendall(b"x" * 70000 + struct.pack("=i", 7))
        ours.shutdown(socket.SHUT_WR)
        left = 70000
        while left:
            left -= drain.take(theirs, left)
        assert theirs.recv(10) == struct.pack("=i", 7)
        assert drain.take(theirs, 10) == 0
