"""Unix sockets of a rank whose other end is in no process of it: another container of the pod has it.

The kernel tells the other end through `sock_diag` only (`unix_diag.h`).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...protocol import addresses
from ..ranks import process_scan
from ..ranks.process_scan import PROC

_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_NAME, _PEER, _WAITING = 0, 2, 3
"""Attributes of an answer."""
_SHOW = 1 | 4 | 8
"""These three."""
_ANY_STATE = 0xFFFFFFFF
_ESTABLISHED = 1
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class UnixSocket:
    """:param peer: inode of the other end; 0: there is none, or nobody has accepted it yet
    :param waiting: connections to this listener that nobody has accepted yet
    :param connected: it is, or was, one end of a connection
    """

    inode: int
    name: str = ""
    peer: int = 0
    waiting: int = 0
    connected: bool = False

    @property
    def widow(self) -> bool:
        return self.connected and not self.peer


def table() -> dict[int, UnixSocket]:
    """Inode -> socket, of our network namespace. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as diag:
        diag.settimeout(TIMEOUT_S)
        request = struct.pack("=BBHIII8s", socket.AF_UNIX, 0, 0, _ANY_STATE, 0, _SHOW, b"\xff" * 8)
        diag.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        found: dict[int, UnixSocket] = {}
        while True:
            for kind, content in _messages(diag.recv(1 << 20)):
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", content)[0], "sock_diag")
                one = _socket(content)
                found[one.inode] = one


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        yield kind, data[at + 16 : at + size]
        at += max(size + 3 & ~3, 16)


def _socket(content: bytes) -> UnixSocket:
    kind, state, inode = content[1], content[2], struct.unpack_from("=I", content, 4)[0]
    connected = kind == socket.SOCK_STREAM and state == _ESTABLISHED
    name, peer, waiting, at = "", 0, 0, 16
    while at + 4 <= len(content):
        size, kind = struct.unpack_from("=HH", content, at)
        value = content[at + 4 : at + size]
        if kind == _NAME:
            raw = value.replace(b"\0", b"@", 1) if value.startswith(b"\0") else value.rstrip(b"\0")  # abstract
            name = raw.decode(errors="replace")
        elif kind == _PEER:
            peer = struct.unpack("=I", value)[0]
        elif kind == _WAITING:
            waiting = len(value) // 4
        at += max(size + 3 & ~3, 4)
    return UnixSocket(inode, name, peer, waiting, connected)


def abstract(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """Names without a path that sockets of the processes have: all ranks of a pod share them (`protocol.addresses`)."""
    known = table()
    names = {known[inode].name for _, _, inode in _held(pids, proc) if inode in known}
    return sorted(f"{addresses.UNIX}{name}" for name in names if name.startswith("@"))


def external(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each socket that is connected to a process outside. `pids`: all processes of one slot."""
    known, ours = table(), list(_held(pids, proc))
    inodes = {inode for _, _, inode in ours}
    return [
        f"{process_scan.name(pid, proc)} is connected to {_end(known, known[inode])} (descriptor {descriptor})"
        for pid, descriptor, inode in ours
        if inode in known and known[inode].peer and known[inode].peer not in inodes
    ]


def widowed(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each accepted connection whose client is gone, and the path that it came by, too.

    CRIU 4.2 waits for a lock of its own for ever when it restores one.
    """
    known = table()
    return [
        f"{process_scan.name(pid, proc)} has a connection over {name} (descriptor {descriptor}), whose other end "
        "is closed, and the path is gone"
        for pid, descriptor, inode in _held(pids, proc)
        if inode in known and known[inode].widow and (name := known[inode].name) and not _is_there(pid, name, proc)
    ]


def _is_there(pid: int, name: str, proc: Path) -> bool:
    """Whether a process finds a socket by this name; abstract names need no path."""
    if name.startswith("@"):
        return True
    place = proc / str(pid) / ("root" if name.startswith("/") else "cwd")
    return (place / name.lstrip("/")).is_socket()


def waiting(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each listener with connections that it has not accepted yet: CRIU can save few of them."""
    known = table()
    return [
        f"{process_scan.name(pid, proc)} has {known[inode].waiting} connections to accept at "
        f"{known[inode].name or 'a unix socket without a name'} (descriptor {descriptor})"
        for pid, descriptor, inode in _held(pids, proc)
        if inode in known and known[inode].waiting
    ]


def _held(pids: Sequence[int], proc: Path) -> Iterator[tuple[int, int, int]]:
    for pid in pids:
        for descriptor, target in process_scan.open_files(pid, proc):
            if target.startswith("socket:["):
                yield pid, descriptor, int(target[8:-1])


def _end(known: dict[int, UnixSocket], one: UnixSocket) -> str:
    peer = known.get(one.peer)
    return (peer.name if peer else "") or one.name or "a unix socket without a name"
