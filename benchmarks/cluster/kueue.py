"""Kueue's scheduler, as far as a study needs it. It decides; the simulator carries out.

What it does as Kueue 0.19 does (kueue.x-k8s.io v1beta2):

- a ClusterQueue for each tenant in one cohort; nominal quota by flavor; unused quota is lent, up to a borrowing limit;
- a cycle looks at the head of each queue: those that borrow last, then by priority, then by time of creation;
- flavors in order; the next flavor before a preemption (`flavorFungibility` as it is by default);
- `withinClusterQueue: LowerPriority`, `reclaimWithinCohort: Any`, no `borrowWithinCohort`;
- victims: those of other queues first, lower priority first, most recently admitted first. Then a smallest set is made
  by adding back;
- all workers or none; partial admission down to the job's least, after preemption was tried;
- BestEffortFIFO (what does not fit is looked at again when something has changed) or StrictFIFO;
- topology: required is one node, preferred is as few nodes as possible.

It leaves out fair sharing, several resources, hierarchies of cohorts, and the time that a cycle takes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .active import Active, State
from .model import Cluster
from .nodes import Nodes, Placement

Key = tuple[int, float, int]
Shape = tuple[int, int, int, bool, str, frozenset[str]]


@dataclass(frozen=True)
class Admit:
    active: Active
    flavor: str
    placement: Placement


@dataclass(frozen=True)
class Preempt:
    """`active` will have room for `devices` when all of `victims` have left."""

    active: Active
    flavor: str
    devices: int
    victims: tuple[Active, ...]


def key(active: Active) -> Key:
    """The order in a queue: priority, then time of creation."""
    return -active.priority, active.job.arrival_s, active.job.id


def shape(active: Active) -> Shape:
    """Two waiting jobs of one queue and one shape fit both or neither."""
    job = active.job
    return active.priority, active.goal, job.least, job.one_node, active.pinned, active.avoid


class Kueue:
    """Queues, quota and nodes; `used` counts devices from admission until they are given back."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.order = [flavor.name for flavor in cluster.flavors]
        self.total = {flavor.name: flavor.devices for flavor in cluster.flavors}
        self.nominal = {flavor.name: cluster.nominal(flavor) for flavor in cluster.flavors}
        self.used = {name: [0] * len(cluster.shares) for name in self.order}
        self.nodes = {flavor.name: Nodes(flavor.nodes) for flavor in cluster.flavors}
        self.holders: list[dict[int, Active]] = [{} for _ in cluster.shares]
        self._waiting: list[dict[Shape, list[tuple[Key, Active]]]] = [{} for _ in cluster.shares]
        self._failed: list[set[Shape]] = [set() for _ in cluster.shares]
        self._reserved: dict[int, Preempt] = {}
        self._kept: dict[str, int] = {}
        """By flavor: what preemptors wait for, as far as their victims have left. Forgotten when that changes."""

    # --- what the simulator tells ---------------------------------------------------------------------------------
    def enqueue(self, active: Active) -> None:
        insort(self._waiting[active.job.tenant].setdefault(shape(active), []), (key(active), active))

    def dequeue(self, active: Active) -> None:
        """Before its priority or goal changes, too."""
        rows = self._waiting[active.job.tenant]
        mine = rows[shape(active)]
        mine.remove((key(active), active))
        if not mine:
            del rows[shape(active)]

    def admit(self, decision: Admit) -> None:
        active = decision.active
        self.dequeue(active)
        self._unreserve(active)
        self.nodes[decision.flavor].take(decision.placement)
        self.used[decision.flavor][active.job.tenant] += sum(decision.placement.values())
        self.holders[active.job.tenant][active.job.id] = active

    def release(self, active: Active) -> None:
        self.nodes[active.flavor].give(active.placement)
        self.used[active.flavor][active.job.tenant] -= active.devices
        del self.holders[active.job.tenant][active.job.id]
        self.changed()

    def reserve(self, decision: Preempt) -> None:
        """Keep the quota, and the node of one that needs one node, for the preemptor while its victims leave."""
        active, more = decision.active, dict[int, int]()
        self._reserved[active.job.id] = decision
        self._kept.clear()
        for victim in decision.victims:
            _add(more, victim.placement, 1)
        nodes = self.nodes[decision.flavor]
        node = nodes.room_for(decision.devices, active.job.id, more) if active.job.one_node else None
        if node is not None:
            nodes.closed[node] = active.job.id

    def _unreserve(self, active: Active) -> None:
        decision = self._reserved.pop(active.job.id, None)
        if decision is not None:
            self._kept.clear()
            closed = self.nodes[decision.flavor].closed
            for node in [node for node, job in closed.items() if job == active.job.id]:
                del closed[node]

    def changed(self) -> None:
        """Something is free, or has another priority: look at all that waits again."""
        self._kept.clear()
        for failed in self._failed:
            failed.clear()

    def waiting(self) -> Iterable[Active]:
        return (active for rows in self._waiting for row in rows.values() for _, active in row)

    # --- what it decides ------------------------------------------------------------------------------------------
    def next(self) -> Admit | Preempt | None:
        """One decision, which must be carried out before the next call; None when nothing can be done now."""
        while heads := [head for tenant in range(len(self._waiting)) if (head := self._head(tenant)) is not None]:
            for head in sorted(heads, key=lambda one: (self._borrows(one), key(one))):
                decision = self._try(head)
                if not isinstance(decision, Admit):
                    # It waits for its victims now, or for a change. Until then the next in its queue is looked at.
                    self._failed[head.job.tenant].add(shape(head))
                if decision is not None:
                    return decision
        return None

    def _head(self, tenant: int) -> Active | None:
        rows, failed = self._waiting[tenant], self._failed[tenant]
        if self.cluster.strict:
            first = min((row[0] for row in rows.values()), default=None)
            return None if first is None or shape(first[1]) in failed else first[1]
        # Sets are fast, and their order does not matter: no two keys are equal.
        return min((rows[looks][0] for looks in rows.keys() - failed), default=(None, None))[1]

    def _borrows(self, active: Active) -> bool:
        tenant = active.job.tenant
        return all(self.used[f][tenant] + active.goal > self.nominal[f][tenant] for f in self.order)

    def _try(self, active: Active) -> Admit | Preempt | None:
        allowed = [active.pinned] if active.pinned else self.order
        flavors = [flavor for flavor in allowed if active.job.speeds.get(flavor, 0) > 0]
        for flavor in flavors:
            if self.room(active, flavor) >= active.goal:
                place = self.nodes[flavor].find(
                    active.goal, active.job.one_node, active.job.id, _numbers(active.avoid, flavor)
                )
                if place is not None:
                    return Admit(active, flavor, place)
        if self._leave_for(active):
            return None
        for flavor in flavors:
            victims = self._victims(active, flavor)
            if victims:
                return Preempt(active, flavor, active.goal, victims)
        for flavor in flavors if active.job.least < active.goal else ():
            nodes = self.nodes[flavor]
            fits = min(
                self.room(active, flavor), nodes.widest(active.job.id) if active.job.one_node else nodes.total_free
            )
            count = min(fits, active.goal - 1)
            avoid = _numbers(active.avoid, flavor)
            place = nodes.find(count, active.job.one_node, active.job.id, avoid) if count >= active.job.least else None
            if place is not None:
                return Admit(active, flavor, place)
        return None

    def _leave_for(self, active: Active) -> bool:
        """Whether its victims are still leaving. A reservation whose victims have left is void."""
        mine = self._reserved.get(active.job.id)
        if mine is None:
            return False
        if any(victim.state is State.LEAVING for victim in mine.victims):
            return True
        self._unreserve(active)
        return False

    def room(self, active: Active, flavor: str) -> int:
        """Devices of quota that it may have now."""
        tenant, used = active.job.tenant, self.used[flavor]
        nominal, total = self.nominal[flavor][tenant], self.total[flavor]
        limit = nominal + int(self.cluster.borrow * (total - nominal)) - used[tenant]
        return min(limit, total - sum(used) - self._kept_for_others(active, flavor))

    def _kept_for_others(self, active: Active, flavor: str) -> int:
        if flavor not in self._kept:
            self._kept[flavor] = sum(_kept(one) for one in self._reserved.values() if one.flavor == flavor)
        mine = self._reserved.get(active.job.id)
        return self._kept[flavor] - (_kept(mine) if mine is not None and mine.flavor == flavor else 0)

    def _victims(self, active: Active, flavor: str) -> tuple[Active, ...]:
        """The smallest set, in Kueue's order, whose leaving makes room; empty where there is none."""
        job, goal, used, nominal = active.job, active.goal, self.used[flavor], self.nominal[flavor]
        within = used[job.tenant] + goal <= nominal[job.tenant]
        candidates = [(False, one) for one in self.holders[job.tenant].values() if one.priority < active.priority]
        if within:
            lenders = [t for t in range(len(used)) if t != job.tenant and used[t] > nominal[t]]
            candidates += [(True, one) for tenant in lenders for one in self.holders[tenant].values()]
        candidates = [c for c in candidates if c[1].flavor == flavor and c[1].state is not State.LEAVING]
        if not candidates:
            return ()
        candidates.sort(key=lambda c: (not c[0], c[1].priority, -c[1].admitted_at, c[1].job.id))
        room, over = self.room(active, flavor), [have - own for have, own in zip(used, nominal, strict=True)]
        taken: list[Active] = []
        more: dict[int, int] = {}

        def fits() -> bool:
            return room >= goal and self.nodes[flavor].fits_with(goal, job.one_node, job.id, more)

        for other, victim in candidates:
            if other and over[victim.job.tenant] <= 0:
                continue
            over[victim.job.tenant] -= victim.devices
            room += victim.devices
            _add(more, victim.placement, 1)
            taken.append(victim)
            if fits():
                break
        else:
            return ()
        for victim in reversed(taken[:-1]):
            room -= victim.devices
            _add(more, victim.placement, -1)
            if fits():
                taken.remove(victim)
            else:
                room += victim.devices
                _add(more, victim.placement, 1)
        return tuple(taken)


def _numbers(names: Iterable[str], flavor: str) -> set[int]:
    """Of those nodes that are of this flavor."""
    return {int(name.rpartition("-")[2]) for name in names if name.rpartition("-")[0] == flavor}


def _kept(one: Preempt) -> int:
    return max(0, one.devices - sum(victim.devices for victim in one.victims if victim.state is State.LEAVING))


def _add(more: dict[int, int], placement: Mapping[int, int], sign: int) -> None:
    for node, devices in placement.items():
        more[node] = more.get(node, 0) + sign * devices
