"""CRIU's page-server protocol, as the server reads it: the pages of a dump come over a stream socket.

Native byte order, no version, no checksum. Source: criu 4.2, `criu/page-xfer.c`.

    header   u32 command, 4 bytes of padding, u64 pages, u64 address, u64 number << 8 | kind       32 bytes
    command  low 16 bits: what; high 16 bits: flags of the entry
    OPEN2 (4)                   an image begins. The answer is one byte, 0: there is no parent image
    ADD_F (6)                   an entry; with PRESENT among its flags, `pages` pages of content follow
    CLOSE (0x1023), FORCE_CLOSE (0x1024)    everything was sent. The answer, an int32, is a vote: 0, or the dump fails

Nothing ends an image but the next one, or CLOSE. CRIU waits for the last answer before its dump succeeds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..errors import DumpError

PAGE: Final = 4096
HEADER: Final = struct.Struct("=I4xQQQ")
OPEN2, ADD_F, CLOSE, FORCE_CLOSE = 4, 6, 0x1023, 0x1024
PROCESS, SHARED_MEMORY = 1, 2
"""Kinds of images."""
IN_PARENT, LAZY, PRESENT = 1, 2, 4
"""Flags of an entry."""
BLOCK: Final = 256 << 10
"""Bytes of content that are handed on at once. Two such blocks are compared within a processor's own cache: blocks of a
MiB took twice the time."""
_MOST_PAGES: Final = 1 << 40
_CUT_OFF: Final = "CRIU closed the connection before it had sent everything"


@dataclass(frozen=True)
class Opened:
    """:param number: PID of a process as it sees itself, or id of a shared memory segment"""

    kind: int
    number: int


@dataclass(frozen=True)
class Entry:
    """Pages that follow each other. `address`: of the first, in bytes."""

    address: int
    pages: int
    flags: int


class Drain:
    """Takes content out of a socket without looking at it. Its pages are passed on by reference."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # more than users may have: it goes in smaller steps
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, BLOCK)
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def take(self, peer: socket.socket, size: int) -> int:
        """At most so many bytes. Returns how many; 0 at the end of the stream. Raises OSError."""
        count = left = os.splice(peer.fileno(), self._in, size)
        while left:
            left -= os.splice(self._out, self._nowhere, left)
        return count

    def close(self) -> None:
        for file in (self._out, self._in, self._nowhere):
            os.close(file)


class Content:
    """The content of an entry, which is still in the socket.

    :param size: its bytes
    :param buffer: of a block
    """

    def __init__(self, peer: socket.socket, size: int, buffer: memoryview, drain: Drain) -> None:
        self._peer, self.left, self._buffer, self._drain = peer, size, buffer, drain

    def read(self, size: int) -> memoryview:
        """The next bytes, at most a block; valid until the next are read. Raises DumpError."""
        self.left -= size
        _exactly(self._peer, self._buffer[:size])
        return self._buffer[:size]

    def skip(self, size: int) -> None:
        """Leave the next bytes out. Raises DumpError, OSError."""
        self.left -= size
        while size:
            got = self._drain.take(self._peer, size)
            if not got:
                raise DumpError(_CUT_OFF)
            size -= got


def read(peer: socket.socket) -> Iterator[Opened | tuple[Entry, Content]]:
    """What CRIU sends, up to its CLOSE, which is left to `accept` to answer.

    The content of an entry has to be read before the next is asked for. Raises DumpError.
    """
    with contextlib.closing(Drain()) as drain:
        yield from _read(peer, drain)


def _read(peer: socket.socket, drain: Drain) -> Iterator[Opened | tuple[Entry, Content]]:
    buffer = memoryview(bytearray(BLOCK))
    head = bytearray(HEADER.size)
    while True:
        _exactly(peer, memoryview(head))
        word, pages, address, target = HEADER.unpack(head)
        command, flags = word & 0xFFFF, word >> 16
        if command == OPEN2:
            peer.sendall(b"\0")
            yield Opened(target & 0xFF, target >> 8)
        elif command == ADD_F and pages < _MOST_PAGES and address % PAGE == 0:
            size = pages * PAGE if flags & PRESENT else 0
            yield Entry(address, pages, flags), Content(peer, size, buffer, drain)
        elif command in (CLOSE, FORCE_CLOSE):
            return
        else:
            raise DumpError(f"CRIU sent {bytes(head).hex()}, which is no command of its page server")


def accept(peer: socket.socket) -> None:
    """Tell CRIU that everything is safe."""
    peer.sendall(struct.pack("=i", 0))


def _exactly(peer: socket.socket, part: memoryview) -> None:
    while len(part):
        got = peer.recv_into(part, 0, socket.MSG_WAITALL)
        if not got:
            raise DumpError(_CUT_OFF)
        part = part[got:]
