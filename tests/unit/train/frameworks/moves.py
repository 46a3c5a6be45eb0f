"""Attempts of one job, each with its own number of workers, and what they have to add up to."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from torch_nursery import Nursery

STEPS = 12
"""Two epochs of 6 steps, with 8 samples in each step."""


def play(
    ranks: Nursery, program: str, place: Path | None, moves: list[tuple[int, int | None]], **arguments: Any
) -> list[list[Any]]:
    """What the ranks of each attempt returned. Each attempt has to go on where the one before ended.

    :param moves: workers, and the step after which one of them is asked to stop
    """
    attempts: list[list[Any]] = []
    for world, stop in moves:
        directory = None if place is None else str(place)
        found = ranks.run(world, program, directory=directory, stop=stop, stop_rank=world - 1, **arguments)
        began = attempts[-1][0]["step"] if attempts else 0
        assert {each["began"] for each in found} == {began}
        assert {each["step"] for each in found} == {STEPS if stop is None else stop}
        assert {(each["stopped"], each["finished"]) for each in found} == {(stop is not None, stop is None)}
        attempts.append(found)
    return attempts


def samples(attempts: list[list[Any]]) -> list[list[int]]:
    """Of each step, in no order."""
    return [
        sorted(chain(*parts)) for ranks in attempts for parts in zip(*(rank["seen"] for rank in ranks), strict=True)
    ]


def far(one: Any, other: Any) -> float:
    """The largest difference of nested numbers."""
    if isinstance(one, list):
        return max((far(x, y) for x, y in zip(one, other, strict=True)), default=0.0)
    return float(abs(one - other))
