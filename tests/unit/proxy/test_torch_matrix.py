"""`make matrix-torch`: its table has no silent row."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
import torch_matrix  # type: ignore[import-not-found]

REPORT = """<testsuites><testsuite>
<testcase name="test_ends[no_sync]"/>
<testcase name="test_ends[FSDP2]"><skipped message="torch 2.6 itself"/></testcase>
<testcase name="test_every_collective"><failure>x</failure></testcase>
<testcase name="test_ends[Join]"><error>x</error></testcase>
</testsuite></testsuites>"""


def test_every_row_says_what_became_of_it() -> None:
    found = torch_matrix.outcomes(REPORT)
    assert found == {
        "no_sync": "passed", "FSDP2": "skipped: torch 2.6 itself", "every collective": "FAILED", "Join": "FAILED",
    }  # fmt: skip
    lines = torch_matrix.table({"2.6.0": found, "2.8.0": {"no_sync": "passed", "GAN": "passed"}}).splitlines()
    assert lines[0] == "| program | 2.6.0 | 2.8.0 |" and lines[2] == "| no_sync | passed | passed |"
    assert lines[-1] == "| GAN | not played | passed |" and len(lines) == 7


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({}, 1),
        ({"a": "passed", "b": "skipped: torch 2.6 itself"}, 0),
        ({"a": "passed", "b": "FAILED"}, 1),
    ],
)
def test_a_version_that_played_nothing_is_no_success(
    columns: dict[str, str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_matrix, "BUILD", tmp_path / "build")
    monkeypatch.setattr(torch_matrix, "ROOT", tmp_path)
    (tmp_path / "build").mkdir()
    monkeypatch.setattr(torch_matrix, "tested", lambda version, words: columns)
    assert torch_matrix.main(["2.8.0"]) == code
    with pytest.raises(SystemExit, match=r"ONLY=2.7.0: must be one of 2.6.0, "):
        torch_matrix.main(["2.7.0"])
