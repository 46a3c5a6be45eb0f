"""What threads have chosen for themselves and CRIU does not save: CPUs, priority for disks, memory policy, core files.

Only what differs from the launcher's own is recorded: that is what the pod gives to everything in it, and the next pod
gives something else. Restored threads make the calls themselves (`retake`).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..ranks import libc, process_scan
from ..ranks.process_scan import PROC
from .image import Settings

_SET_CPUS, _SET_DISK, _GET_DISK, _SET_NUMA = 203, 251, 252, 238
"""System calls of x86_64: sched_setaffinity, ioprio_set, ioprio_get, set_mempolicy."""
_PROCESS = 1
"""IOPRIO_WHO_PROCESS: one thread."""
_MODES = {
    "default": 0, "prefer": 1, "bind": 2, "interleave": 3, "local": 4, "prefer (many)": 5, "weighted interleave": 6,
}  # fmt: skip
_FLAGS = {"static": 1 << 15, "relative": 1 << 14, "balancing": 1 << 13}
_NODES = 1024
_LINE = 200
"""The kernel writes no more areas of a process than fit: each costs a look at its pages."""


def chosen(pids: Sequence[int], proc: Path = PROC) -> list[Settings]:
    """What each thread of the processes has chosen. A process's memory policy is that of its first thread."""
    us = os.getpid()
    ours = _of_first(us, proc)
    return [each for pid in pids for each in _of_process(pid, ours, proc)]


def _of_process(pid: int, ours: Settings, proc: Path) -> Iterator[Settings]:
    with contextlib.suppress(OSError):  # it has ended
        first = _of_first(pid, proc)
        for entry in sorted((proc / str(pid) / "task").iterdir(), key=lambda path: int(path.name)):
            task = int(entry.name)
            cpus, disk = (first.cpus, first.disk) if task == pid else (_cpus(task), _disk(task))
            found = Settings(
                0,
                cpus if cpus != ours.cpus else [],
                disk if disk != ours.disk else 0,
                first.numa if first.numa != ours.numa else "",
                first.core if task == pid and first.core != ours.core else "",
            )
            if found != Settings(0):
                yield replace(found, task=process_scan.inner_pid(task, entry.parent))


def _of_first(pid: int, proc: Path) -> Settings:
    return Settings(0, _cpus(pid), _disk(pid), numa_policy(pid, proc), _core(pid, proc))


def _cpus(task: int) -> list[int]:
    return sorted(os.sched_getaffinity(task))


def _disk(task: int) -> int:
    return max(0, int(libc.load().syscall(_GET_DISK, _PROCESS, task)))


def _core(pid: int, proc: Path) -> str:
    with contextlib.suppress(OSError):  # a kernel without core files
        return (proc / str(pid) / "coredump_filter").read_text().strip()
    return ""


def numa_policy(pid: int, proc: Path = PROC) -> str:
    """The memory policy of a process, as the kernel writes it: `interleave:0-1`; "" where it has none."""
    with contextlib.suppress(OSError):  # a kernel without nodes
        descriptor = os.open(proc / str(pid) / "numa_maps", os.O_RDONLY)
        try:
            line = os.read(descriptor, _LINE).decode(errors="replace").partition("\n")[0]
        finally:
            os.close(descriptor)
        policy = line.partition(" ")[2]
        for name in sorted(_MODES, key=len, reverse=True):
            if policy.startswith(name):
                return name + policy.removeprefix(name).partition(" ")[0]
    return ""


def calls(found: Settings, allowed: Sequence[int] | None = None) -> Iterator[tuple[int, int, int | bytes, int | bytes]]:
    """System calls that a restored thread makes: number and three arguments.

    :param allowed: CPUs of this pod; None: those of this process
    """
    cpus = {*found.cpus} & {*(_cpus(0) if allowed is None else allowed)}
    if cpus:
        mask = sum(1 << cpu for cpu in cpus).to_bytes(max(cpus) // 64 * 8 + 8, "little")
        yield _SET_CPUS, 0, len(mask), mask
    if found.disk:
        yield _SET_DISK, _PROCESS, 0, found.disk
    if found.numa:
        yield _SET_NUMA, *policy(found.numa), _NODES


def policy(text: str) -> tuple[int, bytes]:
    """Mode with its flags, and mask of nodes, of a policy as the kernel writes it. Raises ValueError."""
    words, _, nodes = text.partition(":")
    name, _, flags = words.partition("=")
    if name not in _MODES or any(flag not in _FLAGS for flag in filter(None, flags.split("|"))):
        raise ValueError(f"memory policy {text!r} is not known")
    mode = _MODES[name] | sum(_FLAGS[flag] for flag in filter(None, flags.split("|")))
    bits = 0
    for part in filter(None, nodes.split(",")):
        first, _, last = part.partition("-")
        for node in range(int(first), int(last or first) + 1):
            bits |= 1 << node
    return mode, struct.pack(f"{_NODES // 64}Q", *(bits >> 64 * at & 2**64 - 1 for at in range(_NODES // 64)))


def missing(rank: int, found: Sequence[Settings], allowed: Sequence[int] | None = None) -> list[str]:
    """A sentence about CPUs to which threads were bound and which this pod does not have; none if it has all."""
    ours = {*(_cpus(0) if allowed is None else allowed)}
    gone = sorted({cpu for each in found for cpu in each.cpus} - ours)
    if not gone:
        return []
    free = sum(bool(each.cpus) and not ours & {*each.cpus} for each in found)
    return [
        f"rank {rank}: threads were bound to CPUs {gone}, which this pod does not have: they keep to the others that "
        f"they had, and {free} of them run on any"
    ]
