"""`singularity_train.prove` in a process that has torch. Each function gets rank and world size first."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch

from singularity_train import prove

SCRIPT = str(Path(__file__).with_name("proved_script.py"))


def proved(rank: int, world: int, words: list[str]) -> list[Any]:
    """Exit code and lines."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code: Any = prove.main([SCRIPT if each == "SCRIPT" else each for each in words])
        except SystemExit as error:
            code = error.code
    return [code, *said.getvalue().splitlines()]


def judged(rank: int, world: int) -> dict[str, str]:
    """The verdict on two outcomes, without running anything."""
    one = torch.tensor([1.0, 2.0, 0.0])

    def outcome(value: Any, losses: Any = None, step: int = 4) -> prove.Outcome:
        return prove.Outcome(step, losses or {1: (0.5).hex()}, {"models.main.weight": value})

    near, far, negative = one.clone(), one + 0.1, one.clone()
    near[0] += 1e-7
    negative[2] = -0.0
    cases = {
        "same": (outcome(one), outcome(one.clone()), False),
        "near": (outcome(one), outcome(near), False),
        "near, moved": (outcome(one), outcome(near), True),
        "far, moved": (outcome(one), outcome(far), True),
        "sign of zero": (outcome(one), outcome(negative), True),
        "dtype": (outcome(one), outcome(one.double()), True),
        "count": (outcome(torch.tensor(3)), outcome(torch.tensor(4)), True),
        "missing": (outcome(one), prove.Outcome(4, {1: (0.5).hex()}, {}), True),
        "loss": (outcome(one), outcome(one, {1: (0.25).hex()}), True),
        "no loss": (outcome(one), prove.Outcome(4, {}, {"models.main.weight": one}), False),
        "steps": (outcome(one), outcome(one, step=5), True),
        "nan": (outcome(one * float("nan")), outcome(one * float("nan")), False),
    }
    return {case: str(prove.compared(*given)) for case, given in cases.items()}


def planned(rank: int, world: int) -> list[Any]:
    return [prove.plans([1], 6, 12), prove.plans([1, 2], 6, 12), prove.plans([2, 3, 1], 4, 12)]
