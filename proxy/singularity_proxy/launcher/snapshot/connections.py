"""Connections to servers outside the job, cut in CRIU's image of a rank: another pod has another address.

A restored TCP connection of this kind is closed in both directions: a read finds the end, a write fails with EPIPE. Its
holder connects again, as after any server's restart. A UDP socket keeps its peer and gets an address of the new pod.
CRIU could close either all TCP connections (`--tcp-close`) or none. The image is a list of protobuf messages
(`images/fdinfo.proto` and `sk-inet.proto` of CRIU 4.2), of which only what is changed is understood here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from . import files_image
from .protobuf import VARINT, Field
from .sockets import Address, Socket, host_of

_FILE_INET = 4
"""Field of file_entry."""
_PROTOCOL, _STATE, _SRC_PORT, _DST_PORT, _SRC, _DST, _SHUTDOWN = 5, 6, 7, 8, 11, 12, 19
"""Fields of inet_sk_entry."""
_PROTOCOLS = {6: "tcp", 17: "udp"}
_CLOSED, _LISTEN = 7, 10
"""TCP states of the kernel."""
_BOTH = 3
"""Directions that are shut."""
LeadsOut = Callable[[Socket, set[tuple[Address, Address]]], bool]


def sever(images: Path, leads_out: LeadsOut) -> None:
    """Cut the connections of the dumped rank that lead out.

    :param leads_out: called with a connected socket, and the (local, remote) of all TCP sockets of the rank
    :raises DumpError: the image is not as CRIU 4 writes it
    """
    files_image.rewrite(images / files_image.FILES, lambda data: severed(data, leads_out))


def severed(data: bytes, leads_out: LeadsOut) -> bytes:
    """files.img with its connections cut. Pure. Raises ValueError."""
    sockets = map(_socket, files_image.entries(data, _FILE_INET))
    ours = {(s.local, s.remote) for s in sockets if s is not None and s.protocol == "tcp"}
    return files_image.mapped(data, _FILE_INET, lambda entry: _cut(entry, ours, leads_out))


def _cut(entry: list[Field], ours: set[tuple[Address, Address]], leads_out: LeadsOut) -> list[Field]:
    socket = _socket(entry)
    if socket is None or not socket.connected or not leads_out(socket, ours):
        return entry
    zero = {_SRC_PORT, _SRC} | ({_DST_PORT, _DST} if socket.protocol == "tcp" else set())
    kept = [Field(f.number, f.kind, _zeros(f)) if f.number in zero else f for f in entry]
    if socket.protocol == "tcp":
        kept = [Field(_STATE, VARINT, _CLOSED) if f.number == _STATE else f for f in kept if f.number != _SHUTDOWN]
        kept.append(Field(_SHUTDOWN, VARINT, _BOTH))
    return kept


def _zeros(field: Field) -> int | bytes:
    return 0 if isinstance(field.value, int) else bytes(len(field.value))


def _socket(entry: list[Field]) -> Socket | None:
    """None: neither TCP nor UDP."""
    protocol = _PROTOCOLS.get(_int(entry, _PROTOCOL))
    if protocol is None:
        return None
    local, remote = (_address(entry, *place) for place in ((_SRC, _SRC_PORT), (_DST, _DST_PORT)))
    listens = _int(entry, _STATE) == _LISTEN
    unconnected = "0A" if protocol == "tcp" else "07"
    return Socket(protocol, local, remote, unconnected if listens or not remote[1] else "01")


def _address(entry: list[Field], words: int, port: int) -> Address:
    raw = b"".join(struct.pack("<I", f.value) for f in entry if f.number == words and isinstance(f.value, int))
    if len(raw) not in (4, 16):
        raise ValueError(f"an address of {len(raw)} bytes")
    return host_of(raw), _int(entry, port)


def _int(entry: list[Field], number: int) -> int:
    return next((f.value for f in entry if f.number == number and isinstance(f.value, int)), 0)
