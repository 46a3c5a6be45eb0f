"""What is lost when a rank, a disk or a byte is lost: never the checkpoint before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment
QUICK_S = 90
"""Of 120 s, which is the timeout of these worlds: the ranks that are left tell each other."""


@pytest.mark.parametrize(
    ("phase", "victim", "committed"),
    [
        ("planning", 1, 1), ("agreeing", 0, 1), ("staging", 2, 1), ("a blob written, not renamed", 1, 1),
        ("blobs renamed, folder not synced", 2, 1), ("all written, nobody told", 1, 1),
        ("all written, nobody told", 0, 1), ("manifest not renamed", 0, 1), ("committed, nobody told", 0, 2),
        ("removing old ones", 0, 2),
    ],
)  # fmt: skip
def test_a_rank_that_dies_while_saving(nursery: Nursery, root: Path, phase: str, victim: int, committed: int) -> None:
    found = nursery.ask(3, "state_fault_programs.dies", grace_s=100, root=str(root), victim=victim, phase=phase)
    assert [each["code"] for each in found] == [-9 if rank == victim else 0 for rank in range(3)]
    for each in (each["returned"] for each in found if each["code"] == 0):
        assert each["error"] == "LostRankError", each
        assert "lost another rank" in each["message"]
        assert each["seconds"] < QUICK_S
        assert "went on" not in each
    after = nursery.run(3, "state_fault_programs.goes_on", root=str(root))
    assert [each["step"] for each in after] == [committed] * 3
    assert after[0]["unused"] == []
    assert after[0]["folders"] == 2


def test_a_rank_that_hangs_is_waited_for_no_longer_than_the_timeout(nursery: Nursery, root: Path) -> None:
    found = nursery.run(2, "state_fault_programs.freezes", root=str(root), timeout_s=2)
    assert found[0]["error"] == "LostRankError"
    assert "waited 2 s" in found[0]["message"]
    assert found[0]["seconds"] < QUICK_S


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a small file system")
def test_a_full_disk_is_said_on_all_ranks_and_the_checkpoint_before_stays(nursery: Nursery, root: Path) -> None:
    found = nursery.run(2, "state_fault_programs.fills_the_disk", root=str(root))
    for each in found:
        for number in (0, 1):
            name, message = each[f"error {number}"]
            assert name == "NoSpaceError"
            assert "no space is left" in message and "make room" in message
        assert (each["step"], each["then"]) == (1, 2)
    assert found[0]["blobs"] == 4  # what the failed saves had written is gone
