"""Training time that was lost: what attempts did after the checkpoint that a later one started from. Pure.

Steps that were run again say the same of programs that have steps. Of others, which print none and wait for no other
rank, there is nothing else: "0 steps lost" may be all of their work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import attempt_records
from ..contract.record_types import AttemptRecord

Point = tuple[int, float]
"""An attempt, and a moment in it (Unix seconds)."""
BEGINNING: Point = (0, -math.inf)


@dataclass(frozen=True)
class Lost:
    """Seconds of training, by attempt; only what is not 0.

    :param of: that the attempt did for nothing
    :param since: of earlier ones, that are lost since it has been let in
    """

    of: Mapping[int, float]
    since: Mapping[int, float]

    @property
    def total(self) -> float:
        return round(sum(self.of.values()), 1)


def of_job(job: Mapping[str, Any] | None) -> Lost:
    """What stands on `job`."""
    refs = [*attempt_records.checkpoints(job), *filter(None, [attempt_records.checkpoint(job)])]
    return of_history(attempt_records.history(job), {ref.id: (ref.attempt, ref.created_at) for ref in refs})


def of_history(attempts: Sequence[AttemptRecord], made: Mapping[str, Point]) -> Lost:
    """:param made: id of each checkpoint that is known -> when. A start from another one counts as no loss"""
    known = dict(made)
    known |= {a.checkpoint: (a.attempt, a.committed_at or math.inf) for a in attempts if a.checkpoint is not None}
    lost = [0.0] * len(attempts)
    found: dict[int, float] = {}
    for index, record in enumerate(attempts):
        start = _point(record, known, attempts[0].admitted_at)
        if start is None:
            continue
        for earlier in range(index):
            now = max(lost[earlier], _after(start, attempts[earlier], attempts[earlier + 1]))
            if now > lost[earlier]:
                found[record.attempt] = found.get(record.attempt, 0.0) + now - lost[earlier]
            lost[earlier] = now
    each = {record.attempt: seconds for record, seconds in zip(attempts, lost, strict=True)}
    return Lost(_some(each), _some(found))


def words(seconds: float) -> str:
    """`80 s`, `12 min`, `3.5 h` of training; "" for less than a second."""
    if seconds < 1:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s of training"
    return f"{seconds / 60:.0f} min of training" if seconds < 5400 else f"{seconds / 3600:.1f} h of training"


def _some(seconds: Mapping[int, float]) -> dict[int, float]:
    return {attempt: round(value, 1) for attempt, value in seconds.items() if value >= 0.05}


def _point(record: AttemptRecord, known: Mapping[str, Point], began: float) -> Point | None:
    """What the attempt started from; None: that is not known."""
    if record.restored_from is None:
        return BEGINNING
    found = known.get(record.restored_from)
    return BEGINNING if found is not None and found[1] < began else found  # of the job that it was forked from


def _after(start: Point, record: AttemptRecord, successor: AttemptRecord) -> float:
    """Seconds of the attempt's training that whoever starts from there does not have."""
    attempt, at = start
    if attempt > record.attempt:
        return 0.0
    begun = record.first_step_at if record.first_step_at is not None else record.running_at
    if begun is None:
        return 0.0
    since = max(begun, at) if attempt == record.attempt else begun
    return max(0.0, _stopped(record, successor) - since)


def _stopped(record: AttemptRecord, successor: AttemptRecord) -> float:
    """When the attempt trained no more: at its barrier, or when its pods or its quota were gone."""
    saved = record.barrier_at if record.barrier_at is not None else record.committed_at
    if record.checkpoint is not None and saved is not None:
        return saved
    ends = [at for at in (record.pods_gone_at, record.released_at, record.finished_at) if at is not None]
    late = [at for at in (record.evicted_at, successor.queued_at, successor.admitted_at) if at is not None]
    return min(ends or late)
