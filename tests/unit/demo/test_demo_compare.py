"""Comparison of two runs: only equal bytes are equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.demo.compare import RunOutput, compare, parse_losses, read_output

LOSSES = {rank: [(step, (1.0 / (step + rank + 1)).hex()) for step in range(5)] for rank in range(2)}
WEIGHTS = {"weights.npz": "aa", "weights.pt": "bb"}


def test_equal_runs_are_bit_identical() -> None:
    result = compare(RunOutput(LOSSES, WEIGHTS), RunOutput(LOSSES, WEIGHTS))
    assert result.bit_identical
    assert (result.steps, result.ranks) == (5, 2)


@pytest.mark.parametrize(
    ("losses", "weights", "said"),
    [
        ({**LOSSES, 1: [*LOSSES[1][:4], (4, (0.1).hex())]}, WEIGHTS, "rank 1: step 4 has loss"),
        ({**LOSSES, 1: LOSSES[1][:4]}, WEIGHTS, "rank 1: 4 steps against 5"),
        ({**LOSSES, 1: [*LOSSES[1], LOSSES[1][4]]}, WEIGHTS, "line 6 has step 4"),
        ({**LOSSES, 1: [*LOSSES[1][:2], *LOSSES[1][3:]]}, WEIGHTS, "line 3 has step 3"),
        ({0: LOSSES[0]}, WEIGHTS, "ranks [0] against [0, 1]"),
        (LOSSES, {**WEIGHTS, "weights.pt": "cc"}, "weights.pt differs"),
        (LOSSES, {}, "weights: files []"),
        ({0: [], 1: []}, WEIGHTS, "no step was logged"),
    ],
)
def test_any_difference_is_named(losses: dict[int, list[tuple[int, str]]], weights: dict[str, str], said: str) -> None:
    result = compare(RunOutput(losses, weights), RunOutput(LOSSES, WEIGHTS))
    assert not result.bit_identical
    assert said in "; ".join(result.differences)


def test_a_neighbouring_float_is_a_difference() -> None:
    close = {0: [(0, "0x1.0000000000001p+0")]}
    result = compare(RunOutput(close, WEIGHTS), RunOutput({0: [(0, "0x1.0000000000000p+0")]}, WEIGHTS))
    assert not result.bit_identical


@pytest.mark.parametrize("text", ["0 0x1p0 extra\n", "zero 0x1p0\n", "0 nothex\n", "0\n"])
def test_a_spoiled_log_is_refused_by_line(text: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_losses("0 0x1.8p+0\n" + text)


def test_files_are_read_from_a_run_directory(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"loss-rank{rank}.log").write_text("".join(f"{s} {v}\n" for s, v in LOSSES[rank]))
    for name in WEIGHTS:
        (tmp_path / name).write_bytes(name.encode())
    output = read_output(tmp_path, 2)
    assert output.losses == LOSSES
    assert set(output.weights) == set(WEIGHTS)
    (tmp_path / "loss-rank1.log").write_text("broken\n")
    with pytest.raises(ValueError, match=r"loss-rank1\.log: line 1"):
        read_output(tmp_path, 2)
    (tmp_path / "weights.pt").unlink()
    (tmp_path / "loss-rank1.log").write_text("")
    with pytest.raises(OSError, match=r"weights\.pt"):
        read_output(tmp_path, 2)
