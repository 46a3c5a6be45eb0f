"""No sample twice, none left out: from what the ranks of the script wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.demo import samples
from localcluster.demo.samples import Given

GOOD = (Given(0, 0, (1, 2)), Given(0, 0, (0, 3)), Given(1, 0, (5, 4, 7, 6)), Given(2, 1, (0, 1, 2, 3)))
"""Three steps of four samples: the first on two ranks, the others on one; the last in another epoch."""


def test_other_ranks_and_another_epoch_are_no_difference() -> None:
    assert samples.wrong(GOOD, 3, 4) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (GOOD[1:], "step 0 had 2 samples, expected 4"),
        (GOOD[:2] + GOOD[3:], "step 1 had 0 samples, expected 4"),
        ((*GOOD, GOOD[3]), "step 2 had 8 samples, expected 4"),
        ((*GOOD, Given(3, 1, (4, 5, 6, 7))), "step 3 had 4 samples, expected 0"),
        ((*GOOD[:2], Given(1, 0, (5, 4, 7, 1)), GOOD[3]), "step 1: sample 1 is in epoch 0 for the second time"),
    ],
)
def test_what_is_wrong_is_named_by_its_step(given: tuple[Given, ...], sentence: str) -> None:
    assert sentence in samples.wrong(given, 3, 4)


def test_the_files_of_all_ranks_are_read(tmp_path: Path) -> None:
    (tmp_path / "samples-rank0.log").write_text("0 0 1,2\n1 0 5,4,7,6\n")
    (tmp_path / "samples-rank1.log").write_text("0 0 0,3\n")
    (tmp_path / "loss-rank0.log").write_text("0 0x1p+0\n")
    assert sorted(samples.read(tmp_path)) == sorted(GOOD[:3])


@pytest.mark.parametrize("line", ["0 0", "0 0 1,x", "a 0 1", "0 0 1, 2"])
def test_a_line_that_says_something_else_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "samples-rank1.log").write_text(f"0 0 1,2\n{line}\n")
    with pytest.raises(ValueError, match=r"samples-rank1\.log: line 2: expected 'STEP EPOCH SAMPLE"):
        samples.read(tmp_path)
