"""The launcher's mounts: they protect its own folder, and define the view that each slot has of the container.

A fresh procfs has none of the masks that container runtimes put on /proc. A uid-0 rank could write
/proc/sys/kernel/core_pattern, which is a way out of the container. The lists are containerd's (and runc's) defaults.

Named semaphores (Python's multiprocessing, start methods spawn and forkserver) are files in /dev/shm that a rank keeps
mapped; they travel with its image. Ranks that meet in one pod later must not find each other's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...protocol import user_namespace
from . import libc

SHM = Path("/dev/shm")  # noqa: S108 - the kernel's name for it
READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
EMPTY_FILE = ("kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts")
EMPTY_FOLDER = ("acpi", "scsi", "asound")
NEWNS, NEWPID = 0x20000, 0x20000000

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
"""System call numbers."""
_DETACH = 2
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18


def unshare(namespaces: int) -> None:
    """Leave namespaces: NEWNS now, NEWPID with the next child. Raises OSError."""
    libc.check(libc.load().unshare(namespaces), "cannot make a namespace")


def _mount(source: str, target: Path | str, flags: int, kind: str | None = None, options: str = "") -> None:
    words = (source.encode(), str(target).encode(), kind and kind.encode(), flags, options.encode() or None)
    libc.check(libc.load().mount(*words), f"cannot mount {target}")


def private(target: str) -> None:
    """What is mounted below from now on is seen in this mount namespace only. Raises OSError."""
    _mount("none", target, _REC | _PRIVATE)


def pin(target: Path) -> None:
    """Make `target` a mount of itself, with all that is mounted below. Raises OSError.

    A process that is root on a file system can rename any folder and put another in its place, unless the folder is a
    mount.
    """
    _mount(str(target), target, _BIND | _REC)


def read_only(target: Path) -> None:
    """Make a mount read-only. Raises OSError."""
    _mount("none", target, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def tmpfs(target: Path, options: str) -> None:
    """An empty file system in memory at `target`. Raises OSError."""
    _mount("tmpfs", target, _NOSUID | _NODEV, "tmpfs", options)


def keep_ours(root: Path, agent: Path) -> None:
    """Before any rank runs: protect our folder against moves, and the programs that run with our capabilities against
    writes. Raises OSError.

    :param root: all of ours lies below it
    :param agent: what the agent image has installed
    """
    pin(root)
    pin(agent)
    read_only(agent)


def conceal(folder: Path, features: bytes, run: Path = Path("/run")) -> None:
    """In a slot: an empty folder instead of `folder`, and `features` where CRIU looks for it. Raises OSError.

    :param features: CRIU's record of the kernel's features; empty: CRIU has to probe again
    """
    tmpfs(folder, "mode=755,size=64k")
    if features and not run.is_symlink():
        cache = folder / "criu.kdat"
        cache.write_bytes(features)
        run.mkdir(exist_ok=True)
        pin(run)
        place = run / cache.name
        place.touch()  # never unlinked: that would take the mounts of other slots on it away
        _mount(str(cache), place, _BIND)
        read_only(place)
    read_only(folder)


def overlay(folder: Path) -> Path:
    """Our root file system with changes of its own, which lie below `folder`. Returns where it is mounted.

    Without the volumes that are mounted in it (`enter`). In a user namespace the kernel tells CRIU which file is mapped
    by its number alone: there numbers say from which layer a file is (`xino`, images/criu/0004). Raises OSError.
    """
    top, work, target = folder / "upper", folder / "work", folder / "root"
    for made in (top, work, target):
        made.mkdir(parents=True)
    folder.parent.chmod(0o700)
    numbers = ",xino=on" if user_namespace.inside() else ""
    like = Path("/").stat()
    os.chown(top, like.st_uid, like.st_gid)
    top.chmod(like.st_mode & 0o7777)
    _mount("overlay", target, 0, "overlay", f"lowerdir=/,upperdir={top},workdir={work}{numbers}")
    return target


def enter(root: Path) -> None:
    """Make `root`, a mount, this mount namespace's root, with all volumes where they were. Raises OSError."""
    for point in list(volumes()):
        _mount(point, f"{root}{point}", _BIND | _REC)
    os.chdir(root)
    c = libc.load()
    libc.check(c.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), f"cannot change the root to {root}")
    libc.check(c.umount2(b".", _DETACH), "cannot leave the root before")
    os.chdir("/")


def volumes(mountinfo: Path = Path("/proc/self/mountinfo")) -> Iterator[str]:
    """Where something is mounted on the root itself: what is mounted in there comes along."""
    lines = [line.split() for line in mountinfo.read_text().splitlines()]
    top = [words[0] for words in lines if words[4] == "/"][-1]
    for words in lines:
        if words[1] == top and words[4] != "/":
            yield unescaped(words[4])


def unescaped(path: str) -> str:
    """A path of mountinfo as it is."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), path)


def own_proc(proc: Path = Path("/proc")) -> None:
    """The process table of this PID namespace. Raises OSError."""
    _mount("proc", proc, _NOSUID | _NODEV | _NOEXEC, "proc")


def private_shm(shm: Path = SHM) -> None:
    """An empty /dev/shm for this mount namespace, as large as the pod's. Raises OSError."""
    shm.mkdir(parents=True, exist_ok=True)
    room = os.statvfs(shm)
    _mount("shm", shm, _NOSUID | _NODEV, "tmpfs", f"mode=1777,size={room.f_blocks * room.f_frsize}")


def mask_proc(proc: Path = Path("/proc")) -> None:
    """Mask `proc`, which must be this mount namespace's own. Raises OSError: a slot without masks must not start."""
    for name in READ_ONLY:
        target = proc / name
        if target.exists():
            _mount(str(target), target, _BIND)
            _mount("none", target, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    for name in EMPTY_FILE:
        if (proc / name).exists():
            _mount("/dev/null", proc / name, _BIND)
    for name in EMPTY_FOLDER:
        if (proc / name).exists():
            _mount("tmpfs", proc / name, _RDONLY, "tmpfs")
