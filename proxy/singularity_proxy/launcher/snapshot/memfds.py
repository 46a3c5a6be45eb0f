"""Memory files (memfd) that CRIU saves and cannot restore: sealed against writing, and mapped as shared memory.

It maps them before it seals them, and the kernel then seals no file that could still be written through a mapping.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from ..ranks import process_scan
from ..ranks.process_scan import PROC

_NAME = "/memfd:"
_GET_SEALS, _SEAL_WRITE = 1034, 8


def sealed(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each such mapping."""
    held = _held(pids, proc)
    found = {
        (pid, name)
        for pid in pids
        for part, inode, name in _shared(pid, proc)
        if any(map(_is_sealed, [proc / str(pid) / "map_files" / part, *held.get(inode, [])]))
    }
    return [f"{process_scan.name(pid, proc)} has mapped {name}" for pid, name in sorted(found)]


def _held(pids: Sequence[int], proc: Path) -> dict[int, list[Path]]:
    """Inode number of each memory file that is open -> its descriptors.

    In a user namespace the kernel shows nobody the file of a mapping. One that nobody has open is anonymous memory to
    CRIU there, which has no seals.
    """
    found = dict[int, list[Path]]()
    for pid in pids:
        for descriptor, target in process_scan.open_files(pid, proc):
            if target.startswith(_NAME):
                path = proc / str(pid) / "fd" / str(descriptor)
                with contextlib.suppress(OSError):
                    found.setdefault(path.stat().st_ino, []).append(path)
    return found


def _shared(pid: int, proc: Path) -> list[tuple[str, int, str]]:
    """Name in map_files, inode number and name of the memory files that a process has mapped as shared memory."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    words = (line.split(maxsplit=5) for line in lines if _NAME in line)
    return [
        ("-".join(f"{int(end, 16):x}" for end in w[0].split("-")), int(w[4]), w[5].removesuffix(" (deleted)"))
        for w in words
        if w[5].startswith(_NAME) and w[1][3] == "s"
    ]


def _is_sealed(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return bool(fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_WRITE)
    except OSError:
        return False
    finally:
        os.close(descriptor)
