"""Free quota in a snapshot, and whether a Workload would fit into it. Pure."""

from __future__ import annotations

from fractions import Fraction

from . import quota
from .model import ClusterSnapshot, Queue, Workload
from .quota import NONE

Room = dict[tuple[str, str], Fraction]


def holders(snapshot: ClusterSnapshot, queue: Queue) -> list[Workload]:
    """Workloads that hold quota in the queues around `queue`."""
    members = {q.name for q in snapshot.around(queue)}
    return [w for w in snapshot.workloads if w.holds is not None and w.queue in members]


def waiting(snapshot: ClusterSnapshot, queue: Queue) -> list[Workload]:
    """Active Workloads that wait for quota in the queues around `queue`."""
    members = {q.name for q in snapshot.around(queue)}
    return [w for w in snapshot.workloads if w.waits and w.queue in members]


def room(snapshot: ClusterSnapshot, queue: Queue) -> Room:
    """Free nominal quota of the queue, limited by the free quota of its cohort. The planner never counts on borrowed
    quota."""
    reserved = holders(snapshot, queue)
    in_cohort = quota.added(w.holds or {} for w in reserved)
    in_queue = quota.added(w.holds or {} for w in reserved if w.queue == queue.name)
    total = quota.added(q.nominal for q in snapshot.around(queue))
    return {
        key: min(
            amount - max(in_queue.get(key, NONE), queue.reported.get(key, NONE)),
            total.get(key, amount) - in_cohort.get(key, NONE),
        )
        for key, amount in queue.nominal.items()
    }


def with_own(free: Room, own: quota.Amounts) -> Room:
    """`free` and what a Workload gives up."""
    return quota.added((free, own))
