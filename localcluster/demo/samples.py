"""Which samples a training was given: reads what the script's ranks wrote. Was any of them given twice, or left out?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FILES = "samples-rank*.log"


class Given(NamedTuple):
    """What one rank was given in one step."""

    step: int
    epoch: int
    samples: tuple[int, ...]


def read(folder: Path) -> list[Given]:
    """All lines `STEP EPOCH SAMPLE,SAMPLE,...` of all ranks. Raises ValueError that names file and line."""
    return [given for path in sorted(folder.glob(FILES)) for given in parse(path.read_text(), path.name)]


def parse(text: str, name: str) -> list[Given]:
    """The lines of one rank's file `name`. Raises ValueError that names file and line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            step, epoch, samples = line.split()
            found.append(Given(int(step), int(epoch), tuple(int(sample) for sample in samples.split(","))))
        except ValueError:
            raise ValueError(f"{name}: line {number}: expected 'STEP EPOCH SAMPLE,...', got {line[:80]!r}") from None
    return found


def wrong(given: Sequence[Given], steps: int, batch: int) -> list[str]:
    """Sentences: what differs from `steps` steps of `batch` samples each, of which no epoch has one twice."""
    by_step: dict[int, list[int]] = {}
    seen: dict[int, set[int]] = {}
    twice: list[str] = []
    for each in sorted(given):
        by_step.setdefault(each.step, []).extend(each.samples)
        epoch = seen.setdefault(each.epoch, set())
        for sample in each.samples:
            if sample in epoch:
                twice.append(f"step {each.step}: sample {sample} is in epoch {each.epoch} for the second time")
            epoch.add(sample)
    sizes = {step: len(by_step.get(step, ())) for step in sorted({*range(steps), *by_step})}
    missing = [
        f"step {step} had {size} samples, expected {batch if step < steps else 0}"
        for step, size in sizes.items()
        if size != batch or step >= steps
    ]
    return missing + twice
