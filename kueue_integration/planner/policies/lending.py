"""Lending: spare quota makes elastic jobs larger, and comes back when a job of its owner waits for it. Pure.

Sources: Singularity (Shukla et al., arXiv:2202.07848): jobs grow into spare capacity, and are shrunk before they are
preempted. AntMan (Xiao et al., OSDI 2020): opportunistic jobs use what a guaranteed job leaves idle. HyperPod task
governance: teams borrow idle quota, and the owner reclaims it.

Kueue lends in a cohort already, but only at an admission. It takes quota back by the eviction of whole Workloads, and
only where `reclaimWithinCohort` says so. Here a job that trains grows by a resize into what Kueue would let its queue
borrow. When a Workload waits that fits into the nominal quota of its own queue, those who borrow there shrink by a
resize. They give just enough. The quota is free when the checkpoint is committed.

Nobody grows in a cohort of a tree: what looks spare there may be lent to a cohort beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from .. import free as quotas
from .. import measure, quota, speed_model
from ..free import Room
from ..job import Job
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal
from ..quota import NONE
from . import returns

NAME = "lending"


def propose(snapshot: ClusterSnapshot, expect_s: float) -> list[Proposal]:
    """Growth, best first. The arbiter starts one in a cohort: all of them count on the same quota.

    :param expect_s: seconds for which spare quota is expected to stay spare
    """
    taken = snapshot.used
    found: list[tuple[int, Proposal]] = []
    changing = _changing(snapshot)
    room, kept = dict[str, Room](), dict[str, Mapping[str, Room]]()
    for key in sorted(snapshot.jobs):
        job = snapshot.jobs[key]
        queue = snapshot.queue_of(job)
        if queue is None or queue.pool in changing or queue.cohort in snapshot.nested or not _grows(job):
            continue
        if job.workload is None or snapshot.stopped(job.workload):
            continue
        if queue.name not in room:
            if queue.pool not in kept:
                kept[queue.pool] = _with_wishes(snapshot, queue, taken)
            room[queue.name] = quotas.placeable(snapshot, quotas.spare(snapshot, queue, kept[queue.pool]))
        found += [(job.workload.priority, p) for p in _growth(job, room[queue.name], queue, taken, expect_s)]
    found.sort(key=lambda each: (-each[0], -each[1].gain_device_seconds))
    return [proposal for _, proposal in found]


def _changing(snapshot: ClusterSnapshot) -> set[str]:
    """Pools whose quota is about to change hands, or where somebody waits for it who could have it one day."""
    found = set[str]()
    for workload in snapshot.workloads:
        queue = snapshot.queues.get(workload.queue)
        if queue is None or queue.pool in found:
            continue
        waits = quotas.waits(snapshot, workload) and quotas.served_one_day(snapshot, workload)
        if waits or (workload.leaves and workload.holds is not None):
            found.add(queue.pool)
    for job in snapshot.jobs.values():
        queue = snapshot.queue_of(job)
        if queue is not None and job.busy is not None and job.busy.policy in (NAME, returns.NAME):
            found.add(queue.pool)
    for pool in set(snapshot.changing) - found:
        queues = (q for q in snapshot.queues.values() if q.pool == pool)
        if any(quotas.promised(snapshot, queue, snapshot.most[queue.name]) for queue in queues):
            found.add(pool)
    return found


def _with_wishes(snapshot: ClusterSnapshot, queue: Queue, taken: Mapping[str, Room]) -> Mapping[str, Room]:
    """`taken`, and in the pool of `queue` what jobs wait for that train on until it is free."""
    wishes = quotas.wished(snapshot, queue.pool, lambda q: snapshot.most[q.name])
    return {**taken, **{name: quota.added((taken[name], wish)) for name, wish in wishes.items()}}


def _grows(job: Job) -> bool:
    return job.trains and job.resizable and job.held and job.busy is None and job.given is not None


def _growth(job: Job, room: Room, queue: Queue, taken: Mapping[str, Room], expect_s: float) -> Iterator[Proposal]:
    assert job.given is not None
    count, each = job.given.count, returns.per_pod(job)
    sizes = [size for size in returns.sizes(job) if size > count and _has_room(room, each, size - count)]
    size = max(sizes, default=count)
    speedup = _speedup(job, size)
    if size == count or speedup <= 1:
        return
    # A job that waits for more than it has keeps its wish: Kueue gives as much of it as there is.
    goal = max(size, job.wanted)
    if job.ranks % goal:
        return
    left = measure.steps_left(job)
    pace = next((s.steps_per_s for s in measure.speeds(job) if s.workers == count), None)
    lasts = expect_s if left is None or not pace else min(expect_s, left / pace)
    gain = lasts * job.devices * (speedup - 1)
    borrowed = [r for (f, r), n in each.items() if _beyond(queue, taken[queue.name], (f, r), n * (size - count))]
    how = f"borrowed {', '.join(sorted(borrowed))}" if borrowed else "spare quota of its queue"
    reason = f"{count} -> {size} workers on {how}, for {lasts:.0f} s as expected"
    yield Proposal("resize", job.key, reason[:290], gain, NAME, workers=goal)


def _has_room(room: Room, each: quota.Amounts, more: int) -> bool:
    return all(amount * more <= room.get(key, NONE) for key, amount in each.items())


def _beyond(queue: Queue, taken: quota.Amounts, key: tuple[str, str], more: Fraction) -> bool:
    return taken.get(key, NONE) + more > queue.nominal.get(key, NONE)


def _speedup(job: Job, size: int) -> float:
    """How many times as fast it is with `size` workers: by the fit to its speeds, or as if it scaled ideally."""
    assert job.given is not None
    measured = {s.workers: s.seconds / s.steps for s in measure.speeds(job) if s.flavor == job.given.flavor}
    model = speed_model.fit(measured)
    if model is None or model.step_s(size) <= 0:
        return size / job.given.count
    return model.step_s(job.given.count) / model.step_s(size)
