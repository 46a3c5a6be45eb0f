"""Are two runs of the training script the same, bit for bit? Reads what the script itself wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOSS_FILE = "loss-rank{rank}.log"
WEIGHT_FILES = ("weights.npz", "weights.pt")

Losses = Sequence[tuple[int, str]]
"""One rank's log: (step, loss as `float.hex()` text), in the order written."""


@dataclass(frozen=True)
class RunOutput:
    """Everything of a run that is compared."""

    losses: Mapping[int, Losses]
    """Rank -> its log."""
    weights: Mapping[str, str]
    """File name -> sha256 of its bytes."""


@dataclass(frozen=True)
class Comparison:
    steps: int
    """Steps that every rank of the run logged, each exactly once and in order; 0 when a rank's log has a hole."""
    ranks: int
    differences: Sequence[str]
    """Sentences; empty when the runs are bit-identical."""

    @property
    def bit_identical(self) -> bool:
        return not self.differences


def parse_losses(text: str) -> Losses:
    """Lines `STEP HEXFLOAT`. Raises ValueError that names the line."""
    rows: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        try:
            step, loss = parts
            float.fromhex(loss)
            rows.append((int(step), loss))
        except ValueError:
            raise ValueError(f"line {number}: expected 'STEP HEXFLOAT', got {line!r}") from None
    return rows


def read_output(directory: Path, ranks: int) -> RunOutput:
    """Read `loss-rank<r>.log` and the final weights of a run. Raises OSError or ValueError naming the file."""
    losses: dict[int, Losses] = {}
    for rank in range(ranks):
        path = directory / LOSS_FILE.format(rank=rank)
        try:
            losses[rank] = parse_losses(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    weights = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in WEIGHT_FILES}
    return RunOutput(losses, weights)


def compare(run: RunOutput, reference: RunOutput) -> Comparison:
    """Compare every rank's loss at every step, and the final weights byte by byte."""
    differences: list[str] = []
    lengths: set[int] = set()
    if set(run.losses) != set(reference.losses):
        differences.append(f"ranks {sorted(run.losses)} against {sorted(reference.losses)} in the reference")
    for rank, rows in sorted(run.losses.items()):
        steps = [step for step, _ in rows]
        complete = steps == list(range(len(steps)))
        lengths.add(len(steps) if complete else 0)
        if not complete:
            differences.append(f"rank {rank}: steps are not 0, 1, 2, ...: {_first_break(steps)}")
        difference = _first_difference(rows, reference.losses.get(rank, ()))
        if difference:
            differences.append(f"rank {rank}: {difference}")
    if len(lengths) > 1:
        differences.append(f"ranks logged different numbers of steps: {sorted(lengths)}")
    if not run.weights or set(run.weights) != set(reference.weights):
        differences.append(f"weights: files {sorted(run.weights)} against {sorted(reference.weights)} in the reference")
    for name in sorted(set(run.weights) & set(reference.weights)):
        if run.weights[name] != reference.weights[name]:
            differences.append(f"weights: {name} differs from the reference's")
    if lengths == {0} or not lengths:
        differences.append("no step was logged")
    return Comparison(min(lengths, default=0), len(run.losses), tuple(differences))


def _first_break(steps: Sequence[int]) -> str:
    wrong = next((i for i, step in enumerate(steps) if step != i), len(steps))
    return f"line {wrong + 1} has step {steps[wrong]}" if wrong < len(steps) else "end is missing"


def _first_difference(rows: Losses, reference: Losses) -> str | None:
    for (step, loss), (wanted_step, wanted) in zip(rows, reference, strict=False):
        if (step, loss) != (wanted_step, wanted):
            return f"step {step} has loss {loss}, the reference has {wanted} at step {wanted_step}"
    if len(rows) != len(reference):
        return f"{len(rows)} steps against {len(reference)} in the reference"
    return None
