"""A script is run uninterrupted and moved, and the verdict is what the comparison says."""

from __future__ import annotations

import pytest
from torch_nursery import Nursery

JUDGED = {
    "same": "exact", "near": "different (models.main.weight: by 6e-08)", "near, moved": "reordered",
    "far, moved": "different (models.main.weight: by 0.05)", "sign of zero": "different (models.main.weight)",
    "dtype": "different (models.main.weight)", "count": "different (models.main.weight)",
    "missing": "different (models.main.weight)", "loss": "different (loss of step 1: by 0.5)",
    "no loss": "different (loss of step 1)", "nan": "exact",
    "steps": "different (it ended after 5 steps, uninterrupted after 4)",
}  # fmt: skip
RUNS = {
    "exact": (0, ["--workers", "1,2"], "exact"),
    "noise": (1, ["--workers", "1"], "different (loss of step 5: by "),
    "raises": (4, ["--workers", "1"], "unchecked (exit code 1: ValueError: the data set is not there)"),
    "other": (4, ["--workers", "1"], "unchecked (no checkpoint was made: "),
    "short": (4, ["--workers", "1"], "unchecked (it ends after 3 steps"),
}
WRONG = {
    "--workers: each is 1": ["--workers", "0", "SCRIPT"], "--stop 12: give 1 to": ["--stop", "12", "SCRIPT"],
    "numbers with commas": ["--workers", "two", "SCRIPT"], "SCRIPT: none is no file": [],
}  # fmt: skip


CASES = [each if each == "exact" else pytest.param(each, marks=pytest.mark.full) for each in RUNS]


@pytest.mark.parametrize("how", CASES)
def test_the_verdict_on_a_script(nursery: Nursery, how: str) -> None:
    code, options, verdict = RUNS[how]
    ((found, *lines),) = nursery.run(1, "prove_programs:proved", words=["--steps", "6", *options, "SCRIPT", how])
    assert found == code and lines[-1].startswith(verdict), lines
    if how == "exact":
        assert [line.split()[0] for line in lines[:-1]] == ["uninterrupted", "resumed", "moved"], lines


def test_what_is_compared(nursery: Nursery) -> None:
    (found,) = nursery.run(1, "prove_programs:judged")
    assert found == JUDGED


def test_the_attempts_of_each_run(nursery: Nursery) -> None:
    ((one, two, three),) = nursery.run(1, "prove_programs:planned")
    assert one == {"uninterrupted": [[1, 12]], "resumed": [[1, 6], [1, 12]]}
    assert two == {**one, "moved": [[2, 6], [1, 12]]}
    assert three["moved"] == [[3, 4], [1, 8], [2, 12]] and three["uninterrupted"] == [[2, 12]]


def test_wrong_arguments(nursery: Nursery) -> None:
    for text, words in WRONG.items():
        ((code, *lines),) = nursery.run(1, "prove_programs:proved", words=words)
        assert code == 2 and text in lines[-1], lines
