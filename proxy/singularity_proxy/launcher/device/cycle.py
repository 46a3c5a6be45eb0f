"""How long a driver takes to give device memory up and to take it back, and whether every bit is there afterwards.

Used by the GPU kit, by `singularityctl doctor --probe --gpus`, and by the driver's contract tests.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .copies import Copies
from .driver import Driver
from .python import OURS, Python

GB = 1e9
LOCK_MS = 60_000
HOST_FACTOR = 1.3
"""The driver copies into host memory: this many bytes must be free there for each byte."""
HOLDER = '''
"""Holds bytes on the GPU and says whether each of them is what it was. argv: bytes, seed."""
import sys, torch
size, seed = int(sys.argv[1]) // 8, int(sys.argv[2])
step = 1 << 25
def part(start):
    numbers = torch.arange(start, min(start + step, size), device="cuda", dtype=torch.int64)
    return numbers * 6364136223846793005 + seed  # every word of its own
held = torch.empty(size, device="cuda", dtype=torch.int64)
for start in range(0, size, step):
    held[start : start + step] = part(start)
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved(), flush=True)
for line in sys.stdin:
    wrong = sum(int((held[start : start + step] != part(start)).sum().item()) for start in range(0, size, step))
    torch.cuda.empty_cache()
    print(wrong, flush=True)
'''


@dataclass(frozen=True)
class Took:
    """Seconds of each verb, for `size` bytes of device memory."""

    size: int
    lock: float
    checkpoint: float
    restore: float
    unlock: float

    def line(self, how: str) -> str:
        """For people."""
        return (
            f"{how}: {self.size / GB:.2f} GB: lock {self.lock:.3f} s, checkpoint {self.rate(self.checkpoint)}, restore "
            f"{self.rate(self.restore)}, unlock {self.unlock:.3f} s"
        )

    def rate(self, seconds: float) -> str:
        """`0.500 s = 2.00 GB/s`."""
        return f"{seconds:.3f} s = {self.size / GB / max(seconds, 1e-9):.2f} GB/s"


def measure(
    driver: Driver,
    pid: int,
    size: int,
    copies: Callable[[], Copies | None] = lambda: None,
    between: Callable[[], object] = lambda: None,
) -> Took:
    """Once there and back. Raises DriverError.

    :param copies: called for each direction: None if the driver copies
    :param between: called while the process has nothing on its device
    """
    lock = _seconds(lambda: driver.lock(pid, LOCK_MS))
    checkpoint = _seconds(lambda: driver.checkpoint(pid, copies()))
    between()
    restore = _seconds(lambda: driver.restore(pid, {}, copies()))
    unlock = _seconds(lambda: driver.unlock(pid))
    return Took(size, lock, checkpoint, restore, unlock)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Holder:
    """A process with memory on a GPU.

    :ivar size: bytes that it has there
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.size = int(self._answer())

    def wrong(self) -> int:
        """How many words have changed. Raises RuntimeError if the process has died."""
        assert self._process.stdin is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that holds memory on the GPU has ended: {self._said()}")
        return line

    def _said(self) -> str:
        self._process.wait(30)
        assert self._process.stderr is not None
        return self._process.stderr.read().strip()[-400:] or f"code {self._process.returncode}"


@contextmanager
def holder(size: int, seed: int = 1, python: Python = OURS) -> Iterator[Holder]:
    """A process of `python` with `size` bytes on the first GPU. Raises RuntimeError, OSError."""
    process = python.start("-c", HOLDER, str(size), str(seed))
    with process:
        try:
            yield Holder(process)
        finally:
            process.kill()


def host_memory() -> int:
    """Bytes that are free on this machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
