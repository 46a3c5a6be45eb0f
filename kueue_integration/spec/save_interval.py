"""`checkpoint_every`: how often a job saves a checkpoint and trains on. Text to meaning and back; pure, no imports."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

LEAST_S = 10.0
"""Never two checkpoints closer together than this, however they were asked for."""
MOST_S = 7 * 86400.0
MAX_STEPS = 10**9
OFF = "off"
AUTO = "auto"
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?([smh]?)")
_STEPS = re.compile(r"(\d+) ?steps?")
FORMS = "use '300s', '10m', '2h', a number of seconds, '500 steps', 'auto' or 'off'"


@dataclass(frozen=True)
class SaveInterval:
    """One of seconds and steps, or neither: `auto`."""

    seconds: float | None = None
    steps: int | None = None

    @property
    def auto(self) -> bool:
        return self.seconds is None and self.steps is None

    def __str__(self) -> str:
        """Text that `parse` understands."""
        if self.steps is not None:
            return f"{self.steps} step" + ("" if self.steps == 1 else "s")
        return AUTO if self.seconds is None else f"{self.seconds:.12g}s"


def parse(value: object) -> SaveInterval | None:
    """None: no periodic checkpoints. Raises ValueError with what is wrong and what to write instead."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"is not an interval; {FORMS}")
    text = str(value).strip().lower()
    if text in (AUTO, OFF, "", "none"):  # the last two are what templates render for nothing
        return SaveInterval() if text == AUTO else None
    steps = _STEPS.fullmatch(text)
    if steps:
        count = int(steps[1][:20])
        if not 1 <= count <= MAX_STEPS:
            raise ValueError(f"must be from 1 to {MAX_STEPS} steps")
        return SaveInterval(steps=count)
    time = _TIME.fullmatch(text)
    if not time:
        raise ValueError(f"is not an interval; {FORMS}")
    seconds = float(time[1]) * _UNITS[time[2]]
    if not math.isfinite(seconds) or not LEAST_S <= seconds <= MOST_S:
        raise ValueError(f"must be from {LEAST_S:.0f} seconds to {MOST_S / 86400:.0f} days")
    return SaveInterval(seconds=seconds)
