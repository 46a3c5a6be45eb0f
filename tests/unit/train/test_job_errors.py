"""What a script, a folder or a changed training can get wrong: an error that names it, and the checkpoint intact."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from torch_nursery import Nursery

CHANGED = {
    "missing": ("ModelChangedError", r"missing here: 4\.bias"),
    "extra": ("ModelChangedError", r"new here: 5\.bias, 5\.weight"),
    "reshaped": ("ModelChangedError", r"reshaped: .*2\.weight \[4, 16\] -> \[4, 17\]"),
    "optimizer": ("OptimizerChangedError", "class is SGD, and the checkpoint has AdamW"),
    "groups": ("OptimizerChangedError", r"groups is \[2, 4\], and the checkpoint has \[6\] parameters"),
    "scheduler": ("OptimizerChangedError", r"missing here: scheduler\.main"),
    "samples": ("DataError", "150 samples, and the checkpoint was made with 160"),
    "streams": ("DataError", "read a map-style data set"),
    "virtual_ranks": ("ContractError", "virtual_ranks = 4: the checkpoint was made with 8"),
    "batch_size": ("ContractError", "batch_size = 4: the checkpoint was made with 2"),
    "seed": ("ContractError", "seed = 4: the checkpoint was made with 0"),
    "threads": ("ContractError", "threads is 2 here and 1 in the checkpoint"),
}


def test_a_changed_training_is_refused_by_name(nursery: Nursery, root: Path) -> None:
    """All in one process; the unchanged one goes on afterwards."""
    (found,) = nursery.run(1, "error_programs:changed", directory=str(root), cases=list(CHANGED))
    for case, (kind, pattern) in CHANGED.items():
        assert found[case][0] == kind, (case, found[case])
        assert re.search(pattern, found[case][1]), (case, found[case])
    assert found["unchanged"] == ["step", 3]


WRONG = {
    "twice": ("UsageError", "called twice"),
    "after the first step": ("UsageError", "before the first step"),
    "few samples": ("DataError", "10 samples are fewer than one step reads"),
    "no batch size": ("DataError", "batch_size = None"),
    "few of a sampler": ("DataError", "2 samples are fewer than one step reads"),
    "one stream": ("UsageError", "one stream, which cannot be divided"),
    "streams without virtual ranks": ("UsageError", "streams need virtual_ranks"),
    "empty stream": ("DataError", "gives no samples"),
    "wrapped": ("UsageError", "without DistributedDataParallel"),
    "foreign parameters": ("UsageError", "parameters of no attached model"),
    "no state_dict": ("UsageError", r"extra\.thing: object has no state_dict"),
    "buffers": ("UsageError", "buffers = 'all': give one of first, mean"),
    "steps": ("UsageError", "steps = 0: give 1 or more"),
    "no backward": ("UsageError", "its body ended without step.backward"),
    "backward of another step": ("UsageError", "step 0 is over"),
    "no loss": ("UsageError", "returned a tensor of 2 numbers"),
    "no weight": ("UsageError", "add up to 0.0"),
    "sparse": ("UsageError", "a gradient is sparse"),
    "own exception": ("KeyError", "'the user'"),
    "own exception in the data": ("KeyError", "'the data set'"),
}


def test_wrong_calls_say_what_to_do(nursery: Nursery) -> None:
    (found,) = nursery.run(1, "error_programs:wrong", cases=list(WRONG))
    for case, (kind, pattern) in WRONG.items():
        assert found[case][0] == kind, (case, found[case])
        assert re.search(pattern, found[case][1]), (case, found[case])


def test_what_one_of_two_ranks_raises_leaves_the_loop_as_it_is(nursery: Nursery, root: Path) -> None:
    """The other one fails too, by the connection that breaks. The last checkpoint stays, of step 1 or 2."""
    words = {"directory": str(root)}
    other, raised = nursery.ask(2, "error_programs:one_raises", at=2, grace_s=30, **words)
    assert (raised["raised"], raised["message"]) == ("ValueError", "rank 1 has read a bad batch in step 2")
    assert "During handling" not in raised["trace"] and "direct cause" not in raised["trace"], raised["trace"]
    assert other["code"] == 1 and other["raised"] != "ValueError", other
    went_on = nursery.run(2, "error_programs:one_raises", at=None, **words)
    assert went_on[0] == went_on[1] and went_on[0] in ([1, 2, 3], [2, 3])


@pytest.mark.parametrize(
    ("case", "kind", "pattern"),
    [
        ("many", "UsageError", "virtual_ranks = 2: the world has 3 workers"),
        ("plain", "UsageError", "nothing adds the gradients of the workers"),
        ("folders", "UsageError", "directory: rank 1 has none and others do"),
    ],
)
def test_worlds_that_cannot_train(nursery: Nursery, root: Path, case: str, kind: str, pattern: str) -> None:
    for each in nursery.run(3, "error_programs:worlds", case=case, directory=str(root)):
        assert each[0] == kind and re.search(pattern, each[1]), each


def test_ranks_that_differ_train_and_are_not_exact(nursery: Nursery) -> None:
    found = nursery.run(2, "error_programs:differing")
    assert [each["verdict"] for each in found] == ["reordered", "reordered"]
    assert "device is" not in found[0]["why"] and "isa is" in found[0]["why"]
    assert [each["required"] for each in found] == ["ContractError", "ContractError"]


def test_without_a_folder_nothing_is_saved_and_signals_keep_their_meaning(nursery: Nursery) -> None:
    assert nursery.run(1, "error_programs:no_folder") == [["default", "nothing", 2]]


def test_the_host_hears_of_progress_and_of_checkpoints(nursery: Nursery, root: Path) -> None:
    (found,) = nursery.run(1, "error_programs:hosted", directory=str(root))
    assert found["steps"] == [1, 2, 3] and found["metrics"] == [{}, {"accuracy": 0.5}, {"accuracy": 0.5}]
    assert found["saved"] == [2, 3]
    assert found["stopped"] and found["file"]["step"] == 1


def test_stored_state_is_a_branch_of_the_librarys_errors() -> None:
    """One `except TrainError` of a script is enough. Read as text: torch is not in every environment."""
    tree = ast.parse((Path(__file__).parents[3] / "singularity_train/storage/errors.py").read_text())
    (top,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "StateStorageError"]
    assert [ast.unparse(base) for base in top.bases] == ["TrainError"]
