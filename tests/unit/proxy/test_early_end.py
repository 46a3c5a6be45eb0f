"""Ranks that have ended are saved as ended, by real launchers and CRIU: the others go on, in place and elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fake_sidecar import Coordinator
from pod_harness import Pod
from pod_moves import free_port, until

from singularity_proxy.protocol import messages, names, page

pytestmark = pytest.mark.criu
PROGRAM = Path(__file__).parent / "programs/early_end.py"
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
Layout = dict[str, list[int]]
"""Name of a pod -> its ranks."""


class Job:
    """:param make: makes a pod from (name, plan, command)"""

    def __init__(self, make: Callable[..., Pod], early: list[int], how: str) -> None:
        self._make, self.early = make, early
        self._command = ["python3", PROGRAM.name, ",".join(map(str, early)), how]
        self.pods: dict[str, Pod] = {}
        self._of: dict[int, Pod] = {}

    def start(self, layout: Layout, attempt: int = 1, generation: int = 0) -> None:
        world, old, port = sum(map(len, layout.values())), self._of, free_port()
        self.pods, self._of = {}, {}
        for name, ranks in layout.items():
            plan = messages.Plan("fresh", attempt, world, ranks, "127.0.0.1", port)
            if generation:
                plan = replace(plan, mode="restore", generation=generation, checkpoint_id="c2", ended=self.early)
            pod = self.pods[name] = self._make(name, plan=plan, command=self._command, env=ENV)
            pod.sidecar.world_ends = False
            shutil.copy(PROGRAM, pod.volumes / "source" / PROGRAM.name)
            for rank in ranks:
                self._of[rank] = pod
                if generation:
                    pod.bring(old[rank], "c2", rank)
        for pod in self.pods.values():
            pod.start()

    @property
    def late(self) -> list[int]:
        return [rank for rank in self._of if rank not in self.early]

    def numbers(self, rank: int) -> list[str]:
        path = self._of[rank].work(rank) / "cwd/numbers"
        return path.read_text().splitlines() if path.exists() else []

    def until_numbers(self, count: int) -> None:
        for rank in self.late:
            there = partial(lambda rank: len(self.numbers(rank)) >= count, rank)
            until(there, f"{count} lines", self._of[rank])

    def enough(self) -> None:
        for rank in self.late:
            (self._of[rank].work(rank) / "cwd/enough").touch()

    def save(self, generation: int, checkpoint: str) -> None:
        coordinator = Coordinator({rank: pod.sidecar for rank, pod in self._of.items()})
        for rank in self.early:
            over = partial(lambda rank: coordinator.views()[rank].state == page.STATE_ENDED, rank)
            until(over, f"rank {rank} has ended", self._of[rank])
        try:
            coordinator.acquire(generation)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(pod.log() for pod in self.pods.values())) from None
        skip = {name: len(pod.sidecar.events) for name, pod in self.pods.items()}
        for pod in self.pods.values():
            pod.sidecar.command("dump", generation=generation, checkpoint_id=checkpoint)
        for name, pod in self.pods.items():
            event = pod.wait_event("dumped", "dump_failed", skip=skip[name])
            assert event.kind == "dumped", f"{event.message}\n{pod.log()}"
        for rank in self.early:
            files = [path.name for path in self._of[rank].image(checkpoint, rank).iterdir()]
            assert files == [names.ENDED_FILE]

    def resume(self, generation: int) -> None:
        port = free_port()
        for pod in self.pods.values():
            pod.sidecar.page.publish(0, 0, generation)
            words = {"master_addr": "127.0.0.1", "master_port": port, "ended": self.early}
            pod.sidecar.command("resume", generation=generation, **words)

    def log(self) -> str:
        return "\n".join(pod.log() for pod in self.pods.values())


@pytest.mark.parametrize(
    ("early", "how", "first", "then"),
    [
        ([0], "train", {"a": [0], "b": [1, 2]}, {"c": [0, 1], "d": [2]}),
        ([1, 2], "evaluate", {"a": [0, 1, 2]}, {"c": [0], "d": [1, 2]}),
        pytest.param([1], "train", {"a": [0], "b": [1, 2]}, {"c": [0, 1, 2]}, marks=pytest.mark.full),
        pytest.param(
            [0, 1], "evaluate", {"a": [0, 1], "b": [2]}, {"c": [0], "d": [1], "e": [2]}, marks=pytest.mark.full
        ),
    ],
    ids=["the first of three", "all but the first", "one in the middle", "all but the last"],
)
def test_ranks_that_have_ended_are_saved_and_the_others_go_on(
    make_pod: Callable[..., Pod],
    rootfs: Path,
    torch_env: Path,
    criu_bundle: Path,
    early: list[int],
    how: str,
    first: Layout,
    then: Layout,
) -> None:
    def make(name: str, **more: object) -> Pod:
        return make_pod(name, rootfs=rootfs, torch=torch_env, criu=criu_bundle, **more)

    job = Job(make, early, how)
    job.start(first)
    job.until_numbers(5)
    said = job.log()
    job.save(page.generation(1, 1), "c1")
    at = max(len(job.numbers(rank)) for rank in job.late)
    job.resume(page.generation(1, 1))
    job.until_numbers(at + 10)
    job.save(page.generation(1, 2), "c2")
    before = job.log()
    for pod in job.pods.values():
        pod.delete()
    job.start(then, attempt=2, generation=page.generation(1, 2))
    for pod in job.pods.values():
        pod.wait_event("restored")
    for pod, ranks in zip(job.pods.values(), then.values(), strict=True):
        for rank in [rank for rank in ranks if rank in early]:
            until(partial(lambda pod, rank: (rank, 0) in ended(pod), pod, rank), f"rank {rank} counts as ended", pod)
    at = max(len(job.numbers(rank)) for rank in job.late)
    job.until_numbers(at + 10)
    job.enough()
    for pod in job.pods.values():
        if len(job.pods) > 1:
            pod.wait_event("finished")
            pod.sidecar.command("finish")
        assert pod.wait() == 0, pod.log()
    assert said.count("ends early") == len(early) and "ends early" not in job.log()
    assert (before + job.log()).count("ends late") == len(job.late)
    for rank in job.late:
        each = 3 - len(early) if how == "train" else 0
        numbers = job.numbers(rank)
        assert len(numbers) > at and numbers == [f"{n} {9 + each * (n + 1)}" for n in range(len(numbers))]


def ended(pod: Pod) -> list[tuple[int, int]]:
    return [(event.rank, event.code) for event in pod.sidecar.events if event.kind == "exited"]
