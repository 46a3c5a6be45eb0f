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

from .. import blocked, measure, placing
from .. import free as quotas
from ..blocked import Blocked
from ..free import Room
from ..job import Job
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal
from ..quota import NONE

NAME = "defragmentation"
MOST_NODES = 64
"""Nodes that a job is asked to leave: they stand in its affinity."""
MOST_BLOCKED = 50
"""So many are looked at in one round."""


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
    first = sorted(blocked.of(snapshot), key=lambda b: (-b.workload.priority, b.since, b.workload.uid))
    for each in first[:MOST_BLOCKED]:
        queue = snapshot.queues[each.workload.queue]
        if queue.pool in pools:
            continue
        plans = [p for p in _plans(snapshot, queue, each) if 0 < len(p.movers) <= most_moves]
        plan = min(plans, key=lambda p: (p.cost, p.where), default=None)
        if plan is not None:
            pools.add(queue.pool)
            found += _moves(plan, each, snapshot.now)
    return found


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
    taken = snapshot.used
    group = blocked.group(queue, each.workload.asks)
    assert group is not None  # it was there in `blocked`
    asked = blocked.asked(group, each.workload)
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
    group = blocked.group(queue, job.given.usage)
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
        and snapshot.queue_of(job) is not None and job.workload is not None and not snapshot.stopped(job.workload)
        and job.workload.uid != each.workload.uid
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
