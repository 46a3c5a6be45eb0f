"""What the records of a job tell: what a move costs, what it was served, and how fast it was at which size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from ..contract.record_types import AttemptRecord
from .job import Job

UNKNOWN_S: Final = 60.0
"""What a save or a restore counts as long as none was measured, and no checkpoint tells how large the job is."""
START_S: Final = 20.0
BYTES_PER_S: Final = 0.2e9
"""Expected of one that has a checkpoint: pods that end and start, and the bytes of a pod through its sidecar."""
NEWEST: Final = 5
"""So many of the newest saves and restores are averaged: they change with the size of the job."""
HOUR_S: Final = 3600.0
DELIBERATE: Final = frozenset(("Migrated", "Resized", "Paused", "Rewound", "Regrown"))
"""`ended_by` of attempts that had to end because somebody wanted so, and neither Kueue nor a fault."""


@dataclass(frozen=True)
class Speed:
    """Steps per second at one size and flavor."""

    workers: int
    flavor: str
    steps: int
    seconds: float

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds


def save_s(job: Job) -> float | None:
    """Seconds from an eviction until its quota was free, the mean of the newest; None: never measured.

    A job that somebody wants to move is saved before the eviction: it counts from when its ranks stopped.
    """
    ends = [(_stopped(r), r.released_at if r.released_at is not None else r.committed_at) for r in job.attempts]
    return _mean([end - start for start, end in ends if start is not None and end is not None])


def _stopped(record: AttemptRecord) -> float | None:
    """Since when its devices did not work any more, or an eviction waited; None without an eviction."""
    at, barrier = record.evicted_at, record.barrier_at
    return at if at is None or barrier is None else min(at, barrier)


def restore_s(job: Job) -> float | None:
    """Seconds from an admission until the first step was done (the programs ran), with a checkpoint to restore."""
    starts = [(r.admitted_at, r.first_step_at or r.runs_since) for r in job.attempts if r.restored_from is not None]
    return _mean([end - start for start, end in starts if end is not None])


def _mean(seconds: Sequence[float]) -> float | None:
    good = [s for s in seconds if s >= 0][-NEWEST:]
    return fmean(good) if good else None


def cost(job: Job) -> float:
    """Device-seconds that a move takes: no device works from the eviction to the first step of the next attempt."""
    return back_s(job) * job.devices


def _expected_s(job: Job) -> float:
    """Seconds of a save or a restore that was never measured."""
    if job.saved_bytes is None:
        return UNKNOWN_S
    pods = max(1, job.given.count if job.given is not None else job.wanted)
    return START_S + job.saved_bytes / pods / BYTES_PER_S


def held_s(record: AttemptRecord, now: float | None, since: float = 0.0) -> float:
    """Seconds from `since` on in which the attempt held quota; `now` for one that holds it still, else None."""
    known = [record.released_at, record.finished_at, record.committed_at, record.evicted_at, record.first_step_at]
    end = next((at for at in known if at is not None), record.admitted_at) if now is None else now
    return max(0.0, end - max(since, record.admitted_at))


def idle_since(job: Job) -> float:
    """Since when a job without quota waits for it: it was made, had to leave, or was queued again after a pause."""
    last = job.attempts[-1] if job.attempts else None
    left_at = job.created if last is None else last.admitted_at + held_s(last, None)
    back = job.change if job.change is not None and job.change.op == "resume" else None
    return left_at if back is None else max(left_at, back.at)


def attained(job: Job, now: float, since: float = 0.0) -> float:
    """Device-seconds that the job was served from `since` on: pods times devices times the time with quota."""
    return served_s(job.attempts, job.given is not None, now, since) * job.devices_per_pod


def served_s(attempts: Sequence[AttemptRecord], holds: bool, now: float, since: float = 0.0) -> float:
    """Pod-seconds with quota from `since` on. `holds`: the last attempt has its quota still."""
    total = 0.0
    for record in attempts:
        open_end = holds and record is attempts[-1]
        total += held_s(record, now if open_end else None, since) * max(1, record.pods)
    return total


def speeds(job: Job) -> list[Speed]:
    """One for each (workers, flavor) that was measured for at least three steps and a second, smallest first."""
    sums: dict[tuple[int, str], tuple[int, float]] = {}
    for record in job.attempts:
        found = _pace(job, record)
        if found is not None:
            steps, seconds = sums.get((record.pods, record.flavor), (0, 0.0))
            sums[record.pods, record.flavor] = steps + found[0], seconds + found[1]
    good = (Speed(*key, steps, seconds) for key, (steps, seconds) in sorted(sums.items()))
    return [speed for speed in good if speed.steps >= 3 and speed.seconds >= 1.0]


def _pace(job: Job, record: AttemptRecord) -> tuple[int, float] | None:
    """(steps, seconds) after the first step of an attempt."""
    first, begun = record.first_step, record.first_step_at
    if first is None or begun is None or record.pods < 1:
        return None
    last: int | None = record.last_step
    ended = next((at for at in (record.barrier_at, record.evicted_at, record.finished_at) if at is not None), None)
    if ended is None and record is job.attempts[-1] and job.steps_done is not None and job.steps_seen_at is not None:
        last, ended = job.steps_done - 1, job.steps_seen_at
    if last is None or ended is None or last <= first or ended <= begun:
        return None
    return last - first, ended - begun


def move_s(job: Job, unknown_s: float = 0.0) -> float:
    """Seconds that the job's newest moves took, save and restore together; `unknown_s` for what was never measured."""
    saved, restored = save_s(job), restore_s(job)
    return (unknown_s if saved is None else saved) + (unknown_s if restored is None else restored)


def ends_s(job: Job) -> float | None:
    """Seconds until the job is done, at its present size and speed; None: its program does not say how many steps it
    makes, or its pace is not known."""
    steps, pace = steps_left(job), _pace(job, job.attempts[-1]) if job.attempts else None
    if steps is None or pace is None:
        return None
    done, seconds = pace
    return steps * seconds / done


def left_s(job: Job, now: float) -> float:
    """The same for any job.

    A job that does not say how many steps it makes is expected to go on for as long as it has run, the estimate for
    lifetimes without a scale (Gott, Nature 363, 1993).
    """
    ends = ends_s(job)
    return attained(job, now) / job.devices if ends is None else ends


def back_s(job: Job) -> float:
    """Seconds that a move is expected to take: save and restore, by size where they were never measured."""
    return move_s(job, _expected_s(job))


def steps_left(job: Job) -> float | None:
    """Step boundaries until the job is done; None: its program does not print how many steps it makes.

    A program may count otherwise than we do (accumulated gradients, say): then the ratio so far holds for the rest.
    """
    if job.steps_total is None or job.steps_printed is None or job.steps_printed < 1 or not job.steps_done:
        return None
    return max(0, job.steps_total - job.steps_printed) * job.steps_done / job.steps_printed
