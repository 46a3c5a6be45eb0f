"""Who has to leave so that a job fits: Kueue's classical preemption in a cohort without hierarchies.

As in Kueue 0.19 (pkg/scheduler/preemption), with `withinClusterQueue: LowerPriority`, `reclaimWithinCohort: Any` and no
`borrowWithinCohort`. Who is leaving already comes first, so preemptors that wait at the same time share their victims.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from .active import Active
from .holders import Holders, order
from .model import Cluster
from .nodes import Nodes


class Quota:
    """Quota and nodes; `used` counts devices from admission until they are given back."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.order = [flavor.name for flavor in cluster.flavors]
        self.total = {flavor.name: flavor.devices for flavor in cluster.flavors}
        self.nominal = {flavor.name: cluster.nominal(flavor) for flavor in cluster.flavors}
        self.used = {name: [0] * len(cluster.shares) for name in self.order}
        self.nodes = {flavor.name: Nodes(flavor.nodes) for flavor in cluster.flavors}
        self.holders = [Holders() for _ in cluster.shares]

    def most(self, tenant: int, flavor: str) -> int:
        """Nominal quota and what may be borrowed."""
        nominal = self.nominal[flavor][tenant]
        return nominal + int(self.cluster.borrow * (self.total[flavor] - nominal))

    def room(self, tenant: int, flavor: str) -> int:
        """Devices of quota that a queue may have now."""
        used = self.used[flavor]
        return min(self.most(tenant, flavor) - used[tenant], self.total[flavor] - sum(used))

    def borrows_with(self, tenant: int, flavor: str, count: int) -> bool:
        return self.used[flavor][tenant] + count > self.nominal[flavor][tenant]


def victims(quota: Quota, active: Active, flavor: str, count: int) -> tuple[Active, ...]:
    """A smallest set, in Kueue's order, whose leaving makes room for `count` devices; empty where there is none."""
    tenant, used, nominal = active.job.tenant, quota.used[flavor], quota.nominal[flavor]
    mine = [one for one in quota.holders[tenant].on(flavor).jobs if one.priority < active.priority]
    borrowers = [t for t in range(len(used)) if t != tenant and used[t] > nominal[t]]
    rows = {t: quota.holders[t].on(flavor) for t in borrowers}
    others = [row.jobs for row in rows.values()]
    own = sum(one.devices for one in mine)
    reach = sum(row.at_most(used[t] - nominal[t]) for t, row in rows.items()) + own
    if quota.total[flavor] - sum(used) + reach < count:
        return ()  # most preemptors of a large cluster end here
    entitled = not quota.borrows_with(tenant, flavor, count)
    alone = not any(others) or used[tenant] >= nominal[tenant]
    attempts = [True] if alone else [entitled, not entitled]
    for borrowing in attempts:
        if used[tenant] - own + count > (quota.most(tenant, flavor) if borrowing else nominal[tenant]):
            continue
        # Quota is reclaimed from others only for a job that stays within its own.
        reclaims = entitled or not borrowing
        allowed = heapq.merge(mine, *others, key=lambda one: _order(one, tenant)) if reclaims else mine
        found = _Attempt(quota, active, flavor, count, borrowing).smallest(allowed)
        if found:
            return found
    return ()


def _order(one: Active, tenant: int) -> tuple[bool, bool, int, float, int]:
    """Leaving already, of other queues, lower priority, most recently admitted."""
    stays, priority, newest, number = order(one)
    return stays, one.job.tenant == tenant, priority, newest, number


class _Attempt:
    """Takes candidates away until the job fits, then gives back whom it does not need."""

    def __init__(self, quota: Quota, active: Active, flavor: str, count: int, borrowing: bool) -> None:
        self.tenant, self.count = active.job.tenant, count
        used, nominal = quota.used[flavor], quota.nominal[flavor]
        self.most = quota.most(self.tenant, flavor) if borrowing else nominal[self.tenant]
        self.over = [have - own for have, own in zip(used, nominal, strict=True)]
        self.own, self.free = used[self.tenant], quota.total[flavor] - sum(used)
        self.nodes, self.job = quota.nodes[flavor], active.job
        self.anywhere = not active.job.one_node or self.nodes.widest(active.job.id) >= count
        self.more: dict[int, int] = {}

    def smallest(self, candidates: Iterable[Active]) -> tuple[Active, ...]:
        taken: list[Active] = []
        for victim in candidates:
            if victim.job.tenant != self.tenant and self.over[victim.job.tenant] <= 0:
                continue
            self._change(victim, 1)
            taken.append(victim)
            if self._fits():
                break
        else:
            return ()
        for victim in reversed(taken[:-1]):
            self._change(victim, -1)
            if self._fits():
                taken.remove(victim)
            else:
                self._change(victim, 1)
        return tuple(taken)

    def _change(self, victim: Active, sign: int) -> None:
        devices = sign * victim.devices
        self.free += devices
        self.over[victim.job.tenant] -= devices
        if victim.job.tenant == self.tenant:
            self.own -= devices
        add(self.more, victim.placement, sign)

    def _fits(self) -> bool:
        if self.own + self.count > self.most or self.free < self.count:
            return False
        return self.anywhere or self.nodes.room_for(self.count, self.job.id, self.more) is not None


def add(more: dict[int, int], placement: Mapping[int, int], sign: int) -> None:
    for node, devices in placement.items():
        more[node] = more.get(node, 0) + sign * devices
