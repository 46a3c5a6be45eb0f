"""The adapters in managed pods: the host says when the state is saved, and what the next attempt begins with."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from moves import STEPS
from torch_nursery import Nursery

from singularity_proxy.protocol.state_image import lay_together

pytestmark = [pytest.mark.criu]  # root and the torch environment
AT = 4


@pytest.mark.parametrize("framework", ["trainer", "lightning", "accelerate"])
def test_ranks_go_on_from_what_the_host_had_saved(ranks: Nursery, place: Path, framework: str) -> None:
    """Nobody is told to stop: the first attempt goes on after the save, and shows what the second has to compute."""
    words = {"train_program": f"{framework}_programs:train", "place": str(place), "at": AT}
    whole = ranks.run(2, "hosted_programs:train", **words)
    lay_together(place / "images", place / "start")
    later = ranks.run(2, "hosted_programs:train", **{**words, "at": -1})
    for first, second in zip(whole, later, strict=True):
        assert (first["began"], first["step"], first["finished"]) == (0, STEPS, True)
        assert (second["began"], second["step"], second["finished"]) == (AT, STEPS, True)
        assert second["seen"] == first["seen"][AT:] and second["state"] == first["state"]
        assert first["boundaries"][0] == 0 and AT in first["boundaries"] and second["boundaries"][0] == AT
        assert sorted(set(first["boundaries"])) == first["boundaries"]
    losses = [found[0]["losses"] for found in (whole, later)]
    assert losses[1] == losses[0][AT:] and list(chain(losses[0]))
