"""Workers that cannot share the samples of a step: each adapter refuses them by name, and the checkpoint stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from moves import STEPS, play
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment


def content(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).parts[0] != "output"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("framework", ["trainer", "lightning", "accelerate"])
def test_three_workers_for_a_step_of_eight_samples(ranks: Nursery, place: Path, framework: str) -> None:
    program, words = f"{framework}_programs:train", {"directory": str(place), "stop": None}
    play(ranks, program, place, [(1, 4)])
    before = content(place)
    for each in ranks.ask(3, program, grace_s=30, **words):
        assert each.get("raised") == "UsageError", each
        assert "world size = 3: a step reads 8 samples, which are no multiple of 6" in each["message"]
        assert "Use a number of workers that divides 4, or another micro-batch" in each["message"]
    assert before and content(place) == before
    (found,) = ranks.run(1, program, **words)
    assert (found["began"], found["step"], found["verdict"]) == (4, STEPS, "unchecked")
