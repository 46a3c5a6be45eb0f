"""State that k ranks saved is the same on any other number of ranks, and saving it does not stop training."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_four_ranks_save_while_they_train_and_others_load(nursery: Nursery, root: Path, kind: str) -> None:
    saved = nursery.run(4, "state_programs.save_then_train", root=str(root), kind=kind)
    assert len({each["digest"] for each in saved}) == 1
    assert len({each["now"] for each in saved}) == 1
    assert saved[0]["now"] != saved[0]["digest"]  # training went on
    state = saved[0]["bytes"]
    assert sum(each["changed"] for each in saved) <= 1.02 * state
    assert sum(each["unchanged"] for each in saved) == 0
    newest = saved[0]["id"]
    for world in (2, 3, 8):
        loaded = nursery.run(world, "state_programs.load_and_save", root=str(root), kind=kind, checkpoint=newest)
        assert {each["digest"] for each in loaded} == {saved[0]["digest"]}
        assert {each["id"] for each in loaded} != {newest}
        newest = loaded[0]["id"]
