"""What rank 0's own output says about its progress: step, total, loss. For any script that prints them.

It understands `loss 0.31`, `loss: 0.31`, `loss=3.1e-1`, `'loss': 0.31` (Hugging Face), `step 120/900`, `iter: 120`,
`global_step=120` and the bars of tqdm (`120/900 [00:10<...`). It does not guess at other output.

A script with `singularity_train` need not print anything: its host writes a file, which has the last word.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from ...protocol import decode
from ...protocol.decode import Unreadable, whole
from ...protocol.messages import Reading
from ..ranks import control_files

EVERY_S = 2.0
"""At most one reading in so many seconds."""
MAX_LOSS = 1e300
"""As in the messages (`decode.AnyFloat`)."""
LONGEST = 4096
"""Bytes of a line that are looked at."""

_NUMBER = rb"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_LOSS = re.compile(rb"(?i)(?<![\w.])(?:train[_ ]?)?loss[\"']?\s*[:=]?\s*" + _NUMBER)
_STEP = re.compile(
    rb"(?i)(?<![\w.])(?:global[_ ]?step|step|iter(?:ation)?)s?[\"']?\s*[:=]?\s*(\d+)(?:\s*(?:/|of)\s*(\d+))?(?![.\d])"
)
_BAR = re.compile(rb"(\d+)/(\d+) \[\d+:\d\d")


def _count(digits: bytes, before: int | None) -> int | None:
    """A number of steps; a number too large for a message (`decode.MAX_WHOLE`) is ignored."""
    found = whole(digits.decode())
    return before if isinstance(found, Unreadable) else found


class Readout:
    """Collects from lines; `due` hands out what is new, not too often.

    :param file: `names.PROGRESS_FILE`, where there may be one
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._step: int | None = None
        self._total: int | None = None
        self._loss: float | None = None
        self._told: Reading | None = None
        self._told_at = -math.inf

    def see(self, line: bytes) -> None:
        """Take in one line of output; a progress bar's line has many states, the last counts."""
        text = line[-LONGEST:].rsplit(b"\r", 1)[-1]
        steps = [*_BAR.finditer(text)][-1:] or [*_STEP.finditer(text)][-1:]
        for found in steps:
            self._step = _count(found.group(1), self._step)
            if found.group(2):
                self._total = _count(found.group(2), self._total)
        for found in [*_LOSS.finditer(text)][-1:]:
            value = float(found.group(1))
            self._loss = value if abs(value) <= MAX_LOSS else self._loss

    def due(self, now: float) -> Reading | None:
        """The newest reading if it differs from the last one handed out; `now` in seconds of any steady clock."""
        if now - self._told_at < EVERY_S:
            return None
        new = self._reading()
        if new == (self._told or Reading()):
            return None
        self._told, self._told_at = new, now
        return new

    def _reading(self) -> Reading:
        seen = Reading(self._step, self._total, self._loss)
        if self._file is None:
            return seen
        try:
            told = control_files.read(self._file)
        except FileNotFoundError:
            return seen
        if not told:
            return seen
        fields = {"step": told.get("step"), "total": told.get("steps"), "loss": told.get("loss")}
        return found if isinstance(found := decode.typed(Reading, fields), Reading) else seen
