"""The Trainer of Hugging Face goes on with another number of workers, at the next step and the next sample."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
from moves import STEPS, far, play, samples
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment


def test_two_moves_with_other_workers(ranks: Nursery, place: Path) -> None:
    reference = play(ranks, "trainer_programs:train", None, [(1, None)])
    attempts = play(ranks, "trainer_programs:train", place, [(2, 4), (1, 8), (2, None)])
    assert samples(attempts) == samples(reference) and len(samples(attempts)) == STEPS
    for epoch in (0, 6):
        assert sorted(chain(*samples(attempts)[epoch : epoch + 6])) == list(range(48))
    assert [each[0]["accumulation"] for each in attempts] == [2, 4, 2]
    assert [each[0]["verdict"] for each in attempts] == ["unchecked", "reordered", "reordered"]
    losses = list(chain(*(each[0]["losses"] for each in attempts)))
    last, whole = attempts[-1][0], reference[0][0]
    assert far(losses, whole["losses"]) < 1e-4 and far(last["weights"], whole["weights"]) < 1e-5
    assert last["rate"] == whole["rate"] and last["history"] == whole["history"]
    assert not any(each["leftover"] for found in attempts for each in found) and attempts[1][0]["left"]


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.full), 2])
def test_the_same_workers_have_the_same_bits(ranks: Nursery, place: Path, world: int) -> None:
    """One stop is in the middle of an epoch, one at its end."""
    reference = play(ranks, "trainer_programs:train", None, [(world, None)])
    attempts = play(ranks, "trainer_programs:train", place, [(world, 4), (world, 6), (world, None)])
    assert [each["state"] for each in attempts[-1]] == [each["state"] for each in reference[0]]
    assert list(chain(*(each[0]["losses"] for each in attempts))) == reference[0][0]["losses"]
    assert all(each["verdict"] == "unchecked" for found in attempts for each in found)


def test_a_loss_that_is_a_mean_is_not_added_up(ranks: Nursery, place: Path) -> None:
    """Fewer workers get an accumulation, and the Trainer added such losses up: they were doubled."""
    one, two = (play(ranks, "trainer_programs:train", None, [(world, None)], mean=True)[0][0] for world in (1, 2))
    assert (one["accumulation"], two["accumulation"]) == (4, 2)
    assert far(one["losses"], two["losses"]) < 1e-4 and far(one["weights"], two["weights"]) < 1e-5


WRONG = {
    "deepspeed": ("UsageError", "DeepSpeed keeps its own state"), "fsdp": ("UsageError", "fsdp: .*fully_shard"),
    "model parallel": ("UsageError", "several devices"), "stream": ("UsageError", "Stream has no order"),
    "twice": ("UsageError", "called twice"), "late": ("UsageError", "has made 1 steps already. Call it before train"),
    "skip": ("UsageError", "ignore_data_skip = True"),
    "mean": ("UsageError", "adds the mean losses of gradient_accumulation_steps = 2 micro-batches up"),
    "jit": ("UsageError", "enable_jit_checkpoint = True"), "sampler": ("UsageError", "LengthGroupedSampler draws"),
    "not resumed": ("UsageError", "begins at step 0, and the checkpoint is of step 4"),
    "batch": ("ContractError", "global_batch_size = 16: the checkpoint was made with 8"),
    "micro": ("UsageError", "reads 8 samples, which are no multiple of 3"),
    "samples": ("DataError", "40 samples, and the checkpoint was made with 48"),
    "seed": ("ContractError", "seed = 4: the checkpoint was made with 3"),
    "model": ("ModelChangedError", "reshaped: "), "save_every": ("UsageError", "save_every = 0"),
    "library": ("StateError", "the adapter transformers wrote it"),
}  # fmt: skip


@pytest.mark.full
def test_what_cannot_move_is_refused_by_name(ranks: Nursery, place: Path) -> None:
    (found,) = ranks.run(1, "trainer_programs:wrong", directory=str(place))
    for case, (kind, pattern) in WRONG.items():
        assert found[case][0] == kind, (case, found[case])
        assert re.search(pattern, found[case][1]), (case, found[case])
    assert found["unchanged"] == ["12"]


def test_an_epoch_whose_end_depends_on_the_workers(ranks: Nursery, place: Path) -> None:
    assert ranks.run(2, "trainer_programs:uneven", directory=str(place))[0][0] == "nothing"
    ((kind, text),) = ranks.run(1, "trainer_programs:uneven", directory=str(place))
    assert kind == "DataError" and "Give 40 samples, or 2 workers" in text


def test_the_trainer_loads_what_the_library_exports(ranks: Nursery, place: Path) -> None:
    (found,) = ranks.run(1, "trainer_programs:exported", directory=str(place))
    assert found["codes"] == [0, 2] and found["step"] == 3 and found["states"][0] == found["states"][1]
    assert found["rate"] == pytest.approx(1e-2 / 3)  # Of ConstantLR in its first 5 steps.
