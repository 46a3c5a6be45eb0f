"""Kueue's scheduler, as far as a study needs it. It decides; the simulator carries out.

What it does as Kueue 0.19 does (kueue.x-k8s.io v1beta2):

- a ClusterQueue for each tenant in one cohort; nominal quota by flavor; unused quota is lent, up to a borrowing limit;
- a cycle looks at the head of each queue at once: those that borrow last, then by priority, then by time of creation;
- flavors in order; the next flavor before a preemption (`flavorFungibility` as it is by default);
- a job that asks for more than its queue's nominal quota of a flavor preempts nobody there for quota;
- all workers or none; partial admission down to the job's least, which may preempt, too;
- a preemptor keeps nothing from one cycle to the next. It is the head of its queue until it is admitted, and each cycle
  it takes its room before those who come after it. Two preemptors of a cycle never have a victim in common;
- BestEffortFIFO (what cannot be admitted is looked at again when something is free) or StrictFIFO;
- topology: required is one node, preferred is as few nodes as possible.

It leaves out fair sharing, several resources, hierarchies of cohorts, and the time that a cycle takes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from .active import Active, State
from .model import Cluster
from .nodes import Placement
from .preemption import Quota, add, victims
from .waiting import Waiting, key, shape

UNDER_WAY = 0.08
"""Share of the releases that fall between the choice of a cycle's heads and its look at the quota. While a preemptor
waits, one cycle follows another. Such a release ends that two jobs put each other out again and again. Five such rows
in four replays had 64 evictions, so one release in thirteen ended one."""


@dataclass(frozen=True)
class Admit:
    active: Active
    flavor: str
    placement: Placement


@dataclass(frozen=True)
class Preempt:
    """:param victims: have to leave for it, and do not yet"""

    active: Active
    victims: tuple[Active, ...]


@dataclass(frozen=True)
class Nomination:
    """What a cycle would do for a head.

    :param devices: 0: nothing
    :param victims: have to leave first, or are leaving; empty: it fits now
    """

    active: Active
    flavor: str = ""
    devices: int = 0
    borrows: bool = False
    victims: tuple[Active, ...] = ()


class Kueue(Quota):
    """Queues, quota and nodes."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        super().__init__(cluster)
        self._dice = random.Random(f"cycle {seed}")
        self._under_way = False
        self._waiting = [Waiting() for _ in cluster.shares]
        self._preemptors: dict[int, Active] = {}
        """By tenant: who stays at the head of its queue because it has preempted."""
        self._cycle: list[Nomination] = []
        """Heads that this cycle has still to process."""
        self._claimed: dict[int, Active] = {}
        """Victims of this cycle's preemptors."""
        self._promised: list[Nomination] = []
        """Preemptors of this cycle: those behind them get only what is left."""
        self._fresh = True
        """Whether something has changed since a cycle in which nothing could be done."""

    # --- what the simulator tells ---------------------------------------------------------------------------------
    def enqueue(self, active: Active) -> None:
        self._waiting[active.job.tenant].add(active)
        self._fresh = True

    def dequeue(self, active: Active) -> None:
        """Before anything of its shape changes, too."""
        self._waiting[active.job.tenant].remove(active)
        self._fresh = True

    def admit(self, decision: Admit) -> None:
        active = decision.active
        self.dequeue(active)
        if self._preemptors.get(active.job.tenant) is active:
            del self._preemptors[active.job.tenant]
        self.nodes[decision.flavor].take(decision.placement)
        self.used[decision.flavor][active.job.tenant] += sum(decision.placement.values())
        self.holders[active.job.tenant].add(active)

    def release(self, active: Active) -> None:
        self.nodes[active.flavor].give(active.placement)
        self.used[active.flavor][active.job.tenant] -= active.devices
        self.holders[active.job.tenant].remove(active)
        self._fresh, self._under_way = True, self._dice.random() < UNDER_WAY

    def requeue(self) -> None:
        """Look again at all that could not be admitted."""
        self._fresh = True
        for waiting in self._waiting:
            waiting.failed.clear()

    def waiting(self) -> Iterable[Active]:
        return (active for waiting in self._waiting for active in waiting)

    # --- what it decides ------------------------------------------------------------------------------------------
    def next(self) -> Admit | Preempt | None:
        """One decision, which must be carried out before the next call; None when nothing can be done now."""
        while self._cycle or self._fresh:
            if not self._cycle:
                self._begin()
            while self._cycle:
                decision = self._process(self._cycle.pop(0))
                if decision is not None:
                    self._fresh = True
                    return decision
        self._forget()
        return None

    def _begin(self) -> None:
        self._forget()
        self._fresh = False
        heads = [self._head(tenant) for tenant in range(len(self._waiting))]
        if self._under_way and self._preemptors:
            # Its heads were chosen before the quota was free: only who waits for victims is among them.
            heads = [head for head in heads if head is not None and self._preemptors.get(head.job.tenant) is head]
            self._fresh = True
        self._under_way = False
        made = [self._nominate(head) for head in heads if head is not None]
        self._cycle = sorted(made, key=lambda one: (one.borrows, key(one.active)))

    def _forget(self) -> None:
        """What a cycle has promised is void after it."""
        self._claimed.clear()
        self._promised.clear()
        for nodes in self.nodes.values():
            nodes.closed.clear()

    def _head(self, tenant: int) -> Active | None:
        waiting, sticky = self._waiting[tenant], self._preemptors.get(tenant)
        if self.cluster.strict:
            return waiting.first()
        if sticky is not None and sticky.state is State.WAITING and shape(sticky) not in waiting.failed:
            return sticky
        return waiting.first_open()

    def _process(self, one: Nomination) -> Admit | Preempt | None:
        """Its turn in the cycle. Who is passed over stays the head of its queue."""
        active = one.active
        if one.devices and not one.victims and self._fits(one):
            place = self._place(active, one.flavor, one.devices)
            if place is not None:
                return Admit(active, one.flavor, place)
            one = self._nominate(active)  # another head has taken the node that it was to have
            if one.devices and not one.victims and self._fits(one):
                place = self._place(active, one.flavor, one.devices)
                return None if place is None else Admit(active, one.flavor, place)
        if not one.devices:
            self._waiting[active.job.tenant].fail(active)
            self._fresh = True
            return None
        if not one.victims or any(victim.job.id in self._claimed for victim in one.victims) or not self._fits(one):
            return None
        self._promise(one)
        new = tuple(victim for victim in one.victims if victim.state is not State.LEAVING)
        return Preempt(active, new) if new else None

    def _fits(self, one: Nomination) -> bool:
        """Whether there is quota once the cycle's victims have left and its preemptors have come."""
        tenant, used = one.active.job.tenant, self.used[one.flavor]
        own, every = used[tenant] + one.devices, sum(used) + one.devices
        for promised in self._promised:
            if promised.flavor == one.flavor:
                own += promised.devices if promised.active.job.tenant == tenant else 0
                every += promised.devices
        for victim in {**self._claimed, **{victim.job.id: victim for victim in one.victims}}.values():
            if victim.flavor == one.flavor:
                own -= victim.devices if victim.job.tenant == tenant else 0
                every -= victim.devices
        return own <= self.most(tenant, one.flavor) and every <= self.total[one.flavor]

    def _promise(self, one: Nomination) -> None:
        """Until the end of the cycle; it is the head of its queue until it is admitted."""
        active, nodes, more = one.active, self.nodes[one.flavor], dict[int, int]()
        self._preemptors[active.job.tenant] = active
        self._promised.append(one)
        for victim in one.victims:
            self._claimed[victim.job.id] = victim
            add(more, victim.placement, 1)
        node = nodes.room_for(one.devices, active.job.id, more) if active.job.one_node else None
        if node is not None:
            nodes.closed[node] = active.job.id

    def _nominate(self, active: Active) -> Nomination:
        """All workers, with a preemption if need be, or else as many as Kueue's binary search finds."""
        full = self._assign(active, active.goal)
        if full.devices or active.job.least >= active.goal:
            return full
        found, low, high = full, 0, active.goal - active.job.least + 1
        while low < high:
            middle = (low + high) // 2
            tried = self._assign(active, active.goal - middle)
            if tried.devices:
                found, high = tried, middle
            else:
                low = middle + 1
        return found

    def _assign(self, active: Active, count: int) -> Nomination:
        """The first flavor that has room, or the best one that would have it after a preemption."""
        tenant, best = active.job.tenant, Nomination(active)
        for flavor in [active.pinned] if active.pinned else self.order:
            if active.job.speeds.get(flavor, 0) <= 0 or count > self.most(tenant, flavor):
                continue
            borrows = self.borrows_with(tenant, flavor, count)
            room = self.room(tenant, flavor) >= count
            if room and self._place(active, flavor, count) is not None:
                return Nomination(active, flavor, count, borrows)
            if not room and count > self.nominal[flavor][tenant]:
                continue
            leave = victims(self, active, flavor, count)
            own = sum(one.devices for one in leave if one.job.tenant == tenant)
            after = self.borrows_with(tenant, flavor, count - own)
            # To reclaim from others is better than to preempt in its own queue, and not to borrow is better.
            if leave and (not best.devices or (own > 0, after) < (_of_own(best) > 0, best.borrows)):
                best = Nomination(active, flavor, count, after, leave)
        return best

    def _place(self, active: Active, flavor: str, count: int) -> Placement | None:
        return self.nodes[flavor].find(count, active.job.one_node, active.job.id, _numbers(active.avoid, flavor))


def _of_own(one: Nomination) -> int:
    return sum(victim.devices for victim in one.victims if victim.job.tenant == one.active.job.tenant)


def _numbers(names: Iterable[str], flavor: str) -> set[int]:
    """Of those nodes that are of this flavor."""
    return {int(name.rpartition("-")[2]) for name in names if name.rpartition("-")[0] == flavor}
