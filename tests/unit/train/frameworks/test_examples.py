"""Each example goes through two moves with other workers, and ends as one that was never moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from moves import far
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment
FRAMEWORKS = ("trainer", "lightning", "accelerate")
STEPS = list(range(1, 17))
"""Two epochs of 64 samples, 8 in each step."""


@pytest.mark.parametrize(
    ("script", "exact"),
    [
        ("train_torchrun", True), ("train_titan", False),
        *(pytest.param(f"train_{name}", False, marks=pytest.mark.full) for name in FRAMEWORKS),
    ],
)  # fmt: skip
def test_an_example_moves_twice(ranks: Nursery, place: Path, script: str, exact: bool) -> None:
    env = {"SINGULARITY_TRAIN_DIR": str(place)}
    (whole,) = ranks.run(1, "example_programs:run", script=script, directory=None)
    steps: list[int] = []
    for world, stop in ((2, 3), (1, 9), (2, None)):
        found = ranks.run(world, "example_programs:run", env, script=script, directory=str(place), stop=stop)
        steps += found[0]["steps"]
        # The request is known before or after the agreement of its step.
        assert stop is None or steps[-1] in (stop, stop + 1)
        assert {each["finished"] for each in found} == {stop is None}
        assert found[0]["saved"][-1].split("-")[2] == str(steps[-1])
    assert steps == STEPS and whole["steps"] == STEPS and whole["finished"]
    difference = far(found[0]["weights"], whole["weights"])
    assert difference == 0 if exact else difference < 1e-4
    assert found[0]["weights"] == found[1]["weights"]
