"""A `StatefulDataLoader` of torchdata goes on with another number of workers, as a plain DataLoader does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_resize import LOADER, STEPS, joined, play
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment
STATEFUL = "torchdata.stateful_dataloader:StatefulDataLoader"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_no_step_and_no_sample_is_lost(ranks: Nursery, place: Path, workers: int) -> None:
    """The reference has the plain loader: the library reads the data set of either, in its own order."""
    words: dict[str, Any] = {"kind": "mlp", "steps": STEPS}
    reference = joined([ranks.run(1, "job_programs:train", loader=LOADER, **words)])
    moves = [(4, 2), (2, 6), (3, None)]
    assert joined(play(ranks, place, moves, loader=STATEFUL, num_workers=workers)) == reference
