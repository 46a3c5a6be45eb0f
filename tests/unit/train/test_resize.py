"""A job that is stopped goes on with another number of workers, at the next step and at the next sample."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from torch_nursery import Nursery

MOVES = [(4, 2), (2, 6), (3, 10), (8, None)]
"""Workers, and the step in which one of them is asked to stop. An epoch has 10 steps."""
STEPS = 14
LOADER = "torch.utils.data:DataLoader"


def play(nursery: Nursery, folder: Path, moves: list[tuple[int, int | None]], **arguments: Any) -> list[list[Any]]:
    """What the ranks of each attempt returned. Each attempt has to go on where the one before ended."""
    attempts: list[list[Any]] = []
    for world, stop in moves:
        given = {"kind": "mlp", "steps": STEPS, **arguments}
        found = nursery.run(world, "job_programs:train", directory=str(folder), stop=stop, stop_rank=world - 1, **given)
        began = attempts[-1][0]["step"] if attempts else 0
        assert {each["began"] for each in found} == {began}
        # One rank knows of the request: the ranks learn it in the next step, and end after that one.
        assert {each["step"] for each in found} == {given["steps"] if stop is None else stop + 2}
        assert {each["stopped"] for each in found} == {stop is not None}
        assert {each["finished"] for each in found} == {stop is None}
        attempts.append(found)
    return attempts


def joined(attempts: list[list[Any]]) -> tuple[list[str], list[list[int]], str]:
    """Losses, samples of each step in the order of the virtual ranks, state at the end."""
    losses = [loss for ranks in attempts for loss in ranks[0]["losses"]]
    seen = [
        list(chain(*parts)) for ranks in attempts for parts in zip(*(rank["seen"] for rank in ranks), strict=True)
    ]
    return losses, seen, attempts[-1][0]["state"]


@pytest.mark.parametrize(
    ("data", "workers"),
    [
        ("map", 2), ("loader", 0), ("stream", 2), pytest.param("map", 0, marks=pytest.mark.full),
        pytest.param("loader", 2, marks=pytest.mark.full), pytest.param("stream", 0, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_no_step_and_no_sample_is_lost(nursery: Nursery, root: Path, data: str, workers: int) -> None:
    of = {"map": {}, "loader": {"loader": LOADER}, "stream": {"stream": "stream"}}
    arguments: dict[str, Any] = of[data]
    reference = joined([nursery.run(1, "job_programs:train", kind="mlp", steps=STEPS, **arguments)])
    attempts = play(nursery, root, MOVES, num_workers=workers, **arguments)
    assert joined(attempts) == reference
    samples = list(chain(*reference[1][:10]))
    assert len(samples) == 160
    assert sorted(samples) == list(range(160)) and samples != sorted(samples)


def test_control_c_saves_and_the_second_one_ends(nursery: Nursery, root: Path) -> None:
    """It reaches the loader workers as well, which are needed for one more step."""
    attempts = play(nursery, root, [(2, 2), (1, None)], num_workers=2, stop_by="SIGINT")
    assert joined(attempts) == joined([nursery.run(1, "job_programs:train", kind="mlp", steps=STEPS)])
    asked, unasked = attempts[0][1]["handlers"], attempts[0][0]["handlers"]
    assert unasked == ["_asked", "_asked"] and "_asked" not in asked


def test_a_stream_that_cannot_say_where_it_is_is_read_again(nursery: Nursery, root: Path) -> None:
    reference = joined([nursery.run(1, "job_programs:train", kind="mlp", steps=8, stream="forgetful")])
    assert joined(play(nursery, root, [(3, 2), (2, None)], steps=8, stream="forgetful")) == reference


@pytest.mark.parametrize("kind", [pytest.param("transformer", marks=pytest.mark.full), "conv"])
def test_a_run_that_is_moved_twice_is_the_run_of_one_worker(nursery: Nursery, root: Path, kind: str) -> None:
    reference = joined([nursery.run(1, "job_programs:train", kind=kind, steps=12)])
    attempts = play(nursery, root, [(4, 2), (3, 6), (2, None)], kind=kind, steps=12)
    assert joined(attempts) == reference
    assert all(each["verdict"] == "unchecked" for ranks in attempts for each in ranks)


def test_the_scale_of_losses_moves_too(nursery: Nursery, root: Path) -> None:
    """It grows every 5 steps."""
    reference = joined([nursery.run(1, "job_programs:train", kind="mlp", steps=12, precision="scaler")])
    assert joined(play(nursery, root, [(2, 5), (3, None)], steps=12, precision="scaler")) == reference


def test_a_job_that_is_over_makes_no_step(nursery: Nursery, root: Path) -> None:
    first, again = play(nursery, root, [(2, None)], steps=3)[0][0], nursery.run(
        1, "job_programs:train", kind="mlp", steps=3, directory=str(root)
    )[0]
    assert again["losses"] == [] and again["state"] == first["state"] and again["finished"]


def test_checkpoints_while_the_training_goes_on(nursery: Nursery, root: Path) -> None:
    """A rank is killed after step 7; the next attempt goes on from the last of every third step."""
    reference = nursery.run(1, "job_programs:train", kind="mlp", steps=10)[0]
    found = nursery.ask(2, "job_programs:killed", directory=str(root), at=7, save_every=3)
    assert any(each["code"] == -9 for each in found), found
    resumed = nursery.run(3, "job_programs:train", kind="mlp", steps=10, directory=str(root))[0]
    assert resumed["began"] == 6
    assert resumed["losses"] == reference["losses"][6:] and resumed["state"] == reference["state"]


@pytest.mark.parametrize("framework", ["ddp", "fsdp2"])
def test_the_frameworks_own_sum_keeps_the_place(nursery: Nursery, root: Path, framework: str) -> None:
    """Not the bits: the batch of a worker is the same, so another number of workers makes another global batch."""
    began, saved, seen = 0, "new", []
    for world, steps in ((2, 5), (4, 10)):
        ranks = nursery.run(world, "job_programs:framework", framework=framework, steps=steps, directory=str(root))
        assert {each["began"] for each in ranks} == {began}
        assert {each["verdict"] for each in ranks} == {"different" if began else "reordered"}
        assert len({each["losses"][-1] for each in ranks}) == 1
        assert {each["loaded"] for each in ranks} == {saved}
        saved = ranks[0]["state"]
        seen += [sample for each in ranks for step in each["seen"] for sample in step]
        began = steps
    assert len(seen) == 5 * 2 * 2 + 5 * 4 * 2
    assert len(set(seen)) == len(seen)


def test_who_asks_for_a_checkpoint_may_be_one_rank(nursery: Nursery, root: Path) -> None:
    found = nursery.run(2, "job_programs:asked", directory=str(root))
    assert found == [[3, 3], [3, 3]]
