"""Ranks of one job in the training root file system, running in turns: `block(n)` makes n steps and says how long.

Two worlds that differ in one thing take turns of a second each, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.prepare import Prepared

from .harness import Page, install_agent

PROGRAMS = Path(__file__).parent / "programs"
_ENTER = r"""
set -eu
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=$WORLD/upper,workdir=$WORLD/overlay" "$WORLD/root"
cd "$WORLD/root"
mkdir -p bench opt/torch dev/shm proc tmp
mount -t proc proc proc
mount --bind /dev dev
mount --bind "$TORCH" opt/torch
mount --bind "$WORLD/bench" bench
exec chroot . env -i $ENVIRONMENT python3 /bench/world.py $ARGUMENTS
"""


@dataclass(frozen=True)
class Block:
    """Per mini-batch: seconds on the slowest rank, CPU seconds of all ranks together."""

    seconds: float
    cpu: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prefer(pid: int) -> None:
    """Let the session of `pid` go before what else the machine does: figures of milliseconds drown in it otherwise.

    Where the kernel groups sessions (autogroup), the priority of a process counts only within its own.
    """
    os.setpriority(os.PRIO_PROCESS, pid, -20)
    autogroup = Path(f"/proc/{pid}/autogroup")
    if autogroup.exists():
        autogroup.write_text("-20")


class World:
    """:param agent: whether the agent is injected, with a barrier page that nobody asks on
    :param cores: the core that each rank may use; None: all
    """

    def __init__(
        self, made: Prepared, ranks: int, *, agent: bool, cores: Sequence[int] | None = None, width: int = 384
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        bench = self.folder / "bench"
        for name in ("upper", "overlay", "root", "bench/run"):
            (self.folder / name).mkdir(parents=True)
        for name in ("world.py", "steps.py"):
            shutil.copy(PROGRAMS / name, bench / name)
        path = "/opt/torch"
        if agent:
            install_agent(bench / "lib")
            self._page = Page(bench / "run", ranks)
            for rank in range(ranks):
                (bench / f"run/rank-{rank}").mkdir()
            path = f"/bench/lib:{path}"
        plan = {"ranks": ranks, "agent": agent, "cores": cores, "width": width, "port": free_port()}
        (bench / "plan.json").write_text(json.dumps(plan))
        environment = f"PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1"
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER],
            env={
                "PATH": os.environ["PATH"],
                "ROOTFS": str(made.rootfs),
                "TORCH": str(made.torch),
                "WORLD": str(self.folder),
                "ENVIRONMENT": environment + " OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo",
                "ARGUMENTS": "/bench/plan.json",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        prefer(self._process.pid)

    def block(self, steps: int) -> Block:
        """Make `steps` mini-batches. Raises RuntimeError when the world has ended."""
        answer = self._ask(f"go {steps}")
        return Block(answer["seconds"] / steps, answer["cpu"] / steps)

    def hook(self, calls: int) -> dict[str, float]:
        """CPU nanoseconds per call on rank 0: of torch's dispatch of the agent's hook (`agent`) and of an empty one."""
        return {key: float(value) for key, value in self._ask(f"hook {calls}").items()}

    def counts(self) -> list[int]:
        """Step boundaries that the agent has counted, per rank."""
        return [self._page.rank(rank).count for rank in range(int(self._page.words[2]))]

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"the ranks have ended with {self._process.wait(10)}; see above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
