"""The way back of what is lent: borrowers shrink, just enough for who waits for quota of its own queue. Pure.

Part of `lending`, with a name of its own. To call a loan back is no bargain. The arbiter does not weigh it, and does
not let it wait for the useful run time. What limits it are the loans: each return needs one before it.

A Workload that waits has a claim if it fits into the nominal quota of its own queue. What keeps it out is what other
queues have borrowed. Priorities do not count, as for `reclaimWithinCohort: Any` of Kueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from .. import free as quotas
from .. import measure, quota
from ..free import Room
from ..job import Job, Workload
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal
from ..quota import NONE

NAME = "lendingReturn"


@dataclass(frozen=True)
class _Claim:
    workload: Workload
    queue: Queue
    asks: Room
    """By flavor and resource, within the nominal quota of its queue."""
    devices: int


@dataclass(frozen=True)
class _Shrink:
    job: Job
    queue: Queue
    size: int
    gives: Room


def propose(snapshot: ClusterSnapshot, expect_s: float) -> list[Proposal]:
    """At most one for each cohort: who is next is looked at when that one leaves.

    :param expect_s: seconds for which the owner would wait otherwise
    """
    found = []
    pools: dict[str, list[Queue]] = {}
    for name in sorted(snapshot.queues):
        pools.setdefault(snapshot.queues[name].pool, []).append(snapshot.queues[name])
    for pool in pools.values():
        if len(pool) > 1:
            found += _of_pool(snapshot, pool, expect_s)
    return found


def _of_pool(snapshot: ClusterSnapshot, pool: Sequence[Queue], expect_s: float) -> list[Proposal]:
    names = {queue.name for queue in pool}
    waiting = [w for w in snapshot.workloads if w.waits and w.queue in names and quotas.servable(snapshot, w)]
    if not waiting:
        return []
    jobs = [job for job in snapshot.jobs.values() if job.workload is not None and job.workload.queue in names]
    if any(job.busy is not None and job.busy.policy == NAME and job.busy.state == "asked" for job in jobs):
        return []  # what it gives back is not known before it is taken up
    after = _after(snapshot, names, jobs)
    own = {job.workload.uid: job for job in jobs if job.workload is not None}
    for workload in sorted(waiting, key=lambda w: (-w.priority, w.created, w.uid)):
        queue = snapshot.queues[workload.queue]
        claims = list(_claims(snapshot, queue, workload, own.get(workload.uid), after))
        room = quotas.spare(snapshot, queue, after)
        if claims and not _short(claims[-1], room):  # Kueue admits it by itself
            after = {**after, queue.name: quota.added((after[queue.name], claims[-1].asks))}
            continue
        for claim in claims:
            first = _first(snapshot, jobs, after, _short(claim, room))
            if first is not None:
                return [_shrink(first, claim, expect_s)]
    return []


def _short(claim: _Claim, room: Room) -> Room:
    return {key: amount - room.get(key, NONE) for key, amount in claim.asks.items() if amount > room.get(key, NONE)}


def _after(snapshot: ClusterSnapshot, names: set[str], jobs: Sequence[Job]) -> dict[str, Room]:
    """What the queues hold once all who leave or shrink already have done so."""
    after = {name: dict(snapshot.used[name]) for name in names}
    gone = {w.uid for w in snapshot.workloads if w.leaves and w.holds is not None}
    for workload in snapshot.workloads:
        if workload.uid in gone and workload.queue in names:
            _less(after[workload.queue], workload.holds or {})
    for job in jobs:
        less = job.given.count - job.wanted if job.given is not None and job.asks_for_change else 0
        if less > 0 and job.workload is not None and job.workload.uid not in gone:
            _less(after[job.workload.queue], {key: amount * less for key, amount in per_pod(job).items()})
    return after


def _less(room: Room, amounts: quota.Amounts) -> None:
    for key, amount in amounts.items():
        room[key] = room.get(key, NONE) - amount


def _claims(
    snapshot: ClusterSnapshot, queue: Queue, workload: Workload, job: Job | None, after: Mapping[str, Room]
) -> Iterator[_Claim]:
    """What the Workload may call its own: all that it asks for, then the least that it starts with."""
    nominal = {key: amount - after[queue.name].get(key, NONE) for key, amount in queue.nominal.items()}
    free = quotas.spare(snapshot, queue, after)
    least = max(1, min(job.fewest, job.wanted)) if job is not None else 1
    times = Fraction(max(1, job.wanted), least) if job is not None else Fraction(1)
    for each in dict.fromkeys((times, Fraction(1))):
        placed: Room = {}
        for group in queue.groups:
            needs = {r: workload.asks[r] * each for r in group.covered if r in workload.asks}
            own = [f for f in group.flavors if _fits(f, needs, nominal) and (job is None or _may_use(job, f))]
            if not own:
                break
            at_once = [f for f in own if _fits(f, needs, free)]
            placed.update({((at_once or own)[0], r): amount for r, amount in needs.items()})
        else:
            devices = int(each * least) * job.devices_per_pod if job is not None else workload.devices
            yield _Claim(workload, queue, placed, devices)


def _fits(flavor: str, needs: Mapping[str, Fraction], room: Room) -> bool:
    return all(amount <= room.get((flavor, resource), NONE) for resource, amount in needs.items())


def _may_use(job: Job, flavor: str) -> bool:
    return not job.flavors or flavor in job.flavors


def _first(snapshot: ClusterSnapshot, jobs: Iterable[Job], after: Mapping[str, Room], short: Room) -> _Shrink | None:
    """The first to shrink, None if all together cannot give what is short. One alone is better than several."""
    able = [job for job in jobs if job.trains and job.resizable and job.held and job.busy is None]
    able.sort(key=lambda job: (job.workload.priority if job.workload else 0, measure.cost(job), job.key))
    alone = [s for job in able if (s := _gives(snapshot, job, after, short)) is not None and _covers(s.gives, short)]
    if alone:
        return alone[0]
    first: _Shrink | None = None
    left, held = dict(short), dict(after)
    for job in able:
        shrink = _gives(snapshot, job, held, left)
        if shrink is None:
            continue
        first = first or shrink
        held[shrink.queue.name] = dict(held[shrink.queue.name])
        _less(held[shrink.queue.name], shrink.gives)
        left = {key: rest for key, amount in left.items() if (rest := amount - shrink.gives.get(key, NONE)) > 0}
        if not left:
            return first
    return None


def _covers(gives: Room, short: Room) -> bool:
    return all(gives.get(key, NONE) >= amount for key, amount in short.items())


def _gives(snapshot: ClusterSnapshot, job: Job, after: Mapping[str, Room], short: Room) -> _Shrink | None:
    """The largest size at which a job gives what is short and its queue has borrowed; None: it has nothing to give."""
    queue = snapshot.queue_of(job)
    if queue is None or job.given is None or job.workload is None or snapshot.stopped(job.workload):
        return None
    each = per_pod(job)
    owed = {}
    for key, amount in short.items():
        borrowed = after[queue.name].get(key, NONE) - queue.nominal.get(key, NONE)
        if each.get(key, NONE) > 0 and borrowed > 0:
            owed[key] = min(amount, borrowed)
    smaller = [size for size in sizes(job) if job.fewest <= size < job.given.count]
    if not owed or not smaller:
        return None
    enough = [s for s in smaller if all(each[k] * (job.given.count - s) >= amount for k, amount in owed.items())]
    size = max(enough, default=min(smaller))
    return _Shrink(job, queue, size, {key: amount * (job.given.count - size) for key, amount in each.items()})


def _shrink(shrink: _Shrink, claim: _Claim, expect_s: float) -> Proposal:
    job = shrink.job
    assert job.given is not None
    owner = f"{claim.workload.name[:80]} waits for quota of its own queue {claim.queue.name[:80]}"
    reason = f"{job.given.count} -> {shrink.size} workers: {owner}"
    return Proposal("resize", job.key, reason[:290], claim.devices * expect_s, NAME, workers=shrink.size)


def sizes(job: Job) -> list[int]:
    """Numbers of workers that divide its ranks evenly, smallest first."""
    return [size for size in range(1, job.ranks + 1) if job.ranks % size == 0]


def per_pod(job: Job) -> Room:
    """What each pod of a job that has quota takes of it."""
    assert job.given is not None
    count = max(1, job.given.count)
    return {(job.given.flavors.get(r, ""), r): amount / count for r, amount in job.given.usage.items()}
