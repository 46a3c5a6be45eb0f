"""inotify watches of a rank: CRIU needs a path for each, and the kernel tells the device and inode number only.

(`open_by_handle_at` needs a capability that training containers do not have.) The path is looked for: below the
working directories of the rank first, then below the mount point of that device, level by level.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..ranks import mounts, process_scan
from ..ranks.process_scan import PROC

FIND_S = 5.0
_FIONREAD = 0x541B
"""The request of ioctl(2): the launcher's Python has no `termios`."""
_WATCH = re.compile(r"^inotify wd:[0-9a-f]+ ino:([0-9a-f]+) sdev:([0-9a-f]+) ", re.MULTILINE)
File = tuple[int, int]
"""Device and inode number, as stat(2) has them."""


@dataclass(frozen=True)
class Watch:
    pid: int
    descriptor: int
    file: File


def held(pids: Sequence[int], proc: Path = PROC) -> list[Watch]:
    """All watches of the processes."""
    return [
        Watch(pid, descriptor, (os.makedev(int(device, 16) >> 20, int(device, 16) & 0xFFFFF), int(inode, 16)))
        for pid, descriptor in _queues(pids, proc)
        for inode, device in _WATCH.findall(_info(pid, descriptor, proc))
    ]


def unread(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each process that has not read what its watches saw: that does not travel."""
    found = []
    for pid, descriptor in _queues(pids, proc):
        with contextlib.suppress(OSError), process_scan.borrowed(pid, descriptor) as own:
            waiting = array.array("i", [0])
            fcntl.ioctl(own, _FIONREAD, waiting)
            if waiting[0]:
                what = f"has not read what its inotify watches saw (descriptor {descriptor})"
                found.append(f"{process_scan.name(pid, proc)} {what}")
    return found


def _queues(pids: Sequence[int], proc: Path) -> Iterator[tuple[int, int]]:
    for pid in pids:
        for descriptor, target in process_scan.open_files(pid, proc):
            if target == "anon_inode:inotify":
                yield pid, descriptor


def _info(pid: int, descriptor: int, proc: Path) -> str:
    with contextlib.suppress(OSError):
        return (proc / str(pid) / "fdinfo" / str(descriptor)).read_text()
    return ""


def paths(init: int, watches: Sequence[Watch], proc: Path = PROC, within_s: float = FIND_S) -> dict[File, str]:
    """Where the watched files lie, as the slot of `init` sees them; without those that were not found in time."""
    wanted = {watch.file for watch in watches}
    root = proc / str(init) / "root"
    folders = [*_working(watches, proc), *_mounted(proc / str(init) / "mountinfo", {device for device, _ in wanted})]
    return _found(root, folders, wanted, time.monotonic() + within_s)


def _working(watches: Sequence[Watch], proc: Path) -> Iterator[str]:
    for pid in {watch.pid for watch in watches}:
        with contextlib.suppress(OSError):
            yield str((proc / str(pid) / "cwd").readlink())


def _mounted(mountinfo: Path, devices: set[int]) -> Iterator[str]:
    for line in mountinfo.read_text().splitlines():
        words = line.split()
        major, minor = words[2].split(":")
        if os.makedev(int(major), int(minor)) in devices:
            yield mounts.unescaped(words[4])


def _found(root: Path, folders: Sequence[str], wanted: set[File], deadline: float) -> dict[File, str]:
    found: dict[File, str] = {}
    seen: set[File] = set()
    level = [folder.rstrip("/") for folder in folders]
    for folder in level:
        with contextlib.suppress(OSError):
            _note(os.lstat(f"{root}{folder}/."), folder or "/", wanted, found)
    while level and wanted != found.keys():
        below: list[str] = []
        for folder in level:
            if time.monotonic() > deadline or wanted == found.keys():
                return found
            with contextlib.suppress(OSError):
                status = Path(f"{root}{folder}/.").stat()
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                below += _entries(root, folder, status.st_dev, wanted, found)
        level = below
    return found


def _entries(root: Path, folder: str, device: int, wanted: set[File], found: dict[File, str]) -> Iterator[str]:
    """Notes what is in a folder; yields the folders in it on the same device."""
    with os.scandir(f"{root}{folder}/.") as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}"
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                _note(status, path, wanted, found)
                if entry.is_dir(follow_symlinks=False) and status.st_dev == device:
                    yield path


def _note(status: os.stat_result, path: str, wanted: set[File], found: dict[File, str]) -> None:
    file = status.st_dev, status.st_ino
    if file in wanted:
        found.setdefault(file, path)
