"""Which pages that CRIU is sending lie in the frames of a relative, so that no byte of them has to be read.

A page of a forked process is in the same frame as its parent's until one of them writes. `/proc/PID/pagemap` tells the
frame of each page, to processes with `CAP_SYS_ADMIN`. Equal frames at two moments prove nothing alone: the kernel may
move a page in between, and give its frame to another. Here it cannot:

- CRIU puts pages into a pipe by reference (`vmsplice`), and from there into our socket (`splice`). The kernel neither
  moves, merges nor frees a page that somebody else refers to. Compaction, NUMA balancing, KSM and the collapse into
  huge pages all count the references first.
- So while a page is in the queue, the process has it in that frame, or nowhere (swapped out: then it is compared). We
  look before we take it out. If the relative has the same frame at that time, it has that very page.
- All of the family stands still. So the page has the bytes that were sent, or will be sent, of the relative.

A kernel that copies into the socket keeps no reference. So this is tried out at first (`usable`): a change of a page
that is in a queue already must show at the other end. Where it does not, or frames are hidden, bytes are compared.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import socket
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from .page_stream import PAGE

_WORD: Final = 8
"""Bytes of an entry of a pagemap. Source: Documentation/admin-guide/mm/pagemap.rst."""
_THERE: Final = 1 << 63
_FRAME: Final = (1 << 55) - 1
_STEP: Final = 16 * PAGE
"""Bytes that are in common, or are taken to be compared. Less would cost more calls than it saves."""
_libc = ctypes.CDLL(None, use_errno=True)


class IoVec(ctypes.Structure):
    """`struct iovec`: an address and a number of bytes."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class PageFrames:
    """:param pid: as we see it. Raises OSError: nobody may look"""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def of(self, address: int, size: int) -> bytes:
        """The entries of these pages; less of them where the process has no more memory."""
        try:
            return os.pread(self._file, size // PAGE * _WORD, address // PAGE * _WORD)
        except OSError:
            return b""

    def close(self) -> None:
        os.close(self._file)


def shared(mine: PageFrames, theirs: PageFrames, address: int, size: int) -> Iterator[tuple[bool, int]]:
    """Runs of (both have the same frames, bytes) that make up `size`. To be called before these pages are taken."""
    ours, others = mine.of(address, size), theirs.of(address, size)
    if _same(ours, others, size):
        yield True, size
        return
    steps = ((at, min(_STEP, size - at)) for at in range(0, size, _STEP))
    for equal, run in groupby(steps, lambda step: _same(_part(ours, *step), _part(others, *step), step[1])):
        yield equal, sum(part for _, part in run)


def _part(entries: bytes, at: int, size: int) -> bytes:
    return entries[at // PAGE * _WORD : (at + size) // PAGE * _WORD]


def _same(ours: bytes, others: bytes, size: int) -> bool:
    """Whether all pages of `size` bytes are in memory, in the same frames."""
    if not len(ours) == len(others) == size // PAGE * _WORD:
        return False
    there, frames = _masks(size // PAGE)
    number = int.from_bytes(ours, sys.byteorder)
    return number & there == there and not (number ^ int.from_bytes(others, sys.byteorder)) & frames


@functools.cache
def _masks(pages: int) -> tuple[int, int]:
    """Bits of that many entries: whether a page is in memory; that, and its frame."""
    ones = sum(1 << 64 * page for page in range(pages))
    return ones * _THERE, ones * (_THERE | _FRAME)


def give(pipe: int, address: int, size: int) -> int:
    """Put our own memory into a pipe by reference (`vmsplice`). Returns the bytes. Raises OSError."""
    count = int(_libc.vmsplice(pipe, ctypes.byref(IoVec(address, size)), ctypes.c_ulong(1), 0))
    if count < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return count


def usable() -> bool:
    """Whether we see frames, and the kernel keeps what is spliced into a unix socket by reference."""
    page = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page[0] = 1
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    with contextlib.ExitStack() as stack:
        ours, theirs = map(stack.enter_context, socket.socketpair())
        out, into = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, out)
        stack.callback(os.close, into)
        theirs.settimeout(1)
        try:
            with contextlib.closing(PageFrames(os.getpid())) as frames:
                seen = int.from_bytes(frames.of(address, PAGE), sys.byteorder) & _FRAME
            give(into, address, PAGE)
            os.splice(out, ours.fileno(), PAGE)
            page[0] = 2
            return bool(seen) and theirs.recv(PAGE, socket.MSG_WAITALL)[:1] == b"\2"
        except OSError:
            return False
