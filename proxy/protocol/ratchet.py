"""The barrier as a pure function: where must the ranks stop, and have they all stopped there?

    stop_at = max(counters) + 1; a rank blocks at a boundary while its counter >= stop_at; a rank seen beyond stop_at
    makes it grow; acquired when every rank is blocked at the same counter, which is stop_at.

No atomic announcement and no lockstep is assumed. A rank blocked at counter c has issued every collective of steps
<= c, and stop_at >= max(counters), so nobody waits for a blocked rank: no deadlock. stop_at only grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import page


@dataclass(frozen=True)
class RankView:
    """What the coordinator last heard of one rank."""

    count: int
    blocked: int
    """Generation for which the rank waits, 0 while it runs."""
    state: int


@dataclass(frozen=True)
class Decision:
    """`acquired` and `finished` exclude each other; `stop_at` is what must be published now."""

    stop_at: int
    acquired: bool = False
    finished: bool = False
    """A rank has ended: this barrier can never be reached."""


def decide(ranks: Sequence[RankView], generation: int, stop_at: int) -> Decision:
    """One step of the coordinator. `stop_at` is the last published value, 0 at the first call of a generation.

    `ranks` holds every rank of the world, in order; a rank that has not reported yet counts as STATE_ABSENT.
    """
    if any(r.state == page.STATE_FINISHED for r in ranks):
        return Decision(stop_at=stop_at, finished=True)
    top = max((r.count for r in ranks), default=0)
    target = top + 1 if stop_at == 0 else max(stop_at, top)
    everyone = all(
        r.blocked == generation and r.count == target and r.state == page.STATE_RUNNING for r in ranks
    )
    return Decision(stop_at=target, acquired=bool(ranks) and everyone)
