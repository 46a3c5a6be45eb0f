"""Where the seconds of a move went: from Kueue's eviction of one attempt to the first step of the next one. Pure.

The moments are the controller's, of one clock. Between two of them lie the phases that the pods have measured: they are
durations, and are only ever laid between two moments. What nobody has measured there goes to whoever had to act.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from singularity_proxy.protocol import phases
from singularity_proxy.protocol.phases import SavePhases, StartPhases

from ..contract.attempt_phases import AttemptPhases
from ..contract.record_types import AttemptRecord

BY: Final = {
    "barrier": "ranks", "freeze": "agent", "dump": "CRIU", "upload": "store",
    "containers": "Kubernetes", "load": "sidecar", "join": "sidecar", "fetch": "store", "image": "Kubernetes",
    "unpack": "launcher", "restore": "CRIU", "meet": "ranks",
    "device off": "device", "device on": "device", "start": "launcher",
}  # fmt: skip
"""Who works in a phase that pods measure."""
UNTOLD_SAVE: Final = "its pods have not told the phases of the checkpoint"
UNTOLD_START: Final = "its pods have not told the phases of the start"
UNSEEN: Final = "how the attempt ended was not seen"
UNFINISHED: Final = "the move is not over, or its end was not seen"


@dataclass(frozen=True)
class Span:
    """One phase. `start` is in seconds since the move began."""

    phase: str
    by: str
    start: float
    seconds: float


@dataclass(frozen=True)
class Move:
    """From attempt `left` to attempt `right`, which is None before the next admission."""

    left: int
    right: int | None
    left_flavor: str
    right_flavor: str
    ended_by: str
    preempted_by: str
    checkpoint: str
    """That ended the attempt; "" without one."""
    spans: list[Span]
    seconds: float
    """Of all spans: nothing is counted twice, and nothing is left out."""
    notes: list[str] = field(default_factory=list)
    began: float = 0.0
    """Unix seconds, by the controller's clock; 0 where nothing was seen."""


@dataclass(frozen=True)
class _Moment:
    """Unix seconds at which a window ends, and how its seconds are shared out: `parts` pass in their order."""

    at: float
    rest: tuple[str, str]
    """Phase, and by whom: what is left of the window."""
    parts: Sequence[tuple[str, float]] = ()
    rest_first: bool = True


def moves(history: Sequence[AttemptRecord], told: Sequence[AttemptPhases]) -> list[Move]:
    """Oldest first. The last one has no `right` while its job waits."""
    known = {one.attempt: one for one in told}
    pairs: list[tuple[AttemptRecord, AttemptRecord | None]] = [*itertools.pairwise(history)]
    if history and history[-1].evicted_at is not None and history[-1].finished_at is None:
        pairs.append((history[-1], None))
    return [
        _move(left, right, known.get(left.attempt), known.get(right.attempt) if right else None)
        for left, right in pairs
    ]


def _move(
    left: AttemptRecord, right: AttemptRecord | None, before: AttemptPhases | None, after: AttemptPhases | None
) -> Move:
    save = before.save if before is not None and left.committed_at is not None else None
    start = after.start if after is not None else None
    moments = [*_leaving(left, save), *_gone(left, right), *(_coming(left, right, start) if right else ())]
    moments.sort(key=lambda moment: moment.at)
    spans = [*_spans(moments)]
    notes = [UNSEEN] if left.evicted_at is None and left.barrier_at is None else []
    notes += [UNTOLD_SAVE] if left.committed_at is not None and save is None else []
    notes += [UNTOLD_START] if right is not None and right.runs_since is not None and start is None else []
    notes += [] if right is not None and right.runs_since is not None else [UNFINISHED]
    return Move(
        left=left.attempt,
        right=right.attempt if right else None,
        left_flavor=left.flavor,
        right_flavor=right.flavor if right else "",
        ended_by=left.ended_by or "",
        preempted_by=left.preempted_by or "",
        checkpoint=left.checkpoint or "",
        spans=spans,
        seconds=round(moments[-1].at - moments[0].at, 3) if moments else 0.0,
        notes=notes,
        began=moments[0].at if moments else 0.0,
    )


