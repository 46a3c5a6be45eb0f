"""Runs a script of `programs/` twice: uninterrupted, and stopped, dumped, its pod deleted, restored in a new pod."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_sidecar import Coordinator
from pod_harness import Pod
from pod_moves import free_port, until

from singularity_proxy.protocol import messages, page

PROGRAMS = Path(__file__).parent / "programs"
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
LOSSES = "losses"


@dataclass(frozen=True)
class Program:
    """A row of the table. It is stopped once rank 0 has written so many lines to its file `losses`."""

    script: str
    arguments: tuple[str, ...]
    stop_at: int
    ranks: int = 2
    env: Mapping[str, str] = field(default_factory=dict)
    within: float = 60.0
    """Seconds in which the barrier must be reached."""
    anywhere: bool = False
    """One rank, stopped wherever its processes are."""
    starter: tuple[str, ...] = ("python3",)
    """What stands before the script."""
    since: tuple[int, int] = (2, 6)
    """The oldest torch that itself runs it on a CPU, of those that are played."""


def needs_torch(folder: Path, since: tuple[int, int]) -> None:
    """Skip the test where the torch in `folder` is older."""
    found = re.search(r"__version__ = '(\d+)\.(\d+)", (folder / "torch/version.py").read_text())
    if found is not None and (int(found[1]), int(found[2])) < since:
        pytest.skip(f"torch {found[1]}.{found[2]} itself does not run this on a CPU")


class Runner:
    """:param make: makes a pod from (name, plan, command, env)"""

    def __init__(self, make: Callable[..., Pod], program: Program) -> None:
        self._make, self.program = make, program
        self.ranks = list(range(program.ranks))

    def pod(self, name: str, plan: messages.Plan, command: list[str] | None = None) -> Pod:
        program = self.program
        command = command or [*program.starter, program.script, *program.arguments]
        pod = self._make(name, plan=plan, command=command, env={**ENV, **program.env})
        shutil.copy(PROGRAMS / program.script, pod.volumes / "source" / program.script)
        return pod

    def start(self, name: str) -> Pod:
        return self.pod(name, messages.Plan("fresh", 1, len(self.ranks), self.ranks, "127.0.0.1", free_port())).start()

    def losses(self, pod: Pod) -> list[list[str]]:
        paths = [pod.work(rank) / "cwd" / LOSSES for rank in self.ranks]
        return [path.read_text().splitlines() if path.exists() else [] for path in paths]

    def wait_lines(self, pod: Pod, lines: int) -> None:
        until(lambda: len(self.losses(pod)[0]) >= lines, f"{lines} lines", pod)

    def stop(self, pod: Pod, generation: int) -> None:
        """Barrier and dump; afterwards the pod is gone, its images are there."""
        if not self.program.anywhere:
            coordinator = Coordinator(dict.fromkeys(self.ranks, pod.sidecar))
            try:
                coordinator.acquire(generation, timeout=self.program.within)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{pod.log()}") from None
        pod.sidecar.command("dump", generation=generation, checkpoint_id="c", anywhere=self.program.anywhere)
        event = pod.wait_event("dumped", "dump_failed")
        assert event.kind == "dumped", f"{event.message}\n{pod.log()}"
        pod.delete()

    def restore(self, name: str, old: Pod, generation: int) -> Pod:
        world = len(self.ranks)
        plan = messages.Plan("restore", 2, world, self.ranks, "127.0.0.1", free_port(), generation, "c")
        new = self.pod(name, plan)
        for rank in self.ranks:
            new.bring(old, "c", rank)
        new.start()
        new.wait_event("restored")
        return new

    def compare(self) -> None:
        """The whole test."""
        reference = self.start("reference")
        assert reference.wait() == 0, reference.log()
        whole = self.losses(reference)
        pod = self.start("old")
        self.wait_lines(pod, self.program.stop_at)
        generation = page.generation(1, 1)
        self.stop(pod, generation)
        assert len(self.losses(pod)[0]) < len(whole[0]), "stopped after its end: nothing was tested"
        new = self.restore("new", pod, generation)
        assert new.wait() == 0, new.log()
        assert self.losses(new) == whole
