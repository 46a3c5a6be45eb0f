"""Objects that live in the pod beside its processes, or that CRIU restores as others: they are refused by name.

System V memory, queues and semaphores, and POSIX queues belong to the IPC namespace of the pod, which CRIU does not
save: what is not attached or open would be gone without a word. An eventfd that counts as a semaphore would come back
as one that does not, and a directory whose changes are signalled (F_NOTIFY) without its signals.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..ranks import libc, process_scan
from ..ranks.process_scan import PROC

_QUEUES = "/dev/mqueue"
_QUEUES_MAGIC = 0x19800202
_ATTACHED = "/SYSV"


def system_v(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each object of System V that is, or may be, of these processes.

    The kernel says who has made shared memory, and of which namespace he was. Of the others it says nothing.
    """
    found = []
    shared = _table(proc, "shm")
    attached = {} if not shared else {number: pid for pid in pids for number in _attached(pid, proc)}
    for row in shared:
        number, maker = int(row["shmid"]), int(row["cpid"])
        whose = attached.get(number, maker)
        if whose in pids:
            doing = "has attached" if number in attached else "has made"
            found.append(f"{process_scan.name(whose, proc)} {doing} shared memory segment {number}")
        elif maker and not (proc / str(maker)).exists():  # 0: it is of another container
            found.append(f"a process that has ended has left shared memory segment {number}")
    found += [f"there is a queue of messages, number {row['msqid']}" for row in _table(proc, "msg")]
    return found + [f"there is a set of semaphores, number {row['semid']}" for row in _table(proc, "sem")]


def _table(proc: Path, kind: str) -> list[dict[str, str]]:
    try:
        head, *rows = (proc / "sysvipc" / kind).read_text().splitlines()
    except (OSError, ValueError):
        return []  # a kernel without it
    return [dict(zip(head.split(), row.split(), strict=False)) for row in rows]


def _attached(pid: int, proc: Path) -> Iterator[int]:
    """Numbers of the segments that a process has attached: the kernel shows them as inodes."""
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "maps").read_text().splitlines():
            words = line.split(maxsplit=5)
            if len(words) > 5 and words[5].startswith(_ATTACHED):
                yield int(words[4])


def queues(pids: Sequence[int], proc: Path = PROC, folder: Path = Path(_QUEUES)) -> list[str]:
    """A sentence for each POSIX queue that is open, or has a name in the pod."""
    opened = {
        target: f"{process_scan.name(pid, proc)} has POSIX queue {target} open (descriptor {descriptor})"
        for pid in pids
        for descriptor, target in process_scan.open_files(pid, proc)
        if target.count("/") == 1 and _is_queue(proc / str(pid) / "fd" / str(descriptor))
    }
    names = {f"/{entry.name}" for entry in folder.iterdir()} if _is_queue(folder) else set[str]()
    return [*opened.values(), *(f"there is POSIX queue {name}" for name in sorted(names - opened.keys()))]


def _is_queue(path: Path) -> bool:
    words = (ctypes.c_long * 32)()  # struct statfs, whose first word is the kind of the file system
    return libc.load().statfs(os.fsencode(path), words) == 0 and words[0] == _QUEUES_MAGIC


def semaphores(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each eventfd that counts as a semaphore. Linux before 6.6 does not tell."""
    return [
        f"{process_scan.name(pid, proc)} has an eventfd with EFD_SEMAPHORE (descriptor {descriptor})"
        for pid in pids
        for descriptor, target in process_scan.open_files(pid, proc)
        if target == "anon_inode:[eventfd]" and _counts(proc / str(pid) / "fdinfo" / str(descriptor))
    ]


def _counts(path: Path) -> bool:
    with contextlib.suppress(OSError):
        words = dict(line.split() for line in path.read_text().splitlines() if len(line.split()) == 2)
        return words.get("eventfd-semaphore:") == "1"
    return False


def signalled_folders(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each open directory whose changes a process gets as signals: such a one has an owner."""
    found = []
    for pid in pids:
        for descriptor, target in process_scan.open_files(pid, proc):
            with contextlib.suppress(OSError):
                if not stat.S_ISDIR((proc / str(pid) / "fd" / str(descriptor)).stat().st_mode):
                    continue
                with process_scan.borrowed(pid, descriptor) as own:
                    if fcntl.fcntl(own, fcntl.F_GETOWN):
                        who = process_scan.name(pid, proc)
                        found.append(f"{who} is signalled changes in {target} (F_NOTIFY, descriptor {descriptor})")
    return found
