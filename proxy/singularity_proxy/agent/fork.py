"""Forked children (for example DataLoader workers) inherit the communication sockets of the rank; they must close them.

Only descriptors that belong to communication are touched. These are sockets and event polls that appeared while a
backend or a store was made, and sockets that such a listener accepted later. A socket the script opened itself stays
its own.
"""

from __future__ import annotations

import os
from pathlib import Path

from . import guard

_LISTEN = "0A"
_links: set[str] = set()
_ports: set[str] = set()
_registered = False


def tcp_table() -> dict[str, tuple[str, str, str]]:
    """Socket inode -> (local, remote, state), all as the kernel prints them in /proc/self/net/tcp and tcp6."""
    table = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            field = line.split()
            table[field[9]] = (field[1], field[2], field[3])
    return table


def descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they point at."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:
            continue  # closed meanwhile: the descriptor of the listing itself
    return found


def tcp_sockets() -> list[str]:
    """`fd 7 0100007F:7149 -> 0100007F:A1B2 state 01` for each TCP socket of this process."""
    table = tcp_table()
    return [
        "fd {} {} -> {} state {}".format(fd, *table[link[8:-1]])
        for fd, link in sorted(descriptors().items())
        if link.startswith("socket:") and link[8:-1] in table
    ]


def seen() -> set[tuple[int, str]]:
    """What is open now, for `communication`. Never raises."""
    global _registered
    try:
        if not _registered:
            os.register_at_fork(after_in_child=_let_go)
            _registered = True
        return set(descriptors().items())
    except Exception as error:
        guard.took(error, "before connections were made")
        return set()


def communication(before: set[tuple[int, str]]) -> None:
    """What was opened since `before` was `seen` belongs to communication. Never raises."""
    try:
        table = tcp_table()
        for fd, link in set(descriptors().items()) - before if before else ():
            inode = link[8:-1] if link.startswith("socket:") else ""
            if inode in table:
                _links.add(link)
                if table[inode][2] == _LISTEN:
                    _ports.add(table[inode][0].rsplit(":", 1)[1])
            elif link in ("anon_inode:[eventpoll]", "anon_inode:[io_uring]"):
                _links.add(f"{fd} {link}")
    except Exception as error:
        guard.took(error, "after connections were made")


def forget() -> None:
    """All communication has been closed."""
    _links.clear()
    _ports.clear()


def closed() -> None:
    """Some communication has been closed. What has its numbers later on belongs to somebody else. Never raises."""
    try:
        if _links:
            found = descriptors()
            _links.intersection_update({*found.values(), *(f"{fd} {link}" for fd, link in found.items())})
            _ports.intersection_update(local.rsplit(":", 1)[1] for local, _, _ in tcp_table().values())
    except Exception as error:
        guard.took(error, "after connections were closed")


def _let_go() -> None:
    """In the child. It may keep a connection for an error of ours: then a checkpoint names it."""
    if not _links:
        return
    try:
        # dup2, not close: dead C++ objects in the child still own the numbers and would close somebody else's file.
        table = tcp_table()
        null = os.open("/dev/null", os.O_RDWR)
        for fd, link in descriptors().items():
            local = table.get(link[8:-1], ("", "", ""))[0] if link.startswith("socket:") else ""
            if link in _links or f"{fd} {link}" in _links or (local and local.rsplit(":", 1)[1] in _ports):
                os.dup2(null, fd)
        os.close(null)
    except Exception as error:
        guard.report(f"process {os.getpid()} may have kept connections of the rank that has started it: {error!r}")
