"""Free quota in a snapshot, and whether a Workload would fit into it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain

from . import quota
from .model import ClusterSnapshot, Queue, Workload
from .quota import NONE

Room = dict[tuple[str, str], Fraction]


def holders(snapshot: ClusterSnapshot, queue: Queue) -> list[Workload]:
    """Workloads that hold quota in the queues around `queue`."""
    return [w for w in _around(snapshot, queue) if w.holds is not None]


def waiting(snapshot: ClusterSnapshot, queue: Queue) -> list[Workload]:
    """Active Workloads that wait for quota in the queues around `queue`."""
    return [w for w in _around(snapshot, queue) if w.waits]


def _around(snapshot: ClusterSnapshot, queue: Queue) -> Iterator[Workload]:
    return chain.from_iterable(snapshot.by_queue.get(q.name, ()) for q in snapshot.around(queue))


def room(snapshot: ClusterSnapshot, queue: Queue) -> Room:
    """Free nominal quota of the queue, limited by the free quota of its cohort. The planner never counts on borrowed
    quota."""
    in_cohort, total = snapshot.pool_totals.get(queue.pool, ({}, {}))
    return {
        key: min(amount, total.get(key, queue.nominal[key]) - in_cohort.get(key, NONE))
        for key, amount in own_room(snapshot, queue).items()
    }


def own_room(snapshot: ClusterSnapshot, queue: Queue) -> Room:
    """Nominal quota that the queue itself does not use. Others may have borrowed it: Kueue reclaims it."""
    used = snapshot.held.get(queue.name, {})
    return {
        key: amount - max(used.get(key, NONE), queue.reported.get(key, NONE)) for key, amount in queue.nominal.items()
    }


def with_own(free: Room, own: quota.Amounts) -> Room:
    """`free` and what a Workload gives up."""
    return quota.added((free, own))
