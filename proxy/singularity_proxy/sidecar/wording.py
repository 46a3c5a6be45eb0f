"""Sentences about ranks for people: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..protocol import page
from ..protocol.ratchet import RankView


def numbers(values: Iterable[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def ranks(values: Sequence[int]) -> str:
    """`rank 3` or `ranks 0-2`."""
    return f"rank{'s' if len(set(values)) != 1 else ''} {numbers(values)}"


def pods(values: Sequence[int]) -> str:
    """`pod 3` or `pods 0-2`."""
    return f"pod{'s' if len(set(values)) != 1 else ''} {numbers(values)}"


def positions(views: Sequence[RankView], generation: int) -> str:
    """Where every rank is: `ranks 0-1 at step 17, rank 2 waiting at step 18`."""
    groups: dict[str, list[int]] = {}
    for rank, view in enumerate(views):
        if view.state == page.STATE_ABSENT:
            text = "not at a first step boundary yet"
        elif view.state in page.OVER:
            text = f"ended at step {view.count}"
        elif view.blocked == generation:
            text = f"waiting at step {view.count}"
        else:
            text = f"at step {view.count}"
        groups.setdefault(text, []).append(rank)
    return ", ".join(f"{ranks(members)} {text}" for text, members in groups.items())
