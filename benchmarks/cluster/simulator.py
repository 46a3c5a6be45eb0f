"""A discrete-event simulator: jobs arrive, Kueue admits and preempts, a policy moves, and every move costs.

Simulated; `replay.py` plays the same workload to a real Kueue. The same jobs, cluster, setting, policy and seed
give the same outcome to the last digit.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from . import arbiter
from .active import Active, State
from .kueue import Admit, Kueue
from .model import Cluster, Job, Setting
from .nodes import packed
from .seam import Action, Move, Policy, Priority, Resize, Seen, View, nobody

HOUR_S = 3600.0


class Kind(Enum):
    """Of an event."""

    ARRIVES = "arrives"
    READY = "ready"
    NEVER_READY = "never ready"
    DONE = "done"
    LEFT = "left"
    QUEUED = "queued"
    TICK = "tick"
    WINDOW = "window"


@dataclass(frozen=True)
class Outcome:
    """:param jobs: in the order of arrival, all done
    :param window_s: while jobs arrived
    :param held_device_s: device seconds held within the window
    :param worked_device_s: work done within the window, in device seconds of the reference
    :param refused: proposals that the arbiter refused, by cause
    """

    jobs: Sequence[Active]
    cluster: Cluster
    window_s: float
    held_device_s: float
    worked_device_s: float
    refused: Counter[str]
    events: int


class Simulation:
    """:param watch: called after each event; for tests
    :raises ValueError: a job that can never run on this cluster
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[Job],
        setting: Setting,
        policy: Policy = nobody,
        seed: int = 0,
        watch: Callable[[Simulation], None] | None = None,
    ) -> None:
        for job in jobs:
            _check(job, cluster)
        self.cluster, self.setting, self.policy, self.seed, self._watch = cluster, setting, policy, seed, watch
        self.kueue = Kueue(cluster)
        self.prices = {flavor.name: flavor.price for flavor in cluster.flavors}
        self.jobs = {j.id: Active(j, j.workers, priority=j.tier.rank if setting.classes else 0) for j in jobs}
        self.present: dict[int, Active] = {}
        """Jobs that have arrived and are not done."""
        self.now = 0.0
        self.refused: Counter[str] = Counter()
        self._open = len(jobs)
        self._events: list[tuple[float, int, Kind, Active | None, int]] = []
        self._count = 0
        self._window = (0.0, 0.0)
        for active in self.jobs.values():
            self._at(active.job.arrival_s, Kind.ARRIVES, active)

    def run(self, most_events: int = 20_000_000) -> Outcome:
        """Until all jobs are done.

        :raises RuntimeError: jobs are left and nothing will ever happen to them, or there is no end
        """
        window = max((active.job.arrival_s for active in self.jobs.values()), default=0.0)
        self._at(window, Kind.WINDOW)
        if self.policy is not nobody:
            self._at(self.setting.tick_s, Kind.TICK)
        handled = 0
        while self._open:
            if not self._events or handled >= most_events:
                raise RuntimeError(f"after {handled} events {self._open} jobs are not done, at {self.now:g} s")
            self.now, _, kind, active, version = heapq.heappop(self._events)
            if active is not None and version != active.version:
                continue
            handled += 1
            self._handle(kind, active)
            while (decision := self.kueue.next()) is not None:
                if isinstance(decision, Admit):
                    self._admit(decision)
                else:
                    self.kueue.reserve(decision)
                    for victim in decision.victims:
                        victim.preempted += 1
                        self._evict(victim)
            if self._watch is not None:
                self._watch(self)
        done = sorted(self.jobs.values(), key=lambda active: active.job.id)
        return Outcome(done, self.cluster, window, *self._window, self.refused, handled)

    # --- events ---------------------------------------------------------------------------------------------------
    def _at(self, when: float, kind: Kind, active: Active | None = None) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, kind, active, active.version if active else 0))

    def _handle(self, kind: Kind, active: Active | None) -> None:
        if active is None:
            self._of_all(kind)
        elif kind in (Kind.ARRIVES, Kind.QUEUED):
            self.present[active.job.id] = active
            self._queue(active)
        elif kind is Kind.READY:
            self._ready(active)
        elif kind is Kind.LEFT:
            self._release(active)
            self._queue(active)
        elif kind is Kind.NEVER_READY:
            self._release(active)
            active.state, costs = State.BACKOFF, self.setting.costs
            wait = min(costs.backoff_s * 2.0 ** min(active.failures, 30), costs.backoff_most_s)
            active.failures += 1
            self._next(active, wait, Kind.QUEUED)
        elif kind is Kind.DONE:
            self._release(active)
            active.state, active.finished_at, active.done_s = State.DONE, self.now, active.job.work_s
            del self.present[active.job.id]
            self._open -= 1

    def _of_all(self, kind: Kind) -> None:
        if kind is Kind.WINDOW:
            self._account_all()
            held = sum(a.run_device_s + a.over_device_s for a in self.jobs.values())
            self._window = (held, sum(a.done_s * a.job.workers for a in self.jobs.values()))
            return
        self._at(self.now + self.setting.tick_s, Kind.TICK)
        if self.present:
            actions = self.policy(self.view())
            for action in arbiter.allowed(actions, self.present, self.setting.limits, self.now, self.refused):
                self._carry_out(action)

    def _next(self, active: Active, after_s: float, kind: Kind) -> None:
        """Its earlier events are void."""
        active.version += 1
        self._at(self.now + after_s, kind, active)

    def _account(self, active: Active) -> None:
        active.account(self.now, self.prices[active.flavor] / HOUR_S if active.holds else 0.0)

    def _queue(self, active: Active) -> None:
        active.state, active.queued_since, active.since = State.WAITING, self.now, self.now
        self.kueue.enqueue(active)

    def _admit(self, decision: Admit) -> None:
        active = decision.active
        self.kueue.admit(decision)
        active.waited_s += self.now - active.queued_since
        active.flavor, active.placement = decision.flavor, decision.placement
        active.devices, active.prefer, active.hint = sum(decision.placement.values()), "", None
        active.packed = packed(decision.placement)
        active.state, active.admitted_at, active.since = State.STARTING, self.now, self.now
        active.first_admitted = self.now if active.first_admitted is None else active.first_admitted
        active.attempts += 1
        costs = self.setting.costs
        dice = random.Random(f"start {self.seed} {active.job.id} {active.attempts}")
        if dice.random() < costs.fails:
            self._next(active, costs.ready_s, Kind.NEVER_READY)
        else:
            self._next(active, costs.coming(active.job, active.devices, active.done_s == 0), Kind.READY)

    def _ready(self, active: Active) -> None:
        self._account(active)
        active.state, active.run_since, active.failures = State.RUNNING, self.now, 0
        active.began_s = active.kept_s = active.done_s
        speed = active.job.rate(active.devices, active.flavor, active.packed)
        active.rate = speed * self.setting.costs.slowdown(active.job)
        self._next(active, active.left_s / active.rate, Kind.DONE)

    def _evict(self, active: Active) -> None:
        self._account(active)
        costs, ran = self.setting.costs, active.state is State.RUNNING
        if ran:
            active.lose(self.now, costs)
        active.state = State.LEAVING
        self._next(active, costs.leaving(active.job, active.devices) if ran else costs.evict_s, Kind.LEFT)

    def _release(self, active: Active) -> None:
        self._account(active)
        self.kueue.release(active)
        active.devices, active.placement, active.rate, active.packed = 0, {}, 0.0, True

    # --- the policy -----------------------------------------------------------------------------------------------
    def _account_all(self) -> None:
        for active in self.present.values():
            if active.holds:
                self._account(active)

    def view(self) -> View:
        self._account_all()
        shown = [self._seen(a) for a in self.present.values() if a.state in (State.WAITING, State.RUNNING)]
        flavors = self.cluster.flavors
        return View(
            self.now,
            shown,
            {name: nodes.free for name, nodes in self.kueue.nodes.items()},
            self.prices,
            self.kueue.total,
            [sum(self.kueue.nominal[f.name][tenant] for f in flavors) for tenant in range(len(self.cluster.shares))],
        )

    def _seen(self, active: Active) -> Seen:
        job, costs, runs = active.job, self.setting.costs, active.state is State.RUNNING
        present_s = max(self.now - job.arrival_s, 1e-9)
        return Seen(
            job.id, job.tenant, job.tier, runs, job.arrival_s, job.workers, job.least, job.most, job.one_node,
            active.priority, active.goal, active.devices, active.flavor if runs else "", active.placement,
            active.packed, active.left_s * job.misjudged,
            active.run_device_s, active.ran_s, self.now - (active.run_since if runs else active.queued_since),
            min(1.0, active.run_device_s / (job.workers * present_s)), job.alpha, job.speeds,
            *active.move_s(costs),
        )  # fmt: skip

    def _carry_out(self, action: Action) -> None:
        active = self.present[action.id]
        waits = active.state is State.WAITING
        if waits:
            self.kueue.dequeue(active)
        if isinstance(action, Priority):
            active.priority = action.value
        elif isinstance(action, Resize):
            active.goal = action.devices
        else:
            active.prefer, active.hint = action.flavor, action.node
        if waits:
            self.kueue.enqueue(active)
        elif isinstance(action, (Resize, Move)):
            active.moves.append(self.now)
            self._evict(active)
        self.kueue.changed()


def _check(job: Job, cluster: Cluster) -> None:
    """:raises ValueError: see `Simulation`"""
    rooms = [flavor.devices for flavor in cluster.flavors if job.speeds.get(flavor.name, 0) > 0]
    if job.tenant >= len(cluster.shares) or job.workers > max(rooms, default=0):
        raise ValueError(
            f"job {job.id}: tenant = {job.tenant}, workers = {job.workers}: the cluster has {len(cluster.shares)} "
            f"tenants and flavors for it with at most {max(rooms, default=0)} devices"
        )
