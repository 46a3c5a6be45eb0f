"""Free quota in a snapshot, and whether a Workload would fit into it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import chain

from . import quota
from .job import Workload
from .model import ClusterSnapshot, Queue, in_common
from .quota import NONE

Room = quota.Room


def holders(snapshot: ClusterSnapshot, queue: Queue) -> list[Workload]:
    """Workloads that hold quota in the queues around `queue`."""
    return [w for w in _around(snapshot, queue) if w.holds is not None]


def waiting(snapshot: ClusterSnapshot, queue: Queue) -> list[Workload]:
    """Workloads that wait for quota in the queues around `queue`, and could be given some there."""
    return [w for w in _around(snapshot, queue) if waits(snapshot, w)]


def waits(snapshot: ClusterSnapshot, workload: Workload) -> bool:
    """Whether it waits for quota that it could be given: in its queue, or parked by a policy until its turn."""
    return (workload.waits or workload.uid in snapshot.parked) and servable(snapshot, workload)


def served_one_day(snapshot: ClusterSnapshot, workload: Workload) -> bool:
    """Whether it could be given what it asks for if its queue were alone. To give way to any other is in vain."""
    queue = snapshot.queues.get(workload.queue)
    return (
        queue is not None
        and servable(snapshot, workload)
        and quota.fits(workload.asks, queue.groups, snapshot.most[queue.name])
    )


def entitled(snapshot: ClusterSnapshot, workload: Workload) -> bool:
    """Whether a Workload that waits fits into the nominal quota of its own queue: what is free there belongs to it."""
    queue = snapshot.queues[workload.queue]
    return quota.fits(workload.asks, queue.groups, queue.nominal)


def servable(snapshot: ClusterSnapshot, workload: Workload) -> bool:
    """Whether Kueue gives quota to such a Workload: its queues are not stopped, and cover what it asks for.

    A resource that no queue of the cluster covers may be excluded in Kueue's configuration
    (`excludeResourcePrefixes`), so it says nothing. But a Workload that asks for nothing else takes no quota. What one
    without requests takes is not known.
    """
    queue = snapshot.queues.get(workload.queue)
    if queue is None or snapshot.stopped(workload):
        return False
    asked = {resource for resource, amount in workload.asks.items() if amount > 0 and resource != quota.PODS}
    here = {resource for group in queue.groups for resource in group.covered}
    return (not asked or bool(asked & here)) and not (asked - here) & snapshot.covered


def promised(snapshot: ClusterSnapshot, queue: Queue, most: quota.Amounts) -> bool:
    """Whether free quota around `queue` may be what a job on the move is about to take.

    It does not wait in the queue yet, so `waiting` does not know it. A wish beyond `most` does not count: it would keep
    all others small for ever.
    """
    for job in snapshot.changing.get(queue.pool, ()):
        each = job.workload.per_pod if job.workload is not None else {}
        if job.on_the_move and quota.fits({r: n * job.wanted for r, n in each.items()}, queue.groups, most):
            return True
    return False


def wished(snapshot: ClusterSnapshot, pool: str, most: Callable[[Queue], quota.Amounts]) -> dict[str, Room]:
    """By queue: what jobs that train on will take when it is free, because somebody has asked for more workers.

    On each flavor where they may get it: which one it will be is not known. A wish beyond `most` of its queue counts
    for nothing.
    """
    found: dict[str, Room] = {}
    for job in snapshot.changing.get(pool, ()):
        queue, given = snapshot.queue_of(job), job.given
        if queue is None or given is None or given.count < 1 or job.on_the_move:
            continue
        needs = {r: amount * Fraction(job.wanted, given.count) for r, amount in given.usage.items()}
        limit, own = most(queue), (job.workload.holds if job.workload is not None else None) or {}
        if not quota.fits(needs, queue.groups, limit):
            continue
        more: Room = {}
        for group in queue.groups:
            part = {r: needs[r] for r in group.covered if r in needs}
            for flavor in group.flavors:
                usable = not job.flavors or flavor in job.flavors
                if usable and all(amount <= limit.get((flavor, r), NONE) for r, amount in part.items()):
                    more.update({(flavor, r): max(NONE, n - own.get((flavor, r), NONE)) for r, n in part.items()})
        found[queue.name] = quota.added((found.get(queue.name, {}), more))
    return found


def _around(snapshot: ClusterSnapshot, queue: Queue) -> Iterator[Workload]:
    return chain.from_iterable(snapshot.by_queue.get(q.name, ()) for q in snapshot.around(queue))


def room(snapshot: ClusterSnapshot, queue: Queue, kept: Mapping[str, quota.Amounts] | None = None) -> Room:
    """Free nominal quota of the queue, limited by what is free in its cohort. The planner never counts on borrowed
    quota.

    :param kept: by queue of the cohort, what is kept for others though it is free
    """
    taken, shared = snapshot.held, snapshot.common[queue.pool]
    if kept:
        taken = {**taken, **{name: quota.added((taken.get(name, {}), wish)) for name, wish in kept.items()}}
        shared = in_common(snapshot.around(queue), taken)
    own, used = (kept or {}).get(queue.name, {}), taken.get(queue.name, {})
    return {
        key: min(
            amount - own.get(key, NONE),
            max(NONE, queue.unlent.get(key, NONE) - used.get(key, NONE)) + shared[key],
        )
        for key, amount in own_room(snapshot, queue).items()
    }


def placeable(snapshot: ClusterSnapshot, free: Room) -> Room:
    """`free`, and no more than is free on the nodes of a flavor while some of them take no pods."""

    def limit(key: tuple[str, str], amount: Fraction) -> Fraction:
        most = snapshot.usable.get(key[0], {}).get(key[1])
        return amount if most is None else min(amount, most - snapshot.in_all.get(key, NONE))

    return {key: limit(key, amount) for key, amount in free.items()} if snapshot.usable else free


def own_room(snapshot: ClusterSnapshot, queue: Queue) -> Room:
    """Nominal quota that the queue itself does not use. Others may have borrowed it: Kueue reclaims it."""
    used = snapshot.held.get(queue.name, {})
    return {
        key: amount - max(used.get(key, NONE), queue.reported.get(key, NONE)) for key, amount in queue.nominal.items()
    }


def spare(snapshot: ClusterSnapshot, queue: Queue, taken: Mapping[str, quota.Amounts]) -> Room:
    """`snapshot.spare` of the queue if its cohort had `taken`, by queue."""
    return queue.available(in_common(snapshot.around(queue), taken), taken.get(queue.name, {}))


def with_own(free: Room, own: quota.Amounts) -> Room:
    """`free` and what a Workload gives up."""
    return quota.added((free, own))
