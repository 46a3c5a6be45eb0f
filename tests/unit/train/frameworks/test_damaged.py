"""A checkpoint that is damaged: the adapters go on from the one before it, as the library does."""

from __future__ import annotations

from pathlib import Path

import pytest
from moves import STEPS
from state_damage import spoil
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment


@pytest.mark.parametrize(
    ("framework", "damage", "world"),
    [
        ("trainer", "torn", 2), ("lightning", "lost", 2), ("accelerate", "changed", 2), ("lightning", "manifest", 1),
        pytest.param("trainer", "manifest", 1, marks=pytest.mark.full),
        pytest.param("accelerate", "manifest", 1, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_the_checkpoint_before_is_taken(ranks: Nursery, place: Path, framework: str, damage: str, world: int) -> None:
    """Stopped after 4 steps and after 7, whose checkpoint is damaged. The steps from 4 on are made again."""

    def attempt(stop: int | None, directory: str | None = str(place)) -> list[dict[str, object]]:
        return ranks.run(world, f"{framework}_programs:train", directory=directory, stop=stop)

    whole = attempt(None, None)
    attempt(4)
    second = attempt(7)
    older, newest = sorted((place / "checkpoints").iterdir())
    spoil(place, newest, older, damage)
    for again, uninterrupted, before in zip(attempt(None), whole, second, strict=True):
        assert (before["began"], again["began"], again["step"]) == (4, 4, STEPS)
        assert again["state"] == uninterrupted["state"]
        assert again["losses"] == uninterrupted["losses"][4:] and again["seen"] == uninterrupted["seen"][4:]


@pytest.mark.full
@pytest.mark.parametrize("framework", ["trainer", "lightning", "accelerate"])
def test_where_all_are_damaged_nothing_begins_anew(ranks: Nursery, place: Path, framework: str) -> None:
    words = {"directory": str(place), "stop": 4}
    ranks.run(1, f"{framework}_programs:train", **words)
    (only,) = (place / "checkpoints").iterdir()
    spoil(place, only, None, "torn")
    (found,) = ranks.ask(1, f"{framework}_programs:train", **words)
    assert found["raised"] == "DamagedError", found
