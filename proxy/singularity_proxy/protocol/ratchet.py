"""The barrier as a pure function: where must the ranks stop, and have they all stopped there?

    stop_at >= counter + 1 of every rank that is not blocked, and >= counter of every rank that is
    a rank blocks at a boundary while its counter >= stop_at
    acquired when every rank is blocked at the same counter, which is stop_at

A rank that has ended counts no more: it needs nobody, and nobody who can go on needs it. One that is about to end is
waited for: it cannot be saved, and it has not ended.

No atomic announcement and no lockstep is assumed; views may be old. stop_at only grows.

No deadlock. A rank blocked at counter c has issued every collective of its first c steps, and its bound is the highest
stop_at it has seen. A rank that is not blocked at counter c may have passed that boundary before the request reached
its page. Then it is inside step c + 1, whose collectives need every rank. So every rank must be allowed up to c + 1,
even if c is stop_at already. (The rule `stop_at = max(counters)` lacks exactly this. It deadlocks across pods, where a
request reaches one page later than another. The model check in the tests shows both.) A rank seen in the instant
between counting and blocking costs one more step, nothing else.
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
    """Every rank has ended, or is about to: this barrier is never reached."""


def decide(ranks: Sequence[RankView], generation: int, stop_at: int) -> Decision:
    """One step of the coordinator. `stop_at` is the last published value, 0 at the first call of a generation.

    `ranks` holds every rank of the world, in order; a rank that has not reported yet counts as STATE_ABSENT.
    """
    if ranks and all(r.state in page.OVER for r in ranks):
        return Decision(stop_at=stop_at, finished=True)
    going = [r for r in ranks if r.state not in page.OVER]
    needed = max((r.count if r.blocked == generation else r.count + 1 for r in going), default=0)
    target = max(stop_at, needed)
    everyone = all(r.blocked == generation and r.count == target and r.state == page.STATE_RUNNING for r in going)
    about_to_end = any(r.state == page.STATE_FINISHED for r in ranks)
    return Decision(stop_at=target, acquired=bool(going) and everyone and not about_to_end)
