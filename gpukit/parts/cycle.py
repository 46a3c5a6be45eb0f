"""Lock, checkpoint, restore and unlock of a process that has 1, 8 and 32 GB on its GPU: seconds, and every bit back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from singularity_proxy.launcher.device import cycle, nvml
from singularity_proxy.launcher.device.copies import Copies
from singularity_proxy.launcher.device.driver import Driver
from singularity_proxy.launcher.device.fake import FakeDriver, FakeProcess

from ..kit import Kit, Result

SIZES = (1, 8, 32)
"""GB."""
ROOM = 1 << 30
"""Bytes that stay free on the GPU."""


def run(kit: Kit, result: Result) -> None:
    for gigabytes in SIZES:
        size = int(gigabytes * cycle.GB)
        why = _too_large(kit, size)
        if why:
            result.note(f"{gigabytes} GB: not measured: {why}")
            continue
        for how in ("driver", "own"):
            _one(kit, result, gigabytes, size, how)
    result.check("a process was there and back", bool(result.checks))
    result.sentence = f"{len(result.checks) - 1} ways there and back"


def _too_large(kit: Kit, size: int) -> str:
    if kit.fake:
        return ""
    free = min(device.memory for device in kit.devices()) - ROOM
    if size > free:
        return f"the GPU has room for {free / cycle.GB:.0f} GB"
    if size * cycle.HOST_FACTOR > cycle.host_memory():
        return f"the host has {cycle.host_memory() / cycle.GB:.0f} GB free, and the driver copies into its memory"
    return ""


def _one(kit: Kit, result: Result, gigabytes: int, size: int, how: str) -> None:
    """:param how: who copies"""
    with _subject(kit, size) as (driver, pid, held, wrong):
        if how == "own" and not driver.lends():
            if gigabytes == SIZES[0]:
                result.note("copies of the launcher (own): not with this driver, it needs CUDA 13.4 or newer")
            return
        name = f"{gigabytes} GB, {how}"
        used: list[float] = []
        folder = kit.folder / f"own-{gigabytes}"
        began = time.monotonic()
        took = cycle.measure(
            driver, pid, held, lambda: Copies(folder, 2) if how == "own" else None, lambda: used.extend(_used(kit))
        )
        result.check(f"{name}: every bit is back", (bad := wrong()) == 0, f"{bad} words differ" if bad else "")
        if kit.fake:
            return  # its seconds say nothing
        for verb in ("lock", "checkpoint", "restore", "unlock"):
            result.figure(f"{name}: {verb} s", getattr(took, verb))
        for verb in ("checkpoint", "restore"):
            result.figure(f"{name}: {verb} GB/s", held / cycle.GB / max(getattr(took, verb), 1e-9))
        result.figure(f"{name}: all s", time.monotonic() - began)
        for number, bytes_used in enumerate(used):
            result.figure(f"{name}: GPU {number} in use meanwhile, GB", bytes_used / cycle.GB)


@contextmanager
def _subject(kit: Kit, size: int) -> Iterator[tuple[Driver, int, int, Callable[[], int]]]:
    """Driver, PID, bytes on the GPU, and how many words differ."""
    if kit.fake:
        content = {kit.devices()[0].uuid: b"weights"}
        process = FakeProcess(dict(content))
        yield FakeDriver(kit.devices(), {7: process}), 7, size, lambda: int(process.memory != content)
        return
    driver = kit.driver()
    with cycle.holder(size) as held:
        yield driver, held.pid, held.size, held.wrong


def _used(kit: Kit) -> list[int]:
    """Bytes in use on each GPU, where NVML can be asked: device memory must be given up meanwhile."""
    library = None if kit.fake else nvml.library()
    return [] if library is None else [each.memory_used for each in nvml.read(library)]
