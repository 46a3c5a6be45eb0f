"""What people write: samplers of their own, two models against each other, an end that the script decides about. Each
trains on with other workers, with the same bits."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from torch_nursery import Nursery

MOVES = [(4, 2), (3, 8), (1, None)]
"""Workers, and the step in which rank 0 is asked to stop."""
SAMPLERS = {
    "weighted": 100, "generator": 100, "subset": 80, "replacement": 64, "num_samples": 64, "by length": 160,
    "batches": 159, "uneven": None,
}  # fmt: skip
"""With the samples of an epoch."""
REFUSED = {
    "hidden": ("DataError", "Own gives another order for epoch 0 each time it is asked"),
    "no length": ("DataError", "Endless has no length"),
    "short": ("DataError", "Short gave 150 for epoch 0, and its length is 160"),
    "shared": ("DataError", "BatchSampler reads the share of one rank"),
    "curriculum": ("DataError", "Later gives another order for epoch 0 than when the checkpoint was made"),
    "both": ("DataError", "batch_size = 2: the loader's batch_sampler makes the batches"),
}


def parts(nursery: Nursery, program: str, root: Path, **arguments: Any) -> list[list[Any]]:
    return [nursery.run(world, program, directory=str(root), stop=stop, **arguments) for world, stop in MOVES]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sampler_gives_the_same_order_to_any_workers(nursery: Nursery, root: Path, kind: str) -> None:
    (whole,) = nursery.run(1, "pattern_programs:sampled", kind=kind, stop=None)
    found = parts(nursery, "pattern_programs:sampled", root, kind=kind, num_workers=2 if kind == "batches" else 0)
    assert list(chain(*(ranks[0]["losses"] for ranks in found))) == whole["losses"]
    seen = [list(chain(*each)) for ranks in found for each in zip(*(rank["seen"] for rank in ranks), strict=True)]
    assert seen == whole["seen"] and found[-1][0]["state"] == whole["state"]
    samples = SAMPLERS[kind]
    if kind in ("subset", "num_samples", "by length"):
        steps = (samples or 0) // 16
        assert len({*chain(*seen[:steps])}) == 16 * steps, "no sample twice in an epoch"
    if kind == "subset":
        assert not any(index % 2 for index in chain(*seen))


def test_a_sampler_that_is_not_the_keys_alone_is_refused(nursery: Nursery, root: Path) -> None:
    (found,) = nursery.run(1, "pattern_programs:refused", directory=str(root))
    for case, (kind, pattern) in REFUSED.items():
        assert found[case][0] == kind, (case, found[case])
        assert re.search(pattern, found[case][1]), (case, found[case])


@pytest.mark.parametrize("kind", ["alternating", "together"])
def test_generator_and_critic_take_turns_in_a_step(nursery: Nursery, root: Path, kind: str) -> None:
    (whole,) = nursery.run(1, "pattern_programs:adversarial", kind=kind, stop=None)
    found = parts(nursery, "pattern_programs:adversarial", root, kind=kind)
    assert list(chain(*(ranks[0]["losses"] for ranks in found))) == whole["losses"]
    assert {each["state"] for each in found[-1]} == {whole["state"]}


@pytest.mark.parametrize("world", [1, 2])
def test_a_second_backward_adds_to_the_first(nursery: Nursery, world: int) -> None:
    for found in nursery.run(world, "pattern_programs:added"):
        assert found["two"] == pytest.approx(found["one"], abs=1e-6) and any(found["one"])


@pytest.mark.parametrize("world", [1, 3])
def test_a_script_ends_the_training(nursery: Nursery, root: Path, world: int) -> None:
    """One rank asks in step 4: step 5 is the last, with any number of workers, and no attempt makes another."""
    arguments = {"directory": str(root), "ask": world - 1}
    for each in nursery.run(world, "pattern_programs:ended", **arguments):
        assert each == {"began": 0, "step": 6, "finished": True, "stopped": False, "epochs": [1, 3, 5]}
    (again,) = nursery.run(1, "pattern_programs:ended", **arguments)
    assert again == {"began": 6, "step": 6, "finished": True, "stopped": False, "epochs": []}
