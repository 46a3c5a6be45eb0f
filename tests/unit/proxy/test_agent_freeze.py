"""What a rank leaves behind when it freezes, and what it takes up again, without torch in the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_sidecar import Page
from waits import LIMIT_S, until

from singularity_proxy.agent import freeze, gate, gpu_names, resume_order
from singularity_proxy.agent.boundary import Boundary
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.snapshot import rank_dump
from singularity_proxy.protocol import page

pytestmark = pytest.mark.usefixtures("quick_collections")


def read_once_there(path: Path) -> dict[str, object]:
    until(path.exists, f"{path} is there")
    return dict(json.loads(path.read_text()))


@pytest.fixture
def rank(tmp_path: Path) -> Boundary:
    (tmp_path / "run/rank-1").mkdir(parents=True)
    Page(tmp_path / "run", 2)
    boundary = Boundary(tmp_path / "run/rank-1", 1, freeze.freeze)
    boundary.open()
    for _ in range(41):
        boundary.step()
    return boundary


def test_freeze_and_resume_in_a_pod_with_a_new_page(
    tmp_path: Path, rank: Boundary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("SINGULARITY_POD", "old")
    monkeypatch.setattr(gpu_names, "_moves", {})
    thread = threading.Thread(target=freeze.freeze, args=(rank, 1_000_001), daemon=True)
    thread.start()
    report = read_once_there(rank.rank_dir / "frozen.json")
    assert (report["pid"], report["step"]) == (os.getpid(), 41)
    assert isinstance(report["threads"], int)

    new = Page(tmp_path / "run", 2)  # another pod: the same path, another file content
    paths, env, devices = Paths(tmp_path), {"SINGULARITY_POD": "new"}, {"GPU-1": "GPU-2"}
    restore_id = rank_dump.write_resume(paths, 1, 1_000_001, "10.0.0.9", 29601, env, devices)
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    answer = read_once_there(rank.rank_dir / "resumed.json")
    assert answer["restore_id"] == restore_id
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("10.0.0.9", "29601")
    assert os.environ["SINGULARITY_POD"] == "new"
    known = SimpleNamespace(get_device_properties=lambda number: SimpleNamespace(uuid=str(number)))
    assert [gpu_names.uuid(known, number) for number in (0, 1)] == ["GPU-0", "GPU-2"]
    assert (new.rank(1).count, new.rank(1).state) == (41, page.STATE_RUNNING)
    assert not (rank.rank_dir / "resume.json").exists()


def test_who_was_not_told_where_the_ranks_meet_is_not_told_after_a_move(
    tmp_path: Path, rank: Boundary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain command of one rank, with a GPU: scripts take such variables for "one of several"."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    rank_dump.write_resume(Paths(tmp_path), 1, 5, "10.0.0.9", 29601, {})
    monkeypatch.setenv("SINGULARITY_RANK_DIR", str(rank.rank_dir))
    resume_order.adopt_address()
    freeze.freeze(rank, 5)
    assert not {"MASTER_ADDR", "MASTER_PORT"} & os.environ.keys()


def test_an_order_for_another_generation_is_not_obeyed(tmp_path: Path, rank: Boundary) -> None:
    rank_dump.write_resume(Paths(tmp_path), 1, 1_000_001, "10.0.0.9", 29601, {})
    thread = threading.Thread(target=freeze.freeze, args=(rank, 1_000_002), daemon=True)
    thread.start()
    read_once_there(rank.rank_dir / "frozen.json")
    thread.join(0.1)
    assert thread.is_alive()
    rank_dump.write_resume(Paths(tmp_path), 1, 1_000_002, "10.0.0.9", 29601, {})
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_stops_leave_no_more_behind_than_the_first(tmp_path: Path, rank: Boundary) -> None:
    """The volume has 16 MiB of memory, and each file takes a page of it."""
    left = []
    for generation in range(1, 31):
        rank_dump.write_resume(Paths(tmp_path), 1, generation, "10.0.0.9", 29601, {})
        freeze.freeze(rank, generation)
        left.append(sorted(path.name for path in (tmp_path / "run").rglob("*")))
        if generation % 3 == 0:  # the ranks of this one had not frozen: nobody takes the order
            rank_dump.write_resume(Paths(tmp_path), 1, generation, "10.0.0.9", 29601, {})
    assert left == [left[0]] * 30


def test_without_a_page_training_goes_on(tmp_path: Path, rank: Boundary, capfd: pytest.CaptureFixture[str]) -> None:
    rank_dump.write_resume(Paths(tmp_path), 1, 5, "10.0.0.9", 29601, {})
    (tmp_path / "run/page").unlink()
    freeze.freeze(rank, 5)
    rank.step()
    assert rank.count == 42
    assert "training goes on, but this rank can no longer be checkpointed" in capfd.readouterr().err


def test_an_operation_under_way_ends_although_the_word_to_go_on_is_there(
    tmp_path: Path, rank: Boundary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank has refused the stop: the word comes at once, and the peers are in the operation still."""
    looks = []

    def idle() -> bool:
        looks.append(time.monotonic())
        return looks[-1] - looks[0] > 0.3

    rank.frozen_for = 5
    rank_dump.write_resume(Paths(tmp_path), 1, 5, "10.0.0.9", 29601, {})
    monkeypatch.setattr(gate, "idle", idle)
    freeze._finish(rank)
    assert 0.3 < looks[-1] - looks[0] < freeze.LET_END_S


def test_an_operation_that_never_ends_is_given_up(
    tmp_path: Path, rank: Boundary, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.frozen_for = 5
    rank_dump.write_resume(Paths(tmp_path), 1, 5, "10.0.0.9", 29601, {})
    monkeypatch.setattr(gate, "idle", lambda: False)
    monkeypatch.setattr(freeze, "LET_END_S", 0.2)
    with pytest.raises(RuntimeError, match="has not ended"):
        freeze._finish(rank)


HEAP = """
import sys
from singularity_proxy.agent import freeze

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

blocks = [bytes([n % 255 + 1]) * 100_000 for n in range(640)]
kept = blocks[::64]  # the last of them keeps the heap from shrinking by itself
del blocks
before = resident()
freeze.give_back()
assert all(block == bytes([n * 64 % 255 + 1]) * 100_000 for n, block in enumerate(kept))
print(before - resident())
"""


def test_memory_that_is_free_in_the_heap_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", HEAP], check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    assert int(done.stdout) > 30_000_000
