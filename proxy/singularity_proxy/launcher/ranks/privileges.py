"""The rights of a rank: its capabilities, its user, and the check that a restored rank has no more rights.

A root rank keeps what `apt` and `pip` in a script need. It may own, read and write any file of the container, become
another user, end processes, and listen on ports below 1024. It has no raw sockets, makes no devices, and gives no
capability to a file. A rank of another user keeps nothing.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ..errors import RestoreError
from . import libc, process_scan

KEPT: Final = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "NET_BIND_SERVICE": 10
}  # fmt: skip
"""Of what container runtimes give by default."""
MASK: Final = sum(1 << number for number in KEPT.values())

_CAPBSET_DROP, _CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 24, 47, 4
_VERSION_3 = 0x20080522
_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_FILTERED = "2"
_ENDED = ("Z", "X")
"""States of a task that will never run again."""
ENDS_S: Final = 2.0
"""Seconds that a process of CRIU may outlive it."""
NAMESPACES: Final = ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")
"""CRIU restores into a time namespace of its own, so that monotonic clocks go on."""


def drop(whom: Sequence[int], last: Path = Path("/proc/sys/kernel/cap_last_cap")) -> None:
    """Reduce the rights of this process, which executes a program next: no capability except KEPT, in any set. Raises
    OSError.

    :param whom: uid, gid, further groups; empty: stay who we are
    """
    c = libc.load()
    for number in range(int(last.read_text()) + 1):
        if not MASK >> number & 1:
            libc.check(c.prctl(_CAPBSET_DROP, number, 0, 0, 0), f"capability {number} cannot be dropped")
    libc.check(c.prctl(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities cannot be dropped")
    if whom:
        uid, gid, *groups = whom
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    low = _permitted() & MASK & 0xFFFFFFFF
    # Two words of each set; all that are kept are in the first. Effective, permitted, inheritable.
    sets = struct.pack("6I", low, low, 0, 0, 0, 0)
    libc.check(c.capset(struct.pack("Ii", _VERSION_3, 0), sets), "capabilities cannot be dropped")


def _permitted() -> int:
    return int(_fields(_status(process_scan.PROC / "self"))["CapPrm"], 16)


def _status(task: Path) -> list[str]:
    return (task / "status").read_text().splitlines()


def check(rank: int, proc: Path) -> None:
    """While restored processes stand still: check that none has more rights than a rank may have, whatever its image
    says.

    CRIU's own processes end by themselves, some a moment after CRIU has: a process that still has too many rights after
    that time was restored. It stands still meanwhile.

    :param proc: /proc of the slot, whose init has PID 1 there. It shows processes of namespaces below, too
    :raises RestoreError: names the process and what it has
    """
    end = time.monotonic() + ENDS_S
    while problem := _problem(proc):
        if time.monotonic() > end:
            raise RestoreError(
                f"rank {rank}: {problem}, which no rank may; the checkpoint was not made by this launcher, or has been "
                "changed"
            )
        time.sleep(0.02)


def _problem(proc: Path) -> str:
    """The first process that has more rights than a rank may have, and which; "" if there is none."""
    ours = _namespaces(proc / "1")
    for pid in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()):
        for task in _tasks(proc / str(pid)) if pid != 1 else ():
            try:
                status = _fields(_status(task))
                ended = status.get("State", "")[:1] in _ENDED
                problem = "" if ended else excess(status) or foreign(_namespaces(task), ours)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            if problem:
                return f"{process_scan.name(pid, proc)} {problem}"
    return ""


def _tasks(process: Path) -> list[Path]:
    try:
        return list((process / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def excess(status: Mapping[str, str]) -> str:
    """The rights of a task beyond those of a rank, "" if there are none. `status`: its /proc/PID/status."""
    more = {name: int(status[name], 16) & ~MASK for name in _SETS if int(status[name], 16) & ~MASK}
    if more:
        return "has capabilities " + ", ".join(f"{name} {value:x}" for name, value in more.items())
    if status["Seccomp"] != _FILTERED:
        return "is under no filter of system calls"
    if status["NoNewPrivs"] != "1":
        return "may gain capabilities from programs that it runs"
    return ""


def foreign(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Which of the namespaces are not ours, "" if all are."""
    other = sorted(name for name, link in theirs.items() if link != ours.get(name))
    return f"lives in another namespace ({', '.join(other)})" if other else ""


def _fields(lines: Sequence[str]) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _namespaces(process: Path) -> dict[str, str]:
    links = {name: process / "ns" / name for name in NAMESPACES}
    return {name: str(link.readlink()) for name, link in links.items() if link.is_symlink()}
