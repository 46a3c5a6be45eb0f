"""Ranks of one job in the training root file system, running in turns: `block(n)` makes n steps and says how long.

Two worlds that differ in one thing take turns of a second each, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.prepare import Prepared

from .box import enter
from .harness import Page, install_agent

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Block:
    """Per mini-batch: seconds on the slowest rank, CPU seconds of all ranks together."""

    seconds: float
    cpu: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class World:
    """:param agent: whether the agent is injected, with a barrier page that nobody asks on
    :param cores: the core that each rank may use; None: all
    """

    def __init__(
        self, made: Prepared, ranks: int, *, agent: bool, cores: Sequence[int] | None = None, width: int = 384
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        bench = self.folder / "bench"
        (bench / "run").mkdir(parents=True)
        for name in ("world.py", "steps.py"):
            shutil.copy(PROGRAMS / name, bench / name)
        if agent:
            install_agent(bench / "lib")
            self._page = Page(bench / "run", ranks)
            for rank in range(ranks):
                (bench / f"run/rank-{rank}").mkdir()
        plan = {"ranks": ranks, "agent": agent, "cores": cores, "width": width, "port": free_port()}
        (bench / "plan.json").write_text(json.dumps(plan))
        self._process = enter(
            made,
            self.folder,
            # Where things lie in memory differs from run to run, and makes identical worlds differ by per cents.
            ["setarch", "--addr-no-randomize", "python3", "/bench/world.py", "/bench/plan.json"],
            path=["/bench/lib"] if agent else [],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def block(self, steps: int) -> Block:
        """Make `steps` mini-batches. Raises RuntimeError when the world has ended."""
        answer = self._ask(f"go {steps}")
        return Block(answer["seconds"] / steps, answer["cpu"] / steps)

    def switch(self, agent: bool) -> None:
        """Take the agent out of the ranks, or put it back; for worlds with an agent that have made a step."""
        self._ask(f"agent {'on' if agent else 'off'}")

    def hook(self, calls: int) -> dict[str, float]:
        """CPU nanoseconds per call on rank 0: of torch's dispatch of the agent's hook (`agent`) and of an empty one."""
        return {key: float(value) for key, value in self._ask(f"hook {calls}").items()}

    def collective(self, calls: int) -> float:
        """CPU nanoseconds per small all-reduce, of all threads of rank 0; for worlds of one rank."""
        return float(self._ask(f"collective {calls}")["all_reduce"])

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
