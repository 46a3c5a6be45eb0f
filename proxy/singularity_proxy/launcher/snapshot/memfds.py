"""Memory files (memfd) that CRIU saves and cannot restore: sealed against writing, and mapped as shared memory.

It maps them before it seals them, and the kernel then seals no file that could still be written through a mapping.
"""

from __future__ import annotations

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
    found = {(pid, name) for pid in pids for part, name in _shared(pid, proc) if _is_sealed(proc, pid, part)}
    return [f"{process_scan.name(pid, proc)} has mapped {name}" for pid, name in sorted(found)]


def _shared(pid: int, proc: Path) -> list[tuple[str, str]]:
    """Address range and name of the memory files that a process has mapped as shared memory."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    words = (line.split(maxsplit=5) for line in lines if _NAME in line)
    return [(w[0], w[5].removesuffix(" (deleted)")) for w in words if w[5].startswith(_NAME) and w[1][3] == "s"]


def _is_sealed(proc: Path, pid: int, part: str) -> bool:
    begin, end = (int(word, 16) for word in part.split("-"))
    try:
        descriptor = os.open(proc / str(pid) / f"map_files/{begin:x}-{end:x}", os.O_RDONLY)
    except OSError:
        return False
    try:
        return bool(fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_WRITE)
    except OSError:
        return False
    finally:
        os.close(descriptor)
