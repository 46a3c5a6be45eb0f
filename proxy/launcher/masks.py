"""The masks that container runtimes put on /proc, redone on a slot's fresh /proc.

A fresh procfs has none of them: /proc/sys/kernel/core_pattern would be writable by a uid-0 rank, which is a way out of
the container. The lists are containerd's (and runc's) defaults.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
EMPTY_FILE = ("kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts")
EMPTY_FOLDER = ("acpi", "scsi", "asound")

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096


def _mount(source: str, target: Path, flags: int, kind: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), str(target).encode(), kind.encode() if kind else None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mask {target}: {os.strerror(number)}")


def apply(proc: Path = Path("/proc")) -> None:
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
