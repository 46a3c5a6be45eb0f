"""The rank's side of the barrier: real page, real ratchet, ranks as threads that step at different speeds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from fake_sidecar import Page
from waits import LIMIT_S, until

from singularity_proxy.agent import comm, gate, membership
from singularity_proxy.agent.boundary import Boundary
from singularity_proxy.launcher import refusal
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.protocol import page, ratchet

SKEW = 2
"""Collectives keep the ranks of one job about so many steps together."""


class Rank(threading.Thread):
    """Steps until told to end, not far ahead of its `peers`; records where it froze."""

    def __init__(self, run_dir: Path, rank: int, pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.peers: list[Rank] = []
        (run_dir / f"rank-{rank}").mkdir()
        self.frozen: list[tuple[int, int]] = []
        self.go_on = threading.Event()
        self.end = threading.Event()
        self.boundary = Boundary(run_dir / f"rank-{rank}", rank, self._freeze)
        self.boundary.open()
        self._pause = pause

    def _freeze(self, boundary: Boundary, generation: int) -> None:
        self.frozen.append((generation, boundary.count))
        assert self.go_on.wait(120)

    def run(self) -> None:
        while not self.end.wait(self._pause):
            if self.boundary.count <= min((p.boundary.count for p in self.peers), default=self.boundary.count) + SKEW:
                self.boundary.step()


def drive(shared: Page, world: int, generation: int) -> int:
    stop_at = 0
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        decision = ratchet.decide([shared.rank(r) for r in range(world)], generation, stop_at)
        stop_at = decision.stop_at
        shared.publish(generation, stop_at, generation if decision.acquired else 0)
        if decision.acquired:
            return stop_at
        time.sleep(0.001)
    raise AssertionError("no barrier")


@pytest.fixture
def shared(tmp_path: Path) -> Page:
    return Page(tmp_path, 3)


def test_all_ranks_stop_at_the_same_step(tmp_path: Path, shared: Page) -> None:
    ranks = [Rank(tmp_path, rank, pause) for rank, pause in enumerate((0.0, 0.001, 0.004))]
    for rank in ranks:
        rank.peers = ranks
    for rank in ranks:
        rank.start()
    for sequence in (1, 2, 3):
        generation = page.generation(1, sequence)
        floor = max(shared.rank(r).count for r in range(3))
        step = drive(shared, 3, generation)
        assert step > floor
        until(lambda n=sequence: all(len(r.frozen) == n for r in ranks), "every rank froze")  # type: ignore[misc]
        assert [r.frozen[-1] for r in ranks] == [(generation, step)] * 3
        for rank in ranks:
            rank.go_on.set()
        until(lambda s=step: min(shared.rank(r).count for r in range(3)) > s, "they go on")  # type: ignore[misc]
        for rank in ranks:
            rank.go_on.clear()
    for rank in ranks:
        rank.end.set()
        rank.join(120)
        assert not rank.is_alive()


def test_a_cancelled_barrier_lets_go(tmp_path: Path, shared: Page) -> None:
    rank = Rank(tmp_path, 0)
    shared.publish(7, 5, 0)
    rank.start()
    until(lambda: shared.rank(0) == ratchet.RankView(5, 7, page.STATE_RUNNING), "blocked at step 5 for generation 7")
    shared.publish(0, 5, 0)
    until(lambda: shared.rank(0).count > 5 and shared.rank(0).blocked == 0, "it goes on")
    rank.end.set()
    rank.join(120)
    assert rank.frozen == []


def test_a_bound_that_grows_lets_go_up_to_it(tmp_path: Path, shared: Page) -> None:
    rank = Rank(tmp_path, 0)
    shared.publish(7, 5, 0)
    rank.start()
    until(lambda: shared.rank(0).blocked == 7, "blocked")
    shared.publish(7, 9, 0)
    until(lambda: shared.rank(0) == ratchet.RankView(9, 7, page.STATE_RUNNING), "blocked at 9")
    rank.end.set()
    shared.publish(0, 0, 0)
    rank.join(120)


def test_whoever_waited_when_it_was_acquired_freezes_even_if_cancelled_at_once(tmp_path: Path, shared: Page) -> None:
    rank = Rank(tmp_path, 0)
    shared.publish(7, 5, 0)
    rank.start()
    until(lambda: shared.rank(0).blocked == 7, "blocked")
    shared.publish(0, 5, 7)
    until(lambda: rank.frozen == [(7, 5)], "frozen")
    rank.end.set()
    rank.go_on.set()
    rank.join(120)


def test_a_generation_it_came_back_from_is_ignored(tmp_path: Path, shared: Page) -> None:
    rank = Rank(tmp_path, 0)
    rank.go_on.set()
    rank.boundary.done = 7
    shared.publish(7, 1, 7)
    for _ in range(10):
        rank.boundary.step()
    assert rank.frozen == []
    assert shared.rank(0).count == 10


def test_steps_without_a_page_are_counted(tmp_path: Path, shared: Page) -> None:
    rank = Rank(tmp_path, 0)
    rank.boundary.close(page.STATE_FROZEN)
    assert shared.rank(0).state == page.STATE_FROZEN
    rank.boundary.step()
    rank.boundary.open()
    assert shared.rank(0).count == 1


def test_another_living_process_is_the_rank(tmp_path: Path, shared: Page) -> None:
    (tmp_path / "rank-1").mkdir()
    with subprocess.Popen(["sleep", "60"]) as other:
        shared.words[page.rank_word(1, page.R_PID)] = other.pid
        boundary = Boundary(tmp_path / "rank-1", 1, lambda *_: None)
        with pytest.raises(ValueError, match=f"process {other.pid} is rank 1 already"):
            boundary.open()
        other.kill()
        other.wait()
        boundary.open()
    assert shared.words[page.rank_word(1, page.R_PID)] == os.getpid()


def test_a_page_of_another_layout_is_refused(tmp_path: Path, shared: Page) -> None:
    shared.words[page.W_VERSION] = 1
    with pytest.raises(ValueError, match="version 1, wanted 2"):
        Boundary(tmp_path / "rank-0", 0, lambda *_: None).open()


@pytest.mark.parametrize("rank", [-1, page.MAX_WORLD])
def test_a_rank_beyond_the_page_is_refused(tmp_path: Path, rank: int) -> None:
    with pytest.raises(ValueError, match=f"RANK = {rank}"):
        Boundary(tmp_path, rank, lambda *_: None)


@pytest.mark.parametrize(
    ("rank", "world", "child", "wanted"),
    [
        (-1, -1, False, ""),  # env://
        (1, 3, False, ""),
        (0, 3, False, ""),  # the script's own numbering
        (1, 3, True, ""),  # mp.spawn with one process per rank
        (-1, 6, False, "it meets a world of 6 ranks, the job has 3"),
        (2, 6, True, "it meets a world of 6 ranks, the job has 3"),
        (0, 3, True, "it is rank 0 of the script's own, started by rank 1 of the job"),
    ],
)
def test_who_is_none_of_the_jobs_ranks(
    tmp_path: Path, shared: Page, monkeypatch: pytest.MonkeyPatch, rank: int, world: int, child: bool, wanted: str
) -> None:
    monkeypatch.setenv("SINGULARITY_RANK_DIR", str(tmp_path / "rank-1"))
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: object() if child else None)
    assert membership.stranger(rank, world) == wanted


@pytest.mark.parametrize(("world", "refused"), [(3, True), (6, False)])
def test_a_torch_that_is_too_old_is_named_to_the_launcher_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, refused: bool
) -> None:
    """At the first rendezvous of a rank, so that the first trial fails with it; not for a world of the script's own."""
    paths = Paths(tmp_path)
    paths.control(1).mkdir(parents=True)
    Page(paths.run, 3)
    for name, value in {"SINGULARITY_RANK_DIR": str(paths.control(1)), "RANK": "1", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    for name in ("_off", "_step"):
        monkeypatch.setattr(membership, name, getattr(membership, name))
    torch = ModuleType("torch.distributed.distributed_c10d")
    torch.ProcessGroup, torch.Backend, torch.rendezvous = object, object, lambda *_, **__: iter(["met"])
    monkeypatch.setitem(sys.modules, "torch.version", SimpleNamespace(__version__="2.5.1"))
    comm.install(torch)
    assert list(torch.rendezvous("env://", 1, world)) == ["met"]
    assert refusal.read(paths, 1, page.generation(1, 1)) == refused * (
        "rank 1 cannot be saved: its torch is 2.5.1, whose communication cannot be let go of. Use torch 2.6 or newer"
    )


# --- places between step boundaries -----------------------------------------------------------------------------------
class Alone:
    """A world of one rank, which makes no steps."""

    def __init__(self, tmp_path: Path) -> None:
        self.page = Page(tmp_path, 1)
        (tmp_path / "rank-0").mkdir()
        self.frozen: list[tuple[int, int]] = []
        self.boundary = Boundary(tmp_path / "rank-0", 0, self._freeze)
        self.boundary.open()

    def _freeze(self, boundary: Boundary, generation: int) -> None:
        self.frozen.append((generation, boundary.count))

    def leader(self, generation: int) -> threading.Thread:
        thread = threading.Thread(target=drive, args=(self.page, 1, generation), daemon=True)
        thread.start()
        return thread


def test_a_rank_without_steps_stops_where_it_is_after_some_patience(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    leader = alone.leader(7)
    until(alone.boundary.asked, "asked")
    alone.boundary.meet()
    assert alone.frozen == []  # a step may still come

    def meets() -> bool:
        alone.boundary.meet()
        return bool(alone.frozen)

    until(meets, "frozen")
    leader.join(120)
    assert alone.frozen == [(7, 1)] and not alone.boundary.asked()


def test_a_stop_that_is_withdrawn_lets_it_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("singularity_proxy.agent.boundary.NO_STEPS_S", 0.0)
    alone = Alone(tmp_path)
    alone.page.publish(7, 1, 0)
    rank = threading.Thread(target=alone.boundary.meet, daemon=True)
    rank.start()
    until(lambda: alone.page.rank(0).blocked == 7, "blocked")
    alone.page.publish(0, 1, 0)
    rank.join(120)
    assert not rank.is_alive() and alone.frozen == [] and alone.page.rank(0).blocked == 0


def test_other_threads_wait_for_a_stop_that_was_acquired_although_it_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks freeze for it: an operation that begins now would never be answered."""
    monkeypatch.setattr(gate, "standing", True)
    monkeypatch.setattr(gate, "blocked", False)
    alone = Alone(tmp_path)
    alone.page.publish(0, 1, 6)  # before this rank was there
    assert not alone.boundary.asked() and alone.boundary._lets_pass("group")
    alone.page.publish(7, 1, 6)
    words = alone.boundary._words
    assert words is not None
    alone.boundary._block(words, 7)
    assert alone.boundary.asked() == 7 and not alone.boundary._lets_pass("group")
    alone.page.publish(0, 1, 7)
    assert alone.boundary.asked() == 7 and not alone.boundary._lets_pass("group")
    alone.boundary._stop(7)
    assert not alone.boundary.asked() and alone.boundary._lets_pass("group")


def test_at_a_step_boundary_that_the_others_do_not_come_to_it_looks_for_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("singularity_proxy.agent.boundary.PATIENCE_S", 0.0)
    alone = Alone(tmp_path)
    alone.boundary.step()
    leader = alone.leader(7)
    until(alone.boundary.asked, "asked")
    alone.boundary.step()
    leader.join(120)
    assert [generation for generation, _ in alone.frozen] == [7]
