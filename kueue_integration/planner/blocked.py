"""Who waits though there is enough: the quota or the room for it does not lie together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from . import free as quotas
from . import measure, quota
from .free import Room
from .job import Job, Workload
from .model import ClusterSnapshot, Queue
from .placing import HOSTNAME
from .quota import NONE


@dataclass(frozen=True)
class Blocked:
    """A Workload that free capacity would serve if it lay together."""

    workload: Workload
    since: float
    devices: int
    pods: int
    level: str
    """The pods need one domain of this level, "": quota of one flavor."""
    flavors: Sequence[str]
    """One of these has to have the room."""


def of(snapshot: ClusterSnapshot) -> list[Blocked]:
    """Whom moves might help, as far as quotas and pods tell. The room on nodes is not looked at."""
    changing = {q.pool for w in snapshot.workloads if w.leaves and w.holds and (q := snapshot.queues.get(w.queue))}
    own = {job.workload.uid: job for job in snapshot.jobs.values() if job.workload is not None}
    found = []
    for workload in snapshot.workloads:
        queue, job = snapshot.queues.get(workload.queue), own.get(workload.uid)
        if queue is None or queue.pool in changing or workload.leaves or workload.pods < 1:
            continue
        if workload.waits and not quotas.servable(snapshot, workload):
            continue
        each = _waits(snapshot.spare[queue.name], queue, workload, job) if workload.waits else _unplaced(job, workload)
        if each is not None:
            found.append(each)
    return found


def _waits(room: Room, queue: Queue, workload: Workload, job: Job | None) -> Blocked | None:
    served = group(queue, workload.asks)
    if served is None:
        return None
    needs = asked(served, workload)
    flavors = [f for f in served.flavors if job is None or not job.flavors or f in job.flavors]
    fit = [f for f in flavors if all(n <= room.get((f, r), NONE) for r, n in needs.items())]
    devices = job.devices if job is not None else workload.devices
    since = workload.created if job is None else measure.idle_since(job)
    if fit:  # Kueue admits it by itself, but for the topology
        return Blocked(workload, since, devices, workload.pods, workload.level, fit) if workload.level else None
    together = {r: sum((max(NONE, room.get((f, r), NONE)) for f in flavors), NONE) for r in needs}
    if any(n > together[r] for r, n in needs.items()):
        return None
    return Blocked(workload, since, devices, workload.pods, "", flavors)


def group(queue: Queue, asks: Mapping[str, Fraction]) -> quota.Group | None:
    """The one resource group that has what is asked for; None: several have it, or none."""
    needed = [group for group in queue.groups if any(r in asks for r in group.covered if r != quota.PODS)]
    return needed[0] if len(needed) == 1 else None


def asked(served: quota.Group, workload: Workload) -> dict[str, Fraction]:
    """What the Workload asks for of a group."""
    return {r: workload.asks[r] for r in served.covered if r in workload.asks}


def _unplaced(job: Job | None, workload: Workload) -> Blocked | None:
    if job is None or not job.unplaced or job.given is None or job.topology or not job.attempts:
        return None
    return Blocked(workload, job.attempts[-1].admitted_at, job.devices, 1, HOSTNAME, [*{*job.given.flavors.values()}])
