"""Time sharing: more jobs than devices take turns, a quantum each. Pure.

Source: Gandiva (Xiao et al., OSDI 2018). Jobs are suspended and resumed at the boundary of a step. So each makes
progress early, and users see soon whether a job is worth going on. Here the state is parked in the checkpoint store:
`pause` saves and gives the quota back, `resume` queues the job again.

Whoever waits longest is next, whether it waits in Kueue's queue or is parked. When it does not fit, jobs of its own
priority that have trained for a quantum are paused, the one that has run longest first. Jobs of other priorities are
Kueue's to preempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .. import free as quotas
from .. import quota
from ..free import Room
from ..job import Job, Workload
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal

NAME = "timeSharing"


@dataclass(frozen=True)
class _Turn:
    """Who is next: a Workload that waits, or the parked job that it belongs to."""

    workload: Workload
    since: float
    parked: Job | None


def propose(snapshot: ClusterSnapshot, quantum_s: float) -> list[Proposal]:
    """:param quantum_s: seconds that a job trains before it may have to wait for its next turn"""
    found: list[Proposal] = []
    by_queue: dict[str, list[Job]] = {}
    for job in snapshot.jobs.values():
        if job.workload is not None:
            by_queue.setdefault(job.workload.queue, []).append(job)
    for name, queue in sorted(snapshot.queues.items()):
        found += _of_queue(snapshot, queue, by_queue.get(name, []), quantum_s)
    return found


def _of_queue(snapshot: ClusterSnapshot, queue: Queue, jobs: Sequence[Job], quantum_s: float) -> Iterator[Proposal]:
    free = quotas.room(snapshot, queue)
    all_turns = sorted(_turns(snapshot, queue, jobs), key=lambda t: (-t.workload.priority, t.since, t.workload.uid))
    turn = next((t for t in all_turns if quota.fits(t.workload.asks, queue.groups, queue.nominal)), None)
    if turn is None:
        # Parked jobs that need more than the queue has of its own ran on borrowed quota. Only Kueue knows when there
        # is some again, so they wait in its queue as soon as nobody else does. Else they would stay parked for ever.
        for late in all_turns:
            if late.parked is not None:
                yield Proposal("resume", late.parked.key, "nobody else waits, and Kueue may lend it quota", 0.0, NAME)
        return
    if quota.fits(turn.workload.asks, queue.groups, free if turn.parked is None else quotas.own_room(snapshot, queue)):
        if turn.parked is not None:  # in Kueue's queue it can also have back what the cohort has borrowed
            waited = snapshot.now - turn.since
            yield Proposal("resume", turn.parked.key, f"its turn, after {waited:.0f} s in the store", 0.0, NAME)
        return  # Kueue admits who waits by itself
    victim = _victim(jobs, queue, free, turn, snapshot.now, quantum_s)
    if victim is not None:
        assert victim.runs_since is not None
        ran, waited = snapshot.now - victim.runs_since, snapshot.now - turn.since
        reason = f"its turn is over after {ran:.0f} s: {turn.workload.name[:100]} has waited {waited:.0f} s"
        yield Proposal("pause", victim.key, reason, quantum_s * victim.devices, NAME)


def _turns(snapshot: ClusterSnapshot, queue: Queue, jobs: Sequence[Job]) -> Iterator[_Turn]:
    since = {job.workload.uid: _idle_since(job) for job in jobs if job.workload is not None}
    for workload in snapshot.by_queue.get(queue.name, ()):
        if workload.waits:
            yield _Turn(workload, since.get(workload.uid, workload.created), None)
    for job in jobs:
        if job.parked_by == NAME and job.workload is not None and job.workload.holds is None:
            yield _Turn(job.workload, _idle_since(job), job)


def _idle_since(job: Job) -> float:
    """When it last had to leave, or was made."""
    last = job.attempts[-1] if job.attempts else None
    if last is None:
        return job.created
    return next((at for at in (last.released_at, last.evicted_at) if at is not None), last.admitted_at)


def _victim(
    jobs: Sequence[Job], queue: Queue, free: Room, turn: _Turn, now: float, quantum_s: float
) -> Job | None:
    """The first job to pause; None if all whose quantum is over do not make enough room."""
    over = [
        job
        for job in jobs
        if job.trains and job.workload is not None and job.workload.priority == turn.workload.priority
        and job.runs_since is not None and now - job.runs_since >= quantum_s
    ]  # fmt: skip
    over.sort(key=lambda job: (job.runs_since or 0.0, job.key))
    room = free
    for job in over:
        own = job.workload.holds or {} if job.workload is not None else {}
        if quota.fits(turn.workload.asks, queue.groups, quotas.with_own(free, own)):
            return job
        room = quotas.with_own(room, own)
    return over[0] if over and quota.fits(turn.workload.asks, queue.groups, room) else None
