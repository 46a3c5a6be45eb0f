"""Time sharing: more jobs than devices take turns, a quantum each. Pure.

Source: Gandiva (Xiao et al., OSDI 2018). Jobs are suspended and resumed at the boundary of a step. So each makes
progress early, and users see soon whether a job is worth going on. Here the state is parked in the checkpoint store:
`pause` saves and gives the quota back, `resume` queues the job again.

Whoever waits longest is next, whether it waits in Kueue's queue or is parked. When it does not fit, jobs of its own
priority that have trained for a quantum are paused, the one that has run longest first. Jobs of other priorities are
Kueue's to preempt.

Kueue may leave a Workload waiting though there is quota for it: no node suits it, say. Then parked jobs go on, and
nobody is paused for it again. Later requests remember it (`Proposal.memory`), so that a restart does not forget it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from .. import free as quotas
from .. import measure, quota
from ..free import Room
from ..job import Job, Workload
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal

NAME = "timeSharing"
STUCK_S = 60.0
"""Seconds in which Kueue admits whoever fits. It is not about to admit one that still waits then."""
MOST_UNSERVED = 2
"""Names in a request."""


@dataclass(frozen=True)
class _Turn:
    """Who is next: a Workload that waits, or the parked job that it belongs to."""

    workload: Workload
    since: float
    queued: float
    """Since when Kueue could have admitted it."""
    parked: Job | None

    @property
    def name(self) -> str:
        return f"{self.workload.namespace}/{self.workload.name}"[-60:]


def propose(snapshot: ClusterSnapshot, quantum_s: float) -> list[Proposal]:
    """:param quantum_s: seconds that a job trains before it may have to wait for its next turn"""
    found: list[Proposal] = []
    by_queue: dict[str, list[Job]] = {}
    for job in snapshot.jobs.values():
        if job.workload is not None and not snapshot.stopped(job.workload):
            by_queue.setdefault(job.workload.queue, []).append(job)
    for name, queue in sorted(snapshot.queues.items()):
        found += _of_queue(snapshot, queue, by_queue.get(name, []), quantum_s)
    return found


def _of_queue(snapshot: ClusterSnapshot, queue: Queue, jobs: Sequence[Job], quantum_s: float) -> Iterator[Proposal]:
    free, most = snapshot.spare[queue.name], snapshot.most[queue.name]
    all_turns = sorted(_turns(snapshot, queue, jobs), key=lambda t: (-t.workload.priority, t.since, t.workload.uid))
    turns = [t for t in all_turns if quota.fits(t.workload.asks, queue.groups, most)]
    if not turns:
        # What a tree of cohorts lends, only Kueue knows. So parked jobs that need more than this cohort has wait in its
        # queue as soon as nobody else does. Else they would stay parked for ever.
        for late in all_turns:
            if late.parked is not None:
                yield Proposal("resume", late.parked.key, "nobody else waits, and Kueue may lend it quota", 0.0, NAME)
        return
    unserved = _unserved(snapshot, queue, jobs, turns, free)
    turn = next((t for t in turns if t.parked is not None or t.name not in unserved), None)
    if turn is None:
        return
    memory = tuple(sorted(unserved)[:MOST_UNSERVED])
    told = f"; Kueue leaves waiting though there was room: {', '.join(memory)}" if memory else ""
    # Kueue takes back for it what the cohort has borrowed, whoever that is; who is parked is not in Kueue's queue yet.
    back = turn.parked is not None or queue.reclaims == "Any"
    own = quotas.own_room(snapshot, queue) if back else {}
    if any(quota.fits(turn.workload.asks, queue.groups, room) for room in (free, own)):
        if turn.parked is not None:
            waited = snapshot.now - turn.since
            reason = f"its turn, after {waited:.0f} s in the store{told}"
            yield Proposal("resume", turn.parked.key, reason, 0.0, NAME, memory=memory)
        return  # Kueue admits who waits by itself
    room = quotas.with_own(free, _leaving(snapshot, queue, jobs))
    if quota.fits(turn.workload.asks, queue.groups, room):
        return  # others are making room for it
    for victim in _victims(jobs, queue, room, turn, snapshot.now, quantum_s):
        assert victim.runs_since is not None
        ran, waited = snapshot.now - victim.runs_since, snapshot.now - turn.since
        reason = f"its turn is over after {ran:.0f} s: {turn.workload.name[:60]} has waited {waited:.0f} s{told}"
        yield Proposal("pause", victim.key, reason, quantum_s * victim.devices, NAME, memory=memory)


def _turns(snapshot: ClusterSnapshot, queue: Queue, jobs: Sequence[Job]) -> Iterator[_Turn]:
    own = {job.workload.uid: job for job in jobs if job.workload is not None}
    for workload in snapshot.by_queue.get(queue.name, ()):
        if workload.waits and quotas.servable(snapshot, workload):
            job = own.get(workload.uid)
            since = workload.created if job is None else _idle_since(job)
            yield _Turn(workload, since, workload.created if job is None else measure.idle_since(job), None)
    for job in jobs:
        if job.parked_by == NAME and job.workload is not None and job.workload.holds is None:
            yield _Turn(job.workload, _idle_since(job), snapshot.now, job)


def _idle_since(job: Job) -> float:
    """Who was parked by this policy keeps its place when it is queued again."""
    own = job.change is not None and job.change.policy == NAME
    return measure.idle_since(replace(job, change=None) if own else job)


def _unserved(
    snapshot: ClusterSnapshot, queue: Queue, jobs: Sequence[Job], turns: Sequence[_Turn], free: Room
) -> Collection[str]:
    """Names of those that wait though they fit, or did so before: by what this policy has noted then."""
    told = {
        name
        for job in jobs
        if job.change is not None and job.change.policy == NAME
        for name in job.change.memory
    }
    waiting, changed = [t for t in turns if t.parked is None], max(_last_change(snapshot, queue), default=0.0)
    late = [t for t in waiting if snapshot.now - max(t.queued, changed) >= STUCK_S]
    fit = {t.name for t in late if quota.fits(t.workload.asks, queue.groups, free)}
    return fit | {t.name for t in waiting if t.name in told}


def _last_change(snapshot: ClusterSnapshot, queue: Queue) -> Iterator[float]:
    """When jobs around the queue were last given quota, or gave it back."""
    for job in snapshot.jobs.values():
        around = snapshot.queue_of(job)
        if job.attempts and around is not None and around.pool == queue.pool:
            last = job.attempts[-1]
            yield last.admitted_at + (measure.held_s(last, None) if job.given is None else 0.0)
    for ended in snapshot.ended:
        yield from (r.admitted_at + measure.held_s(r, None) for r in ended.attempts[-1:])


def _leaving(snapshot: ClusterSnapshot, queue: Queue, jobs: Sequence[Job]) -> Room:
    """What Workloads of the queue are about to give back."""
    pausing = {j.workload.uid for j in jobs if j.workload is not None and j.busy is not None and j.busy.op == "pause"}
    found = snapshot.by_queue.get(queue.name, ())
    return quota.added(w.holds for w in found if w.holds is not None and (w.leaves or w.uid in pausing))


def _victims(
    jobs: Sequence[Job], queue: Queue, room: Room, turn: _Turn, now: float, quantum_s: float
) -> Sequence[Job]:
    """Whom to pause, best first: each is enough alone, or else the first of several; none if all are not enough."""
    over = [
        job
        for job in jobs
        if job.trains and job.held and job.busy is None
        and job.workload is not None and job.workload.priority == turn.workload.priority
        and job.runs_since is not None and now - job.runs_since >= quantum_s
    ]  # fmt: skip
    over.sort(key=lambda job: (job.runs_since or 0.0, job.key))

    def enough(leave: Sequence[Job]) -> bool:
        back = quota.added(job.workload.holds or {} for job in leave if job.workload is not None)
        return quota.fits(turn.workload.asks, queue.groups, quotas.with_own(room, back))

    alone = [job for job in over if enough([job])]
    pays = [job for job in over if quantum_s * job.devices > measure.cost(job)]
    return alone or next((some[:1] for some in (pays, over) if enough(some)), [])
