"""Defragmentation: small jobs move so that one that waits fits, where that gains more than the moves cost. Pure.

Sources: Gandiva (Xiao et al., OSDI 2018): migration makes room for jobs that free devices on many nodes do not serve.
Singularity (Shukla et al., arXiv:2202.07848): background defragmentation by transparent checkpoints.

Three kinds of waiting jobs are served. One requires a domain of a topology, and no domain has room. One has quota, and
no node has room for its pod. One would fit into the free quota of all flavors together, and into that of no single one.

Without the moves it would wait about as long again as it has waited: nothing else is known of the jobs in its way. So
the gain is its devices times the time it has waited, and the moves have to cost less (`measure.cost`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from .. import free as quotas
from .. import measure, placing, quota
from ..free import Room
from ..model import ClusterSnapshot, Job, Queue, Workload
from ..placing import HOSTNAME
from ..proposals import Proposal
from ..quota import NONE

NAME = "defragmentation"
MOST_NODES = 64
"""Nodes that a job is asked to leave: they stand in its affinity."""


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


@dataclass(frozen=True)
class _Plan:
    movers: Sequence[Job]
    leave: Sequence[str]
    """Nodes."""
    where: str

    @property
    def cost(self) -> float:
        return sum(measure.cost(job) for job in self.movers)


def propose(snapshot: ClusterSnapshot, most_moves: int) -> list[Proposal]:
    """The moves for one Workload of each cohort: who has the highest priority, then who has waited longest.

    :param most_moves: jobs at most that move for one Workload
    """
    found: list[Proposal] = []
    pools = set[str]()
    for each in sorted(blocked(snapshot), key=lambda b: (-b.workload.priority, b.since, b.workload.uid)):
        queue = snapshot.queues[each.workload.queue]
        if queue.pool in pools:
            continue
        plans = [p for p in _plans(snapshot, queue, each) if 0 < len(p.movers) <= most_moves]
        plan = min(plans, key=lambda p: (p.cost, p.where), default=None)
        if plan is not None:
            pools.add(queue.pool)
            found += _moves(plan, each, snapshot.now)
    return found


def blocked(snapshot: ClusterSnapshot) -> list[Blocked]:
    """Whom moves might help, as far as quotas and pods tell. The room on nodes is not looked at."""
    changing = {q.pool for w in snapshot.workloads if w.leaves and w.holds and (q := snapshot.queues.get(w.queue))}
    own = {job.workload.uid: job for job in snapshot.jobs.values() if job.workload is not None}
    taken: Mapping[str, Room] | None = None
    found = []
    for workload in snapshot.workloads:
        queue, job = snapshot.queues.get(workload.queue), own.get(workload.uid)
        if queue is None or queue.pool in changing or workload.leaves or workload.pods < 1:
            continue
        if workload.waits:
            taken = quotas.used(snapshot) if taken is None else taken
            each = _waits(quotas.spare(snapshot, queue, taken), queue, workload, job)
        else:
            each = _unplaced(job, workload)
        if each is not None:
            found.append(each)
    return found


def _waits(room: Room, queue: Queue, workload: Workload, job: Job | None) -> Blocked | None:
    group = _group(queue, workload.asks)
    if group is None:
        return None
    asked = {r: workload.asks[r] for r in group.covered if r in workload.asks}
    flavors = [f for f in group.flavors if job is None or not job.flavors or f in job.flavors]
    fit = [f for f in flavors if all(n <= room.get((f, r), NONE) for r, n in asked.items())]
    devices = job.devices if job is not None else workload.devices
    since = _idle_since(job, workload)
    if fit:  # Kueue admits it by itself, but for the topology
        return Blocked(workload, since, devices, workload.pods, workload.level, fit) if workload.level else None
    together = {r: sum((max(NONE, room.get((f, r), NONE)) for f in flavors), NONE) for r in asked}
    if any(n > together[r] for r, n in asked.items()):
        return None
    return Blocked(workload, since, devices, workload.pods, "", flavors)


def _group(queue: Queue, asks: Mapping[str, Fraction]) -> quota.Group | None:
    """The one resource group that has what is asked for; None: several have it, or none."""
    needed = [group for group in queue.groups if any(r in asks for r in group.covered)]
    return needed[0] if len(needed) == 1 else None


def _unplaced(job: Job | None, workload: Workload) -> Blocked | None:
    if job is None or not job.unplaced or job.given is None or job.topology or not job.attempts:
        return None
    return Blocked(workload, job.attempts[-1].admitted_at, job.devices, 1, HOSTNAME, [*{*job.given.flavors.values()}])


def _idle_since(job: Job | None, workload: Workload) -> float:
    last = job.attempts[-1] if job is not None and job.attempts else None
    return workload.created if last is None or last.released_at is None else last.released_at


# --- plans ----------------------------------------------------------------------------------------------------------
def _plans(snapshot: ClusterSnapshot, queue: Queue, each: Blocked) -> Iterator[_Plan]:
    if not each.level:
        yield from _of_flavors(snapshot, queue, each)
        return
    domains = {f: placing.domains(snapshot, f, each.level) for f in each.flavors}
    pods = placing.per_pod(each.workload)
    if any(placing.count(nodes, pods) >= each.pods for found in domains.values() for nodes in found.values()):
        return  # it has room already: Kueue or the scheduler is about to see that
    for flavor, found in domains.items():
        for domain, nodes in found.items():
            yield from _of_domain(snapshot, each, flavor, domain, nodes)


def _of_domain(
    snapshot: ClusterSnapshot, each: Blocked, flavor: str, domain: str, nodes: placing.Nodes
) -> Iterator[_Plan]:
    """The cheapest jobs, each on one node of the domain, that make room there and fit elsewhere."""
    if len(nodes) > MOST_NODES:
        return
    here, pods = dict(nodes), placing.per_pod(each.workload)
    elsewhere = {n: room for n, room in placing.nodes_of(snapshot, flavor).items() if n not in nodes}
    movers: list[tuple[Job, str]] = []
    for job in _movable(snapshot, each):
        place = next(iter(job.nodes)) if len(job.nodes) == 1 else ""
        if place not in nodes or job.workload is None or {*job.given.flavors.values()} != {flavor}:  # type: ignore[union-attr]
            continue
        moved = placing.placed(elsewhere, job)
        if moved is None:
            continue
        movers, elsewhere = [*movers, (job, place)], moved
        here = placing.freed(here, place, job)
        if placing.count(here, pods) >= each.pods:
            kept = _needed(nodes, movers, each)
            yield _Plan(kept, sorted(nodes), f"{each.level.rpartition('/')[2]} {domain}")
            return


def _needed(nodes: placing.Nodes, movers: Sequence[tuple[Job, str]], each: Blocked) -> list[Job]:
    """`movers` without those that the room does not need."""
    kept = list(movers)
    for one in reversed(movers):
        rest, here = [m for m in kept if m is not one], dict(nodes)
        for job, place in rest:
            here = placing.freed(here, place, job)
        if placing.count(here, placing.per_pod(each.workload)) >= each.pods:
            kept = rest
    return [job for job, _ in kept]


def _of_flavors(snapshot: ClusterSnapshot, queue: Queue, each: Blocked) -> Iterator[_Plan]:
    """Jobs that leave all nodes of a flavor, for one whose quota they fit into."""
    taken = quotas.used(snapshot)
    group = _group(queue, each.workload.asks)
    assert group is not None  # it was there in `blocked`
    asked = {r: each.workload.asks[r] for r in group.covered if r in each.workload.asks}
    for flavor in each.flavors:
        leave = sorted(placing.nodes_of(snapshot, flavor))
        if not 0 < len(leave) <= MOST_NODES:
            continue
        after, movers = dict(taken), list[Job]()
        for job in _movable(snapshot, each):
            moved = _to_another(snapshot, queue, job, flavor, after)
            if moved is None:
                continue
            movers.append(job)
            after = moved
            room = quotas.spare(snapshot, queue, after)
            if all(n <= room.get((flavor, r), NONE) for r, n in asked.items()):
                yield _Plan(movers, leave, f"flavor {flavor}")
                break


def _to_another(
    snapshot: ClusterSnapshot, around: Queue, job: Job, flavor: str, taken: Mapping[str, Room]
) -> dict[str, Room] | None:
    """What the queues hold when `job` has gone from `flavor` to another one of its queue; None: it cannot."""
    queue = snapshot.queue_of(job)
    if queue is None or queue.pool != around.pool or job.given is None or job.node_selector:
        return None
    if {*job.given.flavors.values()} != {flavor} or job.workload is None:
        return None
    group = _group(queue, job.given.usage)
    room = quotas.spare(snapshot, queue, taken)
    for other in group.flavors if group is not None else ():
        fits = all(n <= room.get((other, r), NONE) for r, n in job.given.usage.items())
        if other == flavor or not fits or (job.flavors and other not in job.flavors):
            continue
        if placing.placed(placing.nodes_of(snapshot, other), job) is None:
            continue
        held = dict(taken[queue.name])
        for resource, amount in job.given.usage.items():
            held[flavor, resource] = held.get((flavor, resource), NONE) - amount
            held[other, resource] = held.get((other, resource), NONE) + amount
        return {**taken, queue.name: held}
    return None


def _movable(snapshot: ClusterSnapshot, each: Blocked) -> list[Job]:
    """Smaller jobs of no higher priority, the cheapest for each of their devices first."""
    found = [
        job
        for job in snapshot.jobs.values()
        if job.trains and job.held and job.busy is None and job.kind == "Job" and not job.topology
        and job.workload is not None and job.workload.uid != each.workload.uid
        and job.workload.priority <= each.workload.priority and job.devices < each.devices
    ]  # fmt: skip
    return sorted(found, key=lambda job: (measure.cost(job) / job.devices, job.key))


def _moves(plan: _Plan, each: Blocked, now: float) -> list[Proposal]:
    """The gain is shared out by what each move costs: so all of them gain more than they cost, or none does."""
    waited = max(0.0, now - each.since)
    gain, cost = each.devices * waited, plan.cost
    reason = f"makes room in {plan.where[:80]} for {each.workload.name[:80]}, which has waited {waited:.0f} s"
    return [
        Proposal("migrate", job.key, reason, gain * measure.cost(job) / cost, NAME, nodes=tuple(plan.leave))
        for job in plan.movers
        if cost > 0 and job.nodes & {*plan.leave}
    ]
