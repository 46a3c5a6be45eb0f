"""State that a checkpoint does not have is refused by name, and what only looks like it trains on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from state_damage import spoil
from torch_nursery import Nursery

REFUSED = {
    "copy": ("UsageError", r"a copy of the model \(Sequential with 6 parameters\) changes while it trains"),
    "group of others": ("UsageError", r"optimizer main: group 1 has 1 parameters of no attached model \(shape \[3\]\)"),
    "parameter replaced": ("UsageError", r"group 0 has 1 parameters of no attached model \(shape \[16, 16\]\)"),
    "growing model": ("UsageError", r"model: it has got head\.bias, head\.weight since attach"),
    "new optimizer": ("UsageError", "SGD makes steps in the loop and is not attached"),
    "new optimizer without state": ("UsageError", "SGD makes steps in the loop and is not attached"),
    "optimizer of others": ("UsageError", "Adam makes steps in the loop and is not attached"),
    "average that begins later": ("UsageError", r"a copy of the model \(Sequential with 6 parameters\) changes"),
    "lazy module": ("UsageError", r"model main: 4\.bias, 4\.weight have no shape so far"),
    "counting": ("UsageError", r"Counting counts in an attribute \(done\)"),
    "wrapper": ("UsageError", r"Wrapped wraps another optimizer \(inner\)"),
    "wrapper with state": ("UsageError", r"Eager wraps another optimizer \(inner\)"),
    "wrapper that is no optimizer": ("UsageError", r"Around wraps another optimizer \(inner\)"),
    "unsavable": ("StateError", "after the first step the state cannot be saved.* optimizer main: its state cannot be"),
    "unsavable extra": ("StateError", "after the first step .* extra extra.ema, a: its state cannot be saved without"),
    "hidden": ("UsageError", r"Hidden keeps tensors outside its state \(momentum\)"),
    "global": ("UsageError", r"Global keeps state of no parameter \(steps\)"),
    "more": ("UsageError", r"More keeps tensors outside its state \(more\)"),
    "buffer": ("UsageError", r"model main: 5\.mean is a buffer that changes while it trains, and no state dictionary"),
    "shuffle buffer": ("DataError", r"shuffles in a buffer \(BufferShuffledExamplesIterable\)"),
    "shuffle buffer within": ("DataError", r"shuffles in a buffer \(BufferShuffledExamplesIterable\)"),
}
TRAINED = [
    "attached copy", "copy attached by functions", "copy that rests", "lbfgs is fine", "kept buffer",
    "optimizers of a probe",
]  # fmt: skip
MOVES = [(1, 2), (3, 5), (2, None)]
"""Workers, and the step in which rank 0 is asked to stop."""
RESUMED = [
    "plain", "statistics", "copying", "unfrozen", "lazy", "adagrad", "rprop", "groups", "more of a group",
    "schedulefree", "turns",
]  # fmt: skip


def test_what_would_be_lost_is_refused_in_the_first_steps(nursery: Nursery) -> None:
    (found,) = nursery.run(1, "reach_programs:seen", cases=[*REFUSED, *TRAINED])
    for case, (kind, pattern) in REFUSED.items():
        assert found[case][0] == kind, (case, found[case])
        assert re.search(pattern, found[case][1]), (case, found[case])
    assert {case: found[case] for case in TRAINED} == {case: ["step", 3] for case in TRAINED}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_resumed_training_is_the_one_that_was_not_stopped(nursery: Nursery, root: Path, kind: str) -> None:
    """Buffers that forward replaces, a state_dict of copies, layers that are thawed or given to the optimizer later."""
    (whole,) = nursery.run(1, "reach_programs:resumed", kind=kind, stop=None)
    parts = [
        nursery.run(world, "reach_programs:resumed", directory=str(root), kind=kind, stop=stop) for world, stop in MOVES
    ]
    assert [loss for ranks in parts for loss in ranks[0]["losses"]] == whole["losses"]
    for each in parts[-1]:
        assert {key: each[key] for key in ("state", "verdict", "groups")} == {
            "state": whole["state"], "verdict": "unchecked", "groups": whole["groups"],
        }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "damage"), [("groups", "torn"), ("lazy", "lost"), ("plain", "changed"), ("groups", "manifest")]
)
def test_a_damaged_checkpoint_is_passed_over(nursery: Nursery, root: Path, kind: str, damage: str) -> None:
    """Saved in steps 2, 4 and 6: the job goes on from 4, and a later save builds on nothing that is damaged."""
    words = {"kind": kind, "directory": str(root)}
    (whole,) = nursery.run(1, "reach_programs:resumed", kind=kind, stop=None)
    nursery.run(2, "reach_programs:resumed", stop=4, save_every=2, **words)
    older, newest = sorted((root / "checkpoints").iterdir())
    spoil(root, newest, older, damage)
    found = nursery.run(3, "reach_programs:resumed", stop=5, **words)
    assert [each["losses"] for each in found] == [whole["losses"][4:7]] * 3
    assert nursery.run(2, "reach_programs:resumed", stop=None, **words)[0]["state"] == whole["state"]


def test_where_all_are_damaged_nothing_begins_anew(nursery: Nursery, root: Path) -> None:
    words = {"kind": "plain", "directory": str(root)}
    nursery.run(1, "reach_programs:resumed", stop=3, save_every=2, **words)
    for each in (root / "checkpoints").iterdir():
        spoil(root, each, None, "manifest")
    for each in nursery.ask(2, "reach_programs:resumed", stop=None, grace_s=30, **words):
        assert each["raised"] == "DamagedError" and "the manifest is damaged" in each["message"], each


def test_what_changes_late_is_in_the_verdict(nursery: Nursery) -> None:
    """An error would cost what was trained so far."""
    (found,) = nursery.run(1, "reach_programs:seen", cases=["average that begins too late"])
    step, verdict, reasons = found["average that begins too late"][1]
    assert (step, verdict) == (40, "different") and "a copy of the model" in reasons[0], found


@pytest.mark.parametrize("seeded", [True, False])
def test_ranks_whose_extra_state_differs_are_told(nursery: Nursery, seeded: bool) -> None:
    for each in nursery.run(2, "reach_programs:ranks_apart", seeded=seeded):
        if seeded:
            assert each == ["step", 3] or "a copy" in each[1]
        else:
            assert each[0] == "UsageError" and "extra.ema: its state on rank 1 is not that on rank 0" in each[1]


@pytest.mark.parametrize("world", [2, 3])
def test_a_loss_that_talks_to_other_ranks_is_refused_on_all(nursery: Nursery, world: int) -> None:
    """It gave other numbers on 2 workers, and hung on 3, which have 3, 3 and 2 of 8 virtual ranks."""
    for kind, text in nursery.run(world, "reach_programs:talking"):
        assert kind == "UsageError" and "the function talks to other ranks" in text, text


def test_tensor_parallel_is_refused_and_fully_sharded_is_not(nursery: Nursery) -> None:
    for cut, sharded in nursery.run(2, "reach_programs:parallel"):
        assert cut[0] == "UsageError" and "cut by tensor parallelism" in cut[1]
        assert sharded == ["step", 3], sharded


HIDDEN = {
    "closure": "hidden", "queue": "kept['queue'][0]", "helper": "memory.hidden", "teacher": "a copy of the model",
    "layers with a closure": "hidden", "generator": "which changes|something that changes",
    "generator of an object": "something that changes",
}  # fmt: skip
"""State that only the function knows, and what the message names."""
ANEW = [
    "attached teacher", "counter", "by step", "step", "made by the body", "plain", "scaler", "layers", "elsewhere",
]  # fmt: skip


@pytest.mark.parametrize("case", HIDDEN)
def test_a_step_that_a_checkpoint_cannot_repeat_ends_the_training(nursery: Nursery, case: str) -> None:
    (found,) = nursery.ask(1, "reach_programs:rehearsed", case=case)
    assert found["raised"] == "UsageError", found
    assert any(each in found["message"] for each in HIDDEN[case].split("|")), found["message"]
    if case != "teacher":
        assert "step 1, computed again from what a checkpoint has" in found["message"]
        (allowed,) = nursery.run(1, "reach_programs:rehearsed", case=case, rehearse=False)
        assert len(allowed["losses"]) == 5


@pytest.mark.parametrize("case", ANEW)
def test_a_rehearsal_leaves_no_trace(nursery: Nursery, case: str) -> None:
    """What the body makes for each step is that of the recorded one, and the training does not see the copies."""
    for world in (1, 2):
        for with_, without in zip(
            *(nursery.run(world, "reach_programs:rehearsed", case=case, rehearse=each) for each in (True, False)),
            strict=True,
        ):
            assert with_ == without


def test_all_ranks_learn_of_a_difference(nursery: Nursery) -> None:
    for found in nursery.ask(2, "reach_programs:rehearsed", case="closure", grace_s=30):
        assert found["raised"] == "UsageError" and "computed again" in found["message"], found
