"""A loop with an Accelerator goes on with another number of workers, at the next step and the next sample."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
from moves import STEPS, far, play, samples
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment
PROGRAM = "accelerate_programs:train"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_two_moves_with_other_workers(ranks: Nursery, place: Path, workers: int) -> None:
    """The learning rate goes on as two workers began it: accelerate makes one step of it for each worker."""
    reference = play(ranks, PROGRAM, None, [(1, None)], rate_steps=2)
    attempts = play(ranks, PROGRAM, place, [(2, 4), (1, 8), (2, None)], workers=workers)
    assert samples(attempts) == samples(reference) and len(samples(attempts)) == STEPS
    for epoch in (0, 6):
        seen = list(chain(*samples(attempts)[epoch : epoch + 6]))
        assert len(seen) == len(set(seen)) == 48
    assert [each[0]["accumulation"] for each in attempts] == [2, 4, 2]
    assert [each[0]["verdict"] for each in attempts] == ["unchecked", "reordered", "reordered"]
    last, whole = attempts[-1][0], reference[0][0]
    assert far(last["weights"], whole["weights"]) < 1e-6 and last["rate"] == whole["rate"] == [pytest.approx(25 / 3000)]
    assert [each[0]["evaluated"] for each in attempts] == [[], [[0, 6]], [[1, 12]]]


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.full), 2])
def test_the_same_workers_have_the_same_bits(ranks: Nursery, place: Path, world: int) -> None:
    """One stop is in the middle of an epoch, one at its end."""
    reference = play(ranks, PROGRAM, None, [(world, None)])
    attempts = play(ranks, PROGRAM, place, [(world, 4), (world, 6), (world, None)])
    assert [each["state"] for each in attempts[-1]] == [each["state"] for each in reference[0]]
    assert list(chain(*(each[0]["losses"] for each in attempts))) == reference[0][0]["losses"]
    assert all(each["verdict"] == "unchecked" for found in attempts for each in found)


WRONG = {
    "plain optimizer": ("UsageError", "AdamW was not prepared"),
    "plain loader": ("DataError", "loader: DataLoader with"),
    "stream": ("DataError", "has no order that can be cut"),
    "samples": ("DataError", "60 samples, and the checkpoint was made with 52"),
    "micro": ("ContractError", "micro = 4: the checkpoint was made with 2"),
    "seed": ("ContractError", "seed = 4: the checkpoint was made with 3"),
    "batch": ("ContractError", "global_batch_size = 16: the checkpoint was made with 8"),
    "model": ("ModelChangedError", "reshaped: 0.bias"),
    "scheduler": ("OptimizerChangedError", "missing here: scheduler.main"),
    "extra": ("OptimizerChangedError", "new here: extra.mean"), "early": ("UsageError", "left moving.batches"),
    "late": ("UsageError", "Call attach before the first step"), "twice": ("UsageError", "attach: called twice"),
    "no accumulate": ("UsageError", "no step was made"), "deepspeed": ("UsageError", "DEEPSPEED keeps its own state"),
}  # fmt: skip


def test_what_cannot_move_is_refused_by_name(ranks: Nursery, place: Path) -> None:
    (found,) = ranks.run(1, "accelerate_programs:wrong", directory=str(place))
    for case, (kind, pattern) in WRONG.items():
        assert found[case][0] == kind, (case, found[case])
        assert re.search(pattern, found[case][1]), (case, found[case])
    assert found["unchanged"] == ["12", "52"]