def _leaving(record: AttemptRecord, save: SavePhases | None) -> Iterator[_Moment]:
    """A node that is drained, say, asks for the checkpoint itself: Kueue's eviction comes after it then."""
    beside = record.evicted_at is None or (record.barrier_at is not None and record.barrier_at < record.evicted_at)
    barrier = [("barrier", save.barrier)] if save is not None else []
    if record.barrier_at is not None and beside and save is not None:
        yield _Moment(record.barrier_at - save.barrier, ("notice", "controller"))
    if record.evicted_at is not None:
        yield _Moment(record.evicted_at, ("eviction", "Kueue"))
    if record.barrier_at is not None:
        rest = ("notice", "controller") if barrier else ("barrier", "ranks")
        yield _Moment(record.barrier_at, rest, barrier)
    if record.committed_at is not None:
        saved = [] if save is None else [part for part in _parts(save, "off") if part[0] not in dict(barrier)]
        rest = ("checkpoint", "sidecars") if save is None else ("commit", "controller")
        yield _Moment(record.committed_at, rest, saved, rest_first=False)
    if record.released_at is not None:
        yield _Moment(record.released_at, ("release", "Kueue"))


def _gone(left: AttemptRecord, right: AttemptRecord | None) -> Iterator[_Moment]:
    """The end of the pods. It shows where somebody has waited for it: Kueue, before the release, or the fence.

    A job that waits in the queue meanwhile waits for quota, and not for them.
    """
    at, released = left.pods_gone_at, left.released_at
    if at is None:
        return
    at = at if right is None else min(at, right.admitted_at)
    queued = right is not None and released is not None and released < at <= _reserved(left, right)
    if not queued:
        yield _Moment(at, ("pods end", "Kubernetes"))


def _reserved(left: AttemptRecord, right: AttemptRecord) -> float:
    """When `right` got its quota: not before `left` has given it back. Records of earlier versions do not have it."""
    at = right.admitted_at if right.reserved_at is None else right.reserved_at
    return min(right.admitted_at, max(at, left.released_at or 0.0))


def _coming(left: AttemptRecord, right: AttemptRecord, start: StartPhases | None) -> Iterator[_Moment]:
    yield _Moment(_reserved(left, right), ("queue" if left.released_at is not None else "release, queue", "Kueue"))
    yield _Moment(right.admitted_at, ("fence", "controller"))
    ends = [at for at in (right.running_at, right.first_step_at) if at is not None]
    if not ends:
        return
    # The controller hears that ranks run, and how long ago the first step was: the step can come first by a hair.
    begun = "restore" if right.restored_from else "start"
    parts = [] if start is None else _parts(start, "on", {"restore": begun})
    rest = (f"pods, {begun}", "Kubernetes") if start is None else ("pods", "Kubernetes")
    yield _Moment(min(ends), rest, parts)
    if right.first_step_at is not None:
        yield _Moment(right.first_step_at, ("first step", "ranks"))


def _parts(
    measured: SavePhases | StartPhases, way: str, renamed: dict[str, str] | None = None
) -> list[tuple[str, float]]:
    names = {"device": f"device {way}", **(renamed or {})}
    return [(names.get(name, name), seconds) for name, seconds in phases.by_name(measured).items()]


def _spans(moments: Iterable[_Moment]) -> Iterator[Span]:
    """Window by window. What pods measured is cut to fit in: the moments are heard of a little later than they are."""
    began = None
    for one, moment in itertools.pairwise(moments):
        began = one.at if began is None else began
        window = moment.at - one.at
        measured = sum(seconds for _, seconds in moment.parts)
        shrink = window / measured if measured > window else 1.0
        shares = [(phase, BY[phase], seconds * shrink) for phase, seconds in moment.parts]
        rest = (*moment.rest, max(0.0, window - measured))
        at = one.at - began
        for phase, by, seconds in [rest, *shares] if moment.rest_first else [*shares, rest]:
            if round(seconds, 3) > 0:
                yield Span(phase, by, round(at, 3), round(seconds, 3))
            at += seconds
