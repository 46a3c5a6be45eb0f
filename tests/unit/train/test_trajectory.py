"""The same losses and the same state, bit for bit, for every number of workers."""

from __future__ import annotations

import pytest
from torch_nursery import Nursery

KINDS = ["mlp", "transformer", "conv"]


def same(nursery: Nursery, worlds: list[int], **arguments: object) -> None:
    arguments.setdefault("kinds", KINDS)
    reference = nursery.run(1, "job_programs:trajectories", steps=12, **arguments)[0]
    for world in worlds:
        for rank, found in enumerate(nursery.run(world, "job_programs:trajectories", steps=12, **arguments)):
            assert found == reference, f"rank {rank} of {world}"


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_eight_virtual_ranks_on_any_number_of_workers(nursery: Nursery, world: int) -> None:
    same(nursery, [world])


def test_a_number_of_virtual_ranks_that_is_no_power_of_two(nursery: Nursery) -> None:
    same(nursery, [2, 4, 5], virtual_ranks=6)
