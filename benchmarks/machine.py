"""What the machine itself takes, so that a figure can be separated from where it was measured."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

CPUACCT = Path("/sys/fs/cgroup/cpuacct")
PROBE_BYTES = 256 << 20
_PIECE = 1 << 20
LINGER_S = 10.0
CPU = Path("/sys/fs/cgroup/cpu")
FEWEST = {"cpu.shares": "2", "cpu.weight": "1"}
"""What a kubelet gives a container without a CPU request (cgroup v1, v2): what others leave."""


class CpuMeter:
    """CPU time of processes and all that they start, in a cgroup (v1, or v2 with the `cpu` controller)."""

    def __init__(self, name: str) -> None:
        top = CPUACCT if CPUACCT.is_dir() else CPUACCT.parent
        self._folder = top / f"{name}-{os.getpid()}"
        self._folder.mkdir(exist_ok=True)

    def add(self, pid: int) -> None:
        """A process, and those that it has started already; what they start from now on is in it anyhow."""
        with contextlib.suppress(OSError):  # one that has just ended
            (self._folder / "cgroup.procs").write_text(str(pid))
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                self.add(int(child))

    def seconds(self) -> float:
        """So far."""
        with contextlib.suppress(OSError):
            return int((self._folder / "cpuacct.usage").read_text()) / 1e9
        usage = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(usage["usage_usec"]) / 1e6

    def pids(self) -> list[int]:
        """Of all processes in it."""
        return [int(pid) for pid in (self._folder / "cgroup.procs").read_text().split()]

    def close(self) -> None:
        """Waits a while for the processes in it, which have been killed, to be gone."""
        deadline = time.monotonic() + LINGER_S
        while True:
            try:
                return self._folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    return None
            time.sleep(0.05)


class WithoutRequest:
    """A cgroup as a kubelet makes it for containers that ask for no CPU, such as our sidecar."""

    def __init__(self, name: str) -> None:
        top = CPU if CPU.is_dir() else CPU.parent
        self._folder = top / f"{name}-{os.getpid()}"
        self._folder.mkdir(exist_ok=True)
        for field, value in FEWEST.items():
            if (self._folder / field).exists():
                (self._folder / field).write_text(value)

    def add(self, pid: int) -> None:
        """Raises OSError."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Processes that are still there go back to where all others are."""
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self._folder.parent / "cgroup.procs").write_text(pid)
        self._folder.rmdir()


def mapped_bytes(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """Memory of their own that processes in containers have mapped: what a dump of each of them alone would write.

    A page that several of them have mapped counts for each of them. A container's first process, the launcher, and
    processes outside of containers do not count: nobody dumps them.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # one that has just ended
            status = _fields(proc / str(pid) / "status")
            numbers = status["NSpid"].split()
            if len(numbers) > 1 and numbers[-1] != "1":
                total += int(_fields(proc / str(pid) / "smaps_rollup")["Anonymous"].split()[0]) * 1024
    return total


def _fields(path: Path) -> dict[str, str]:
    """Of a file with lines `name: value`. Raises OSError."""
    pairs = [line.partition(":") for line in path.read_text().splitlines()]
    return {name: value.strip() for name, _, value in pairs}


def write_cost(folder: Path) -> tuple[float, float]:
    """CPU seconds per GB of writing a new file, and of writing the same file again, which is in memory then.

    Where they differ much, the file system is not the cause. The host gives a virtual machine its memory at the first
    touch, and takes freed memory back. All that fills new memory pays this: `cp`, CRIU's dump, its restore.
    """
    path, piece = folder / "probe", os.urandom(_PIECE)
    costs = []
    try:
        for flags in (os.O_CREAT | os.O_TRUNC, 0):
            file = os.open(path, os.O_WRONLY | flags)
            try:
                began = time.thread_time()
                for _ in range(PROBE_BYTES // _PIECE):
                    os.write(file, piece)
                costs.append((time.thread_time() - began) * 1e9 / PROBE_BYTES)
            finally:
                os.close(file)
    finally:
        path.unlink(missing_ok=True)
    return costs[0], costs[1]


def told(cost: tuple[float, float]) -> str:
    return f"here 1 GB takes {cost[0]:.2f} s of CPU time to write to a new file, {cost[1]:.2f} s to write again"
