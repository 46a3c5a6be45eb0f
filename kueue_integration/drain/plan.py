"""Which job a drain moves next, and how far each one is. Pure: looks and answers in, the next request out.

A job is saved once while it goes on, then asked to leave with a checkpoint. The first save tells whether it can be
saved at all: a job that cannot is left as it is. It also stores nearly all of the second one ahead of time.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..jobs.status import newest_usable
from ..requests import verbs
from .departure import Departure
from .look import Key, Look, Refusal, steps_lost

WAITS_S = 10.0
"""Seconds without quota after which a job counts as one that waits: Kueue gives most jobs quota again in less."""


class Stage(str, enum.Enum):
    """How far the move of one job is."""

    FOUND = "found"
    """Its turn has not come."""
    TURN = "turn"
    """It is to be asked next, or something else stops it at the moment."""
    SAVING = "saving"
    LEAVING = "leaving"
    AWAY = "away"
    """None of its pods is on the nodes, and it runs elsewhere, waits in its queue, or has ended."""
    STAYS = "stays"
    OVERDUE = "overdue"
    """Its time is over; what was asked for goes on."""

    @property
    def final(self) -> bool:
        return self in (Stage.AWAY, Stage.STAYS, Stage.OVERDUE)


class Ask(str, enum.Enum):
    """What the job is asked for next."""

    SAVE = "save"
    LEAVE = "leave"


@dataclass(frozen=True)
class Move:
    """One job on the drained nodes. Times are seconds of one monotonic clock."""

    key: Key
    stage: Stage = Stage.FOUND
    priority: int = 0
    since: float | None = None
    """When its turn came; None before that."""
    attempt: int = 0
    """That was current when it was found."""
    saved: bool = False
    """Whether the first save is done, or there was nothing to save."""
    asked: verbs.Result | None = None
    departure: Departure | None = None
    waits_since: float | None = None
    seconds: float = 0.0
    """From its turn to its end."""
    where: str = ""
    """AWAY: where it is now."""
    refusal: Refusal | None = None
    """STAYS, OVERDUE: why, and what to do."""
    checkpoint: str = ""
    steps_lost: int = 0

    @property
    def name(self) -> str:
        return "/".join(self.key)


def due(moves: Iterable[Move], at_once: int) -> list[Key]:
    """Jobs whose turn comes now, at most `at_once` together: those of high priority choose first where to go.

    A move that is overdue is still under way, and keeps its place.
    """
    known = list(moves)
    busy = sum(m.stage in (Stage.TURN, Stage.SAVING, Stage.LEAVING, Stage.OVERDUE) for m in known)
    waiting = sorted((m for m in known if m.stage is Stage.FOUND), key=lambda m: (-m.priority, m.key))
    return [m.key for m in waiting[: max(0, at_once - busy)]]


def begin(move: Move, now: float) -> Move:
    """The turn of `move` has come."""
    return replace(move, stage=Stage.TURN, since=now)


def over(moves: Mapping[Key, Move], at_once: int) -> dict[Key, Move]:
    """`moves`, with those given up that will never have a turn: overdue ones have all places."""
    stuck = [m.name for m in moves.values() if m.stage is Stage.OVERDUE]
    if len(stuck) < at_once:
        return dict(moves)
    why = Refusal(f"not asked: the move of {', '.join(sorted(stuck))} is not over", "drain again when it is")
    return {k: replace(m, stage=Stage.STAYS, refusal=why) if m.stage is Stage.FOUND else m for k, m in moves.items()}


def advance(move: Move, seen: Look, now: float, timeout_s: float) -> Move:
    """`move` after this look. `timeout_s`: seconds that a job has from its turn on."""
    if move.stage.final or (move.stage is Stage.FOUND and seen.on):
        return move
    if not seen.on:
        return _off_the_nodes(move, seen, now, timeout_s)
    if seen.ended:  # its pods are still ending
        return _unless_late(move, seen, now, timeout_s)
    if move.stage is Stage.TURN and seen.refusal is not None and not seen.stopping:
        return stays(move, seen.refusal, now)
    if move.stage is Stage.SAVING:
        return _unless_late(_after_save(move, seen, now), seen, now, timeout_s)
    if move.stage is Stage.LEAVING:
        return _unless_late(_after_leave(move, seen, now), seen, now, timeout_s)
    under_way = seen.save if seen.save is not None and not seen.save.final else None
    if not move.saved and under_way is not None and not seen.stopping:
        move = replace(move, stage=Stage.SAVING, asked=under_way)  # somebody else's save serves as well
    return _unless_late(move, seen, now, timeout_s)


def wanted(move: Move, seen: Look) -> Ask | None:
    """What to ask the job for now, None for nothing: an eviction that is under way is never asked for twice."""
    if move.stage is not Stage.TURN or seen.stopping or seen.ended or not seen.on:
        return None
    return Ask.LEAVE if move.saved or not seen.trains else Ask.SAVE


def stays(move: Move, refusal: Refusal, now: float) -> Move:
    """The job is left on its node."""
    return replace(move, stage=Stage.STAYS, refusal=refusal, seconds=_passed(move, now))


def came_back(move: Move, nodes: Iterable[str], now: float) -> Move:
    """A job that was away has pods on a drained node again."""
    where = ", ".join(nodes)
    return stays(move, Refusal(f"has pods on {where} again", f"kubectl cordon {where}, and drain again"), now)


def _off_the_nodes(move: Move, seen: Look, now: float, timeout_s: float) -> Move:
    waits_since = (now if move.waits_since is None else move.waits_since) if seen.waits else None
    move = replace(move, waits_since=waits_since)
    waits = waits_since is not None and now - waits_since >= WAITS_S
    if not (seen.ended or seen.runs or waits or move.stage is Stage.FOUND):
        return _unless_late(move, seen, now, timeout_s)
    told = replace(move, stage=Stage.AWAY, seconds=_passed(move, now), where=_where(seen))
    if seen.status is None:
        return told
    saved = newest_usable(seen.status.checkpoints) or {}
    lost = steps_lost(seen.status, move.attempt)
    return replace(told, checkpoint=str(saved.get("id") or ""), steps_lost=lost)


def _where(seen: Look) -> str:
    status = seen.status
    if status is None or seen.ended:
        return seen.message
    if seen.runs:
        place = f"{status.cluster}/{status.flavor}" if status.cluster else status.flavor
        nodes = f" ({', '.join(seen.elsewhere)})" if seen.elsewhere else ""
        return f"attempt {status.attempt} on {place or 'unknown flavor'}{nodes}"
    return f"{status.phase}, queue {status.queue}: {status.message}"


def _after_save(move: Move, seen: Look, now: float) -> Move:
    assert move.asked is not None
    answer = seen.save
    if seen.stopping:  # something else has stopped it meanwhile
        return replace(move, stage=Stage.TURN, asked=None)
    if answer is None or answer.id != move.asked.id:  # a later request has replaced it: that one serves as well
        return replace(move, stage=Stage.TURN, asked=None)
    if answer.state == "failed":
        fix = f"see `singularityctl status {move.key[1]} -n {move.key[0]}`; it goes on as before"
        return stays(move, Refusal(f"cannot be saved now: {answer.message}", fix), now)
    if answer.state == "done":
        return replace(move, stage=Stage.TURN, asked=None, saved=True)
    return replace(move, asked=answer)


def _after_leave(move: Move, seen: Look, now: float) -> Move:
    assert move.asked is not None
    answer = seen.change
    if seen.stopping:
        return move
    if answer is None or answer.id != move.asked.id:
        later = f"a later request ({answer.op})" if answer is not None else "somebody who removed it"
        return stays(move, Refusal(f"its move was replaced by {later}", "drain again when that is done"), now)
    if answer.state == "failed":
        return stays(move, Refusal(f"its move failed: {answer.message}", "drain again"), now)
    return replace(move, asked=answer)


def _unless_late(move: Move, seen: Look, now: float, timeout_s: float) -> Move:
    if move.stage.final or move.since is None or now - move.since < timeout_s:
        return move
    return late(move, seen.message, now, timeout_s)


def late(move: Move, message: str, now: float, timeout_s: float) -> Move:
    """The time of `move` is over."""
    doing = {Stage.SAVING: "saved", Stage.LEAVING: "moved"}.get(move.stage, "free to be moved")
    fix = f"`singularityctl status {move.key[1]} -n {move.key[0]}` shows how it goes on; then drain again"
    if move.asked is not None and move.asked.state == "asked":
        fix = "is the controller running? see `singularityctl doctor`"
    why = Refusal(f"not {doing} within {timeout_s:.0f} s: {message}", fix)
    return replace(move, stage=Stage.OVERDUE, refusal=why, seconds=_passed(move, now))


def _passed(move: Move, now: float) -> float:
    return 0.0 if move.since is None else round(now - move.since, 1)
