"""What is made of a resized job of the state engine, and of a move with loader workers. No cluster."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import catalogue, loader_move, state_resize
from benchmarks.programs import train_resized_source
from kueue_integration.contract.record_types import AttemptRecord
from localcluster.demo.samples import Given


def attempt(number, pods, admitted, first_step_at, **more):
    return AttemptRecord(number, f"r{number}", "ondemand", pods, pods, admitted, first_step_at=first_step_at, **more)


def resized(**changes):
    attempts = [
        attempt(1, 4, 1.0, 5.0, evicted_at=10.0, released_at=12.0),
        attempt(2, 2, 13.0, 17.0, evicted_at=30.0, released_at=33.0),
        attempt(3, 8, 34.0, 42.0),
    ]
    return SimpleNamespace(**{"name": "job", "attempts": attempts, "steps_lost": 0, **changes})


def test_a_resize_is_read_from_the_attempts():
    found = state_resize.figures(resized())
    assert found == {"come_s": [4.0, 8.0], "leave_s": [2.0, 3.0], "steps_lost": 0}
    with pytest.raises(ValueError, match=r"job ran with \(4, 2\) pods, not with \(4, 2, 8\)"):
        state_resize.figures(resized(attempts=resized().attempts[:2]))


def test_resizes_count_with_their_medians_and_all_that_was_lost():
    runs = [
        {"come_s": [4.0, 8.0], "leave_s": [2.0, 3.0], "steps_lost": 0, "wrong": []},
        {"come_s": [5.0, 6.0], "leave_s": [2.0, 3.0], "steps_lost": 2, "wrong": ["step 3 had 14 samples"]},
        {"come_s": [6.0, 7.0], "leave_s": [2.0, 3.0], "steps_lost": 0, "wrong": []},
    ]
    found = state_resize.resize_figures(runs)
    assert found["state_resize_s"].value == 7.0
    assert "4 -> 2 5 s" in found["state_resize_s"].baseline and "2 -> 8 7 s" in found["state_resize_s"].baseline
    assert found["state_resize_lost"].value == 3


def test_samples_are_counted_up_to_the_newest_step():
    def given(step, first, count=state_resize.BATCH):
        return Given(step, 0, tuple(range(first, first + count)))

    whole = [given(0, 0), given(1, 16, 8), given(1, 24, 8), given(2, 32, 2)]
    assert state_resize.lost_samples(whole) == [], "the newest step is not over"
    assert state_resize.lost_samples([*whole, given(3, 34)]) == ["step 2 had 2 samples, expected 16"]
    (twice,) = state_resize.lost_samples([given(0, 0), given(1, 15), given(2, 40)])
    assert twice == "step 1: sample 15 is in epoch 0 for the second time"
    ranks, batch = max(state_resize.WORKERS), state_resize.BATCH // max(state_resize.WORKERS)
    assert f"VIRTUAL_RANKS, MICRO_BATCH, SAMPLES = {ranks}, {batch}, " in train_resized_source()


def test_sizes_of_both_engines():
    sizes = {"state": {"bytes": 13_000_000, "bytes_stored": 12_000_000}}
    sizes["process"] = {"bytes": 1_300_000_000, "bytes_stored": 120_000_000}
    found = state_resize.size_figure(sizes)["state_checkpoint_x"]
    assert found.value == 0.01
    assert "state engine 13 MB, of which 12 MB were stored" in found.baseline and "stored bytes 0.1 x" in found.baseline


def test_the_ranks_of_a_pod_are_its_processes_without_the_launcher(tmp_path):
    def process(pid, container, *words):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/kubepods/pod1/{container}\n")
        (tmp_path / str(pid) / "cmdline").write_bytes("\0".join(words).encode() + b"\0")

    process(11, "aaa", "python3", "-m", loader_move.LAUNCHER)
    process(12, "aaa", "python3", "train_loader.py")
    process(13, "bbb", "python3", "-m", "proxy.sidecar")
    process(14, "ccc", "python3", "of another job")
    (tmp_path / "15").mkdir()  # has just ended
    statuses = [
        {"name": "train", "containerID": "containerd://aaa"},
        {"name": "other", "containerID": "containerd://b"},
    ]
    assert list(loader_move.of_ranks([{"status": {"containerStatuses": statuses}}, {}], tmp_path)) == [12]


def test_a_move_with_loader_workers_tells_time_and_memory():
    def run(leave, come, after):
        memory = {"before": {"mb": 1000.0, "processes": 10}, "after": {"mb": after, "processes": 11}}
        return {"leave_s": leave, "come_s": come, "gb": 1.5, "longest": "longest upload 2 s", **memory}

    found = loader_move.of_runs([run(7.0, 5.0, 1050.0), run(6.0, 9.0, 1150.0), run(8.0, 6.0, 1100.0)])
    assert found["loader_move_s"].value == 7.0
    assert found["loader_move_rss_x"].value == 1.1
    assert "1100 MB in 11 processes after the move, 1000 MB in 10 before" in found["loader_move_s"].baseline
    assert loader_move.SCRIPT.is_file()
    assert {*found} <= {spec.key for spec in catalogue.specs()}
