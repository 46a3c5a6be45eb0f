"""The Trainer of Lightning goes on with another number of workers, at the next step and the next sample."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from moves import STEPS, far, play, samples
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment
PROGRAM = "lightning_programs:train"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_two_moves_with_other_workers(ranks: Nursery, place: Path, workers: int) -> None:
    reference = play(ranks, PROGRAM, None, [(1, None)])
    attempts = play(ranks, PROGRAM, place, [(2, 4), (1, 8), (2, None)], workers=workers)
    assert samples(attempts) == samples(reference) and len(samples(attempts)) == STEPS
    for epoch in (0, 6):
        seen = list(chain(*samples(attempts)[epoch : epoch + 6]))
        assert len(seen) == len(set(seen)) == 48
    assert [each[0]["accumulation"] for each in attempts] == [2, 4, 2]
    assert [each[0]["verdict"] for each in attempts] == ["unchecked", "reordered", "reordered"]
    last, whole = attempts[-1][0], reference[0][0]
    assert far(last["weights"], whole["weights"]) < 1e-6 and last["rate"] == whole["rate"]
    assert [each[0]["validated"] for each in attempts] == [[], [6], [12]] and whole["validated"] == [6, 12]
    assert last["epoch"] == whole["epoch"]


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.full), 2])
def test_the_same_workers_have_the_same_bits(ranks: Nursery, place: Path, world: int) -> None:
    reference = play(ranks, PROGRAM, None, [(world, None)])
    attempts = play(ranks, PROGRAM, place, [(world, 4), (world, 7), (world, None)])
    assert [each["state"] for each in attempts[-1]] == [each["state"] for each in reference[0]]
    assert list(chain(*(each[0]["losses"] for each in attempts))) == reference[0][0]["losses"]
    assert all(each["verdict"] == "unchecked" for found in attempts for each in found)


def test_a_callback_that_ends_the_training_is_stopped_in_the_middle_of_an_epoch(ranks: Nursery, place: Path) -> None:
    """Epochs have 13 steps. EarlyStopping ends the third attempt after 5 epochs, and the fourth makes no step."""

    def attempt(stop: int | None, directory: str | None = str(place)) -> dict[str, Any]:
        (found,) = ranks.run(1, "lightning_programs:judged", directory=directory, stop=stop)
        return dict(found)

    whole = attempt(None, None)
    first, second, third, fourth = (attempt(stop) for stop in (5, 20, None, None))
    assert (first["ends"], first["finished"]) == ([], False) and first["steps"] == [*range(5)]
    assert (second["ends"], second["finished"]) == ([13], False) and second["steps"] == [*range(5, 20)]
    assert whole["step"] == 5 * 13 and whole["ends"] == second["ends"] + third["ends"]
    assert {key: third[key] for key in ("state", "judge", "step")} == {
        key: whole[key] for key in ("state", "judge", "step")
    }
    assert fourth == {**third, "steps": [], "ends": [], "finished": True}


WRONG = {
    "strategy": ("UsageError", "strategy: Foreign keeps its own state"),
    "manual": ("UsageError", "automatic_optimization = False"), "twice": ("UsageError", "is there twice"),
    "schedule": ("UsageError", "GradientAccumulationScheduler changes"),
    "averaging": ("UsageError", "EMAWeightAveraging keeps weights"),
    "finetuning": ("UsageError", "BackboneFinetuning keeps weights"),
    "sampler": ("DataError", "SubsetRandomSampler chooses the order itself"),
    "loaders": ("DataError", "there are several"), "stream": ("DataError", "has no order that can be cut"),
    "samples": ("DataError", "60 samples, and the checkpoint was made with 52"),
    "micro": ("ContractError", "micro = 4: the checkpoint was made with 2"),
    "batch": ("ContractError", "global_batch_size = 16: the checkpoint was made with 8"),
    "seed": ("ContractError", "seed = 4: the checkpoint was made with 3"),
    "model": ("ModelChangedError", "reshaped: .*net.0.bias"),
    "late": ("UsageError", "begins at step 13, and the callback knows of no step before"),
    "not resumed": ("UsageError", "begins at step 0, and the checkpoint is of step 7"),
}  # fmt: skip


def test_what_cannot_move_is_refused_by_name(ranks: Nursery, place: Path) -> None:
    (found,) = ranks.run(1, "lightning_programs:wrong", directory=str(place))
    for case, (kind, pattern) in WRONG.items():
        assert found[case][0] == kind, (case, found[case])
        assert re.search(pattern, found[case][1]), (case, found[case])
    assert found["unchanged"] == ["7", "[6]", "7", "12"]
    assert found["over"] == ["12", "[]", "True"]


def test_lightning_loads_what_is_exported(ranks: Nursery, place: Path) -> None:
    (found,) = ranks.run(1, "lightning_programs:exported", directory=str(place))
    assert found == {"own": [0, True, 3, 0.005, 6], "moved": [0, True, 4, 0.00625, 6]}
