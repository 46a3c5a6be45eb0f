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

import socket
import struct
from collections.abc import Callable, Iterator
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
BLOCK: Final = 1 << 20
"""Bytes of content that are handed on at once."""
_MOST_PAGES: Final = 1 << 40


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


Content = Callable[[], Iterator[memoryview]]
"""The content of an entry in blocks of whole pages; each is valid until the next is asked for."""


def read(peer: socket.socket) -> Iterator[Opened | tuple[Entry, Content]]:
    """What CRIU sends, up to its CLOSE, which is left to `accept` to answer.

    The content of an entry has to be read before the next is asked for. Raises DumpError.
    """
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
            yield Entry(address, pages, flags), lambda size=size: _content(peer, buffer, size)  # type: ignore[misc]
        elif command in (CLOSE, FORCE_CLOSE):
            return
        else:
            raise DumpError(f"CRIU sent {bytes(head).hex()}, which is no command of its page server")


def accept(peer: socket.socket) -> None:
    """Tell CRIU that everything is safe."""
    peer.sendall(struct.pack("=i", 0))


def _content(peer: socket.socket, buffer: memoryview, size: int) -> Iterator[memoryview]:
    while size:
        block = buffer[: min(size, BLOCK)]
        _exactly(peer, block)
        size -= len(block)
        yield block


def _exactly(peer: socket.socket, part: memoryview) -> None:
    while len(part):
        got = peer.recv_into(part, 0, socket.MSG_WAITALL)
        if not got:
            raise DumpError("CRIU closed the connection before it had sent everything")
        part = part[got:]
