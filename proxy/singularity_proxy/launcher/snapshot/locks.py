"""File locks of a rank: flock, POSIX (`lockf`) and those of an open file (OFD). CRIU takes them again.

Where files of a volume are locked, another pod may have got the lock meanwhile, and CRIU would wait for it for ever.
So the locks of a rank are tried before CRIU runs. A lock that stays taken ends the attempt; the next one tries again.
Leases (`F_SETLEASE`) are refused: who waits for one to be given back is in another process, maybe in another pod.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ...protocol import exit_codes
from ..errors import RestoreError
from ..ranks import process_scan
from ..ranks.process_scan import PROC
from .image import FileLock

PATIENCE_S = 20.0
"""The pods before may just be ending, or another job may hold the lock for a moment."""
POLL_S = 0.1
_NAMES = {"FLOCK": "flock", "POSIX": "posix", "OFDLCK": "ofd"}
_OFD_SETLK = 37


def held(pids: Sequence[int], proc: Path = PROC) -> list[FileLock]:
    """Locks of the processes on files that have a name, each once."""
    found = {
        FileLock(target, _NAMES[kind], mode == "WRITE", int(start), 0 if end == "EOF" else int(end) - int(start) + 1)
        for _, _, target, kind, mode, start, end in _lines(pids, proc)
        if kind in _NAMES and not target.endswith(" (deleted)")
    }
    return sorted(found, key=lambda lock: (lock.path, lock.kind, lock.start, lock.size))


def leases(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each lease of the processes."""
    return [
        f"{process_scan.name(pid, proc)} has a lease (F_SETLEASE) on {target} (descriptor {descriptor})"
        for pid, descriptor, target, kind, *_ in _lines(pids, proc)
        if kind == "LEASE"
    ]


def _lines(pids: Sequence[int], proc: Path) -> Iterator[tuple[int, int, str, str, str, str, str]]:
    """(PID, descriptor, path, kind, mode, first byte, last byte or EOF) of each lock that a descriptor shows."""
    for pid in pids:
        for descriptor, target in process_scan.open_files(pid, proc):
            if not target.startswith("/"):
                continue
            with contextlib.suppress(OSError):
                for line in (proc / str(pid) / "fdinfo" / str(descriptor)).read_text().splitlines():
                    words = line.split()
                    if words[0] == "lock:" and len(words) >= 9:
                        yield pid, descriptor, target, words[2], words[4], words[7], words[8]


def check(ranks: Mapping[int, Sequence[FileLock]], volumes: Collection[str], patience_s: float = PATIENCE_S) -> None:
    """Wait until the ranks can have their locks. Raises RestoreError that names one which somebody else has.

    :param volumes: mount points; files elsewhere are the pod's own, and nobody else has locked them
    """
    wanted = [(r, lock) for r, found in sorted(ranks.items()) for lock in found if _within(lock.path, volumes)]
    deadline = time.monotonic() + patience_s
    while (missed := _missed(wanted)) is not None:
        if time.monotonic() > deadline:
            rank, lock = missed
            raise RestoreError(
                f"rank {rank} had {_words(lock)} at the checkpoint, and somebody else has it: another job, or what is "
                f"left of the pod before. It was waited for for {patience_s:.0f} s; the next attempt tries again",
                exit_codes.LOST,
            )
        time.sleep(POLL_S)


def _within(path: str, volumes: Collection[str]) -> bool:
    return any(path.startswith(f"{point}/") for point in volumes)


def _missed(wanted: Sequence[tuple[int, FileLock]]) -> tuple[int, FileLock] | None:
    """The first lock that cannot be had together with those before it."""
    with contextlib.ExitStack() as taken:
        for rank, lock in wanted:
            descriptor = _opened(lock.path)
            if descriptor is None:
                continue
            taken.callback(os.close, descriptor)
            if not _taken(descriptor, lock):
                return rank, lock
    return None


def _opened(path: str) -> int | None:
    """None for what is no file here: CRIU says so, too."""
    for flags in (os.O_RDWR, os.O_RDONLY):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.lstat(path).st_mode):
                return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    return None


def _taken(descriptor: int, lock: FileLock) -> bool:
    try:
        if lock.kind == "flock":
            fcntl.flock(descriptor, (fcntl.LOCK_EX if lock.exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        else:  # one of an open file conflicts with POSIX locks, too, and is given back with this descriptor alone
            how = fcntl.F_WRLCK if lock.exclusive else fcntl.F_RDLCK
            words = struct.pack("hhqqi4x", how, os.SEEK_SET, lock.start, lock.size, 0)
            fcntl.fcntl(descriptor, _OFD_SETLK, words)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _words(lock: FileLock) -> str:
    mode = "an exclusive" if lock.exclusive else "a shared"
    last = "the end" if not lock.size else f"{lock.start + lock.size - 1}"
    part = f", bytes {lock.start} to {last}" if lock.kind != "flock" else ""
    return f"{mode} lock ({lock.kind}{part}) on {lock.path}"
