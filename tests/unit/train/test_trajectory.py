"""The same losses and the same state, bit for bit, for every number of workers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch_nursery import Nursery

KINDS = ["mlp", "transformer", "conv"]
REFERENCES: dict[str, Any] = {}
"""Of one worker, by arguments."""


def same(nursery: Nursery, worlds: list[int], steps: int = 12, **arguments: Any) -> None:
    arguments = {"kinds": KINDS, "steps": steps, **arguments}
    key = json.dumps(arguments, sort_keys=True)
    if key not in REFERENCES:
        REFERENCES[key] = nursery.run(1, "job_programs:trajectories", **arguments)[0]
    for world in worlds:
        for rank, found in enumerate(nursery.run(world, "job_programs:trajectories", **arguments)):
            assert found == REFERENCES[key], f"rank {rank} of {world}"


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_eight_virtual_ranks_on_any_number_of_workers(nursery: Nursery, world: int) -> None:
    same(nursery, [world])


def test_a_number_of_virtual_ranks_that_is_no_power_of_two(nursery: Nursery) -> None:
    same(nursery, [2, 4, 5], virtual_ranks=6)


@pytest.mark.full
def test_a_hundred_steps(nursery: Nursery) -> None:
    same(nursery, [2, 3, 4, 8], steps=100)


@pytest.mark.parametrize("precision", ["scaler", "bf16", "half"])
def test_mixed_precision(nursery: Nursery, precision: str) -> None:
    same(nursery, [3], kinds=["mlp"], precision=precision)


def test_statistics_of_batches_can_be_the_mean_over_all(nursery: Nursery) -> None:
    same(nursery, [3], kinds=["conv"], buffers="mean")
    mean, first = (
        nursery.run(1, "job_programs:trajectories", kinds=["conv"], steps=2, buffers=rule)[0]
        for rule in ("mean", "first")
    )
    assert mean["conv"][0] == first["conv"][0] and mean["conv"][1] != first["conv"][1]


def test_a_parameter_that_no_virtual_rank_uses_keeps_no_gradient(nursery: Nursery) -> None:
    """And one that only virtual rank 5 uses has one everywhere, with the same bits."""
    found = [nursery.run(world, "job_programs:partly_used") for world in (1, 3, 8)]
    assert {json.dumps(each) for ranks in found for each in ranks} == {json.dumps(found[0][0])}
    assert found[0][0]["never"] is None and found[0][0]["once"] and found[0][0]["frozen"] is None


def test_losses_are_weighted(nursery: Nursery) -> None:
    """(sum, weight): the loss and the gradient are those of the mean over all tokens that count."""
    found = [each for world in (1, 3, 4) for each in nursery.run(world, "job_programs:weighted")]
    assert all(each["bits"] == found[0]["bits"] for each in found)
    assert found[0]["difference"] < 1e-5


def test_without_an_order_of_its_own_the_sum_depends_on_the_workers(nursery: Nursery) -> None:
    """So the tests above can fail: this is what they would see of a plain all-reduce."""
    plain = {nursery.run(world, "job_programs:plain_sum")[0] for world in (1, 2, 4)}
    assert len(plain) == 3
