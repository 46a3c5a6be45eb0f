"""Which sockets of a rank travel, which are cut when it moves, and which keep it from being saved.

Both ends of a connection that stays inside a slot are dumped together, and an address that every machine has is there
again: CRIU restores them, with what was on the way. A connection to a server outside the job is cut (`connections`):
programs know that servers restart, and connect again. A connection to another rank is not cut: the other end would not
know what happened, and most programs end because of it. With such a connection, or a listener at an address of this
pod, a rank is not dumped.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..ranks import process_scan

_LISTEN = "0A"
_UNCONNECTED = "07"
_TCP_REPAIR = 19

Address = tuple[str, int]


@dataclass(frozen=True)
class Socket:
    """One line of /proc/net/{tcp,tcp6,udp,udp6}. Addresses that map IPv4 into IPv6 are written as IPv4."""

    protocol: str
    local: Address
    remote: Address
    state: str

    @property
    def connected(self) -> bool:
        return self.state != (_LISTEN if self.protocol == "tcp" else _UNCONNECTED)

    def __str__(self) -> str:
        if self.connected:
            return f"is connected ({self.protocol}) from {_show(self.local)} to {_show(self.remote)}"
        return f"{'listens' if self.protocol == 'tcp' else 'receives (udp)'} on {_show(self.local)}"


@dataclass(frozen=True)
class Held:
    """A socket in the hands of a process."""

    pid: int
    descriptor: int
    socket: Socket


def table(proc: Path = process_scan.PROC) -> dict[str, Socket]:
    """Inode -> socket, of our network namespace, which all slots share."""
    found = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        try:
            lines = (proc / "net" / kind).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            field = line.split()
            found[field[9]] = Socket(kind[:3], _address(field[1]), _address(field[2]), field[3])
    return found


def held(pids: Sequence[int], proc: Path = process_scan.PROC) -> Iterator[Held]:
    """TCP and UDP sockets of the processes."""
    known = table(proc)
    for pid in pids:
        for descriptor, target in process_scan.open_files(pid, proc):
            if target.startswith("socket:[") and target[8:-1] in known:
                yield Held(pid, descriptor, known[target[8:-1]])


def refused(pids: Sequence[int], job: Collection[str] = (), proc: Path = process_scan.PROC) -> list[str]:
    """A sentence for each socket that keeps the rank from being saved. `pids`: all processes of one slot.

    :param job: addresses of the pods of this job
    """
    found = list(held(pids, proc))
    ours = _pairs(found)
    return [
        f"{_named(h, proc)} (descriptor {h.descriptor})"
        for h in found
        if not _travels(h.socket, ours) and not _outside(h.socket, job)
    ]


def cut(pids: Sequence[int], proc: Path = process_scan.PROC) -> list[str]:
    """A sentence for each connection that is cut when the rank moves. To be asked where nothing is `refused`."""
    return sorted({_named(h, proc) for h in _parted(pids, proc)[1]})


def kept(pids: Sequence[int], proc: Path = process_scan.PROC) -> list[str]:
    """A sentence for each socket that travels with the rank."""
    return sorted({_named(h, proc) for h in _parted(pids, proc)[0]})


def occupied(pids: Sequence[int], proc: Path = process_scan.PROC) -> list[str]:
    """What the processes hold of the pod's addresses, as `addresses.clash` compares it: `tcp 127.0.0.1:80`, and a
    connection as `tcp 127.0.0.1:5000>127.0.0.1:80`."""
    return sorted({_occupied(h.socket) for h in _parted(pids, proc)[0]})


def _occupied(found: Socket) -> str:
    return f"{found.protocol} {_show(found.local)}" + (f">{_show(found.remote)}" if found.connected else "")


def in_use(proc: Path = process_scan.PROC) -> list[str]:
    """What listens or receives in our network namespace."""
    return sorted({_occupied(found) for found in table(proc).values() if not found.connected})


def leads_out(found: Socket, ours: set[tuple[Address, Address]]) -> bool:
    """A connection that cannot travel.

    :param ours: (local, remote) of the TCP sockets of its rank
    """
    return found.connected and not _travels(found, ours)


def _outside(found: Socket, job: Collection[str]) -> bool:
    """Connected to somebody who is no part of the job."""
    return found.connected and not _everywhere(found.remote) and found.remote[0] not in job


def _parted(pids: Sequence[int], proc: Path = process_scan.PROC) -> tuple[list[Held], list[Held]]:
    """What travels with the rank, and what is cut."""
    found = list(held(pids, proc))
    ours = _pairs(found)
    cut = [h for h in found if leads_out(h.socket, ours)]
    return [h for h in found if h not in cut], cut


def _pairs(found: Sequence[Held]) -> set[tuple[Address, Address]]:
    return {(h.socket.local, h.socket.remote) for h in found if h.socket.protocol == "tcp"}


def _named(held: Held, proc: Path) -> str:
    return f"{process_scan.name(held.pid, proc)} {held.socket}"


def _travels(found: Socket, ours: set[tuple[Address, Address]]) -> bool:
    if not _everywhere(found.local):
        return False
    if not found.connected:
        return True
    if not _everywhere(found.remote):
        return False
    return found.protocol == "udp" or (found.remote, found.local) in ours


def _everywhere(address: Address) -> bool:
    host = ipaddress.ip_address(address[0])
    return host.is_loopback or host.is_unspecified


def _address(text: str) -> Address:
    host, port = text.rsplit(":", 1)
    raw = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    return host_of(raw), int(port, 16)


def host_of(raw: bytes) -> str:
    """The address of these 4 or 16 bytes, in network order; IPv4 that is mapped into IPv6 as IPv4."""
    found = ipaddress.ip_address(raw)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _show(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def revive(pids: Sequence[int], leading_out: bool = False) -> None:
    """Make connections work again that CRIU has frozen: it leaves them frozen when it leaves the processes stopped.

    :param leading_out: only those that a move cuts. A process that ends with them then tells the other end. Connections
        within a rank must end in silence: otherwise the kernel would keep their ports (TIME_WAIT) when they are
        restored here
    """
    travels, cut = _parted(pids)
    for item in cut if leading_out else [*travels, *cut]:
        if item.socket.protocol != "tcp" or not item.socket.connected:
            continue
        with contextlib.suppress(OSError), _borrowed(item) as own:
            own.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 0)


@contextlib.contextmanager
def _borrowed(item: Held) -> Iterator[socket.socket]:
    with process_scan.borrowed(item.pid, item.descriptor) as own, socket.socket(fileno=os.dup(own)) as same:
        yield same
