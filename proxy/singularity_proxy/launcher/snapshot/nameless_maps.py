"""Mapped files that cannot be saved in a user namespace: their name is gone, and no process has them open.

A program or a library that was replaced on the disk while it runs is one. Outside of a user namespace CRIU reaches
such a file through /proc/PID/map_files, which the kernel gives to nobody inside. Deleted files of /dev/shm and memory
files are no such case: CRIU saves them as the shared memory that they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..ranks import process_scan
from ..ranks.process_scan import PROC

_DELETED = " (deleted)"
_MEMORY = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV")  # noqa: S108 - compared, not used


def unreachable(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each such file of a process."""
    found = sorted({(pid, inode, path) for pid in pids for inode, path in _deleted(pid, proc)})
    held = set(_open_inodes(pids, proc)) if found else set()
    return [f"{process_scan.name(pid, proc)} has mapped {path}" for pid, inode, path in found if inode not in held]


def _deleted(pid: int, proc: Path) -> Iterator[tuple[int, str]]:
    """Inode number and former path of the mapped files without a name; nothing of a process that has ended."""
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "maps").read_text(errors="replace").splitlines():
            words = line.split(maxsplit=5)
            if line.endswith(_DELETED) and words[5].startswith("/") and not words[5].startswith(_MEMORY):
                yield int(words[4]), words[5].removesuffix(_DELETED)


def _open_inodes(pids: Sequence[int], proc: Path) -> Iterator[int]:
    for pid in pids:
        for descriptor, _ in process_scan.open_files(pid, proc):
            with contextlib.suppress(OSError):
                yield (proc / str(pid) / "fd" / str(descriptor)).stat().st_ino
