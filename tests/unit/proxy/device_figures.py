"""How long a driver takes to give device memory up and to take it back, as lines for people. Nothing is asserted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxy.launcher.device.copies import Copies

GB = 1e9
lines: list[str] = []
"""What the test command shows at its end (`conftest.pytest_terminal_summary`)."""


@dataclass(frozen=True)
class Took:
    """Seconds of each verb, for `size` bytes of device memory."""

    size: int
    lock: float
    checkpoint: float
    restore: float
    unlock: float

    def line(self, how: str) -> str:
        def rate(seconds: float) -> str:
            return f"{seconds:.3f} s = {self.size / GB / max(seconds, 1e-9):.2f} GB/s"

        return (
            f"{how}: {self.size / GB:.2f} GB: lock {self.lock:.3f} s, checkpoint {rate(self.checkpoint)}, restore "
            f"{rate(self.restore)}, unlock {self.unlock:.3f} s"
        )


def measure(driver: Any, pid: int, size: int, copies: Callable[[], Copies | None]) -> Took:
    """Once there and back. :param copies: called for each way: None for those of the driver"""
    lock = _seconds(lambda: driver.lock(pid, 60_000))
    checkpoint = _seconds(lambda: driver.checkpoint(pid, copies()))
    restore = _seconds(lambda: driver.restore(pid, {}, copies()))
    unlock = _seconds(lambda: driver.unlock(pid))
    return Took(size, lock, checkpoint, restore, unlock)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
