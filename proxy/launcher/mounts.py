"""What a slot mounts for itself: the masks on /proc, and a /dev/shm of its own.

A fresh procfs has none of the masks that container runtimes put on /proc: /proc/sys/kernel/core_pattern would be
writable by a uid-0 rank, which is a way out of the container. The lists are containerd's (and runc's) defaults.

Named semaphores (Python's multiprocessing, start methods spawn and forkserver) are files in /dev/shm that a rank keeps
mapped; they travel with its image. Ranks that meet in one pod later must not find each other's.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

SHM = Path("/dev/shm")  # noqa: S108 - the kernel's name for it
READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
EMPTY_FILE = ("kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts")
EMPTY_FOLDER = ("acpi", "scsi", "asound")

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096


def _mount(source: str, target: Path, flags: int, kind: str | None = None, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), str(target).encode(), kind and kind.encode(), flags, options.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {target} in the slot: {os.strerror(number)}")


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
