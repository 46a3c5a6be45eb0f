"""Which moves were begun within an hour, and since when each job trains: what the arbiter's limits count.

Two clocks count. The records of a job have the API server's time; they outlive this process. A move that is on its way
is on record too: by its request, or by the mark of a priority. What was done since this process started is also kept by
a monotonic clock, so a clock that jumps opens no limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..contract.record_types import AttemptRecord
from . import measure
from .job import Job, JobKey
from .model import ClusterSnapshot

SETTLE_S: Final = 60.0
"""Seconds after a move was asked for in which the same attempt is not asked again: our copies may be behind."""
Move = tuple[str, int]
"""UID of a job, and the attempt that ended by it."""


@dataclass(frozen=True)
class _Entry:
    """A move that this process has begun."""

    key: JobKey
    uid: str
    attempt: int
    clock: float


class RecentMoves:
    """`now` is the API server's time, Unix seconds; `clock` is monotonic. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._since: dict[Move, float] = {}
        """Of an attempt: since when it trains, by the monotonic clock."""
        self._ends: dict[Move, float] = {}
        """Of an attempt that says that it ends soon: until when that is believed, by the monotonic clock."""
        self._looked = False

    def observe(self, snapshot: ClusterSnapshot, clock: float) -> None:
        """Remember what trains since when, and forget what is over.

        Only at its first look has this process to believe the other clock. Later, what it sees for the first time has
        begun since the look before: it counts from now.
        """
        self._entries = [entry for entry in self._entries if clock - entry.clock < measure.HOUR_S]
        seen = {}
        for job in snapshot.jobs.values():
            if job.runs_since is not None:
                key, age = (job.uid, job.attempt), max(0.0, snapshot.now - job.runs_since)
                seen[key] = self._since.get(key, clock if self._looked else clock - age)
        self._since, self._looked = seen, True
        self._ends = {key: until for key, until in self._ends.items() if key in seen}

    def enter(self, job: Job, clock: float) -> None:
        """Its current attempt is about to be ended by a move."""
        self._entries.append(_Entry(job.key, job.uid, job.attempt, clock))

    def believes(self, job: Job, ends_s: float, clock: float) -> bool:
        """Whether the job may stay because it ends in `ends_s` seconds, as its program says.

        It gets twice the time that it said first: a program that prints what it likes gains no more than that.
        """
        return clock <= self._ends.setdefault((job.uid, job.attempt), clock + 2 * ends_s)

    def strike(self, key: JobKey) -> None:
        """The last move of that job was not begun after all."""
        found = [entry for entry in self._entries if entry.key == key]
        if found:
            self._entries.remove(found[-1])

    def moves(self, snapshot: ClusterSnapshot) -> dict[str, set[Move]]:
        """By namespace: moves within an hour by either clock, out of records and of what this process has begun."""
        found: dict[str, set[Move]] = {}
        for entry in self._entries:
            found.setdefault(entry.key[0], set()).add((entry.uid, entry.attempt))
        for job in snapshot.jobs.values():
            recent = {(job.uid, attempt) for attempt in _begun(job, snapshot.now)}
            if recent:
                found.setdefault(job.key[0], set()).update(recent)
        for ended in snapshot.ended:
            recent = {(ended.uid, r.attempt) for r in ended.attempts if _recent(r, snapshot.now)}
            if recent:
                found.setdefault(ended.namespace, set()).update(recent)
        return found

    def settles(self, job: Job, now: float, clock: float) -> float:
        """Seconds left of SETTLE_S since this attempt was last asked to move, maybe by the process before this one."""
        ages = [clock - e.clock for e in self._entries if (e.uid, e.attempt) == (job.uid, job.attempt)]
        ages += [max(0.0, now - job.lowered_at)] if job.lowered == job.attempt and job.attempt else []
        return SETTLE_S - min(ages, default=SETTLE_S)

    def trained(self, job: Job, now: float, clock: float) -> float:
        """Seconds since the current attempt trains; as far as this process has seen it, by its own clock."""
        since = self._since.get((job.uid, job.attempt))
        if since is not None:
            return clock - since
        return now - (now if job.runs_since is None else job.runs_since)


def _begun(job: Job, now: float) -> set[int]:
    """Attempts that a move has ended within an hour, or is about to end: another process may have begun it."""
    found = {record.attempt for record in job.attempts if _recent(record, now)}
    change = job.change
    if change is not None and change.policy and (change.moves or (change.under_way and change.op == "pause")):
        found.add(change.attempt or job.attempt)
    if job.lowered and job.lowered_at > now - measure.HOUR_S:
        found.add(job.lowered)
    last = job.attempts[-1] if job.attempts else None
    if last is not None and last.readmitted_for == "regrow" and last.ended_by is None:
        found.add(last.attempt)
    return found


def _recent(record: AttemptRecord, now: float) -> bool:
    """Whether an attempt has ended within an hour because somebody wanted so. A time in the future counts."""
    ended = record.evicted_at if record.evicted_at is not None else record.admitted_at
    wanted = record.ended_by in measure.DELIBERATE or record.lowered_by is not None
    return wanted and ended > now - measure.HOUR_S
