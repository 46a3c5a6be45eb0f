"""A discrete-event simulator: jobs arrive, Kueue admits and preempts, the planner moves, and every move costs.

`replay.py` plays the same workload to a real Kueue. The same input and seed give the same outcome to the last digit.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kueue_integration.planner.job import BY, Request
from kueue_integration.planner.model import ClusterSnapshot
from kueue_integration.planner.proposals import Proposal

from . import history
from .active import Active, State
from .clock import Clock
from .history import EPOCH
from .kueue import Admit, Kueue
from .model import Cluster, Job, Setting
from .nodes import packed
from .outcome import EndlessError, Kind, Outcome, check
from .seam import Eyes, Planner, flavor_of, number_of

HOUR_S = 3600.0
STUCK_S = 400 * 86400.0
"""No job takes so long: a slow one of 48 hours on a quarter of its workers, spread over nodes, takes 40 days."""
EVENTS_PER_JOB = 500  # more is no study: jobs that preempt each other for ever
MOVES: Mapping[str, str] = {"readmit": "Regrown", "resize": "Resized", "migrate": "Migrated", "pause": "Paused"}
"""What the planner may ask of a job that trains, and how the controller calls the end of its attempt then."""


class Simulation:
    """:param planner: None: Kueue alone
    :param watch: called after each event; for tests
    :raises ValueError: a job that can never run on this cluster
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[Job],
        setting: Setting,
        planner: Planner | None = None,
        seed: int = 0,
        watch: Callable[[Simulation], None] | None = None,
    ) -> None:
        for job in jobs:
            check(job, cluster)
        self.cluster, self.setting, self.planner, self.seed, self._watch = cluster, setting, planner, seed, watch
        self.kueue = Kueue(cluster, seed)
        self.prices = {flavor.name: flavor.price for flavor in cluster.flavors}
        self.jobs = {j.id: Active(j, j.workers) for j in jobs}
        for active in self.jobs.values() if setting.classes and setting.ranked else ():
            active.priority = active.own_priority = active.job.tier.priority
        self.present: dict[int, Active] = {}
        """Jobs that have arrived and are not done."""
        self._clock = Clock()
        self._eyes = Eyes(cluster, setting.classes, setting.report_s)
        self._open = len(jobs)
        self._requeues = False
        self._window = (0.0, 0.0)
        for active in self.jobs.values():
            self._clock.at(active.job.arrival_s, Kind.ARRIVES, active)

    @property
    def now(self) -> float:
        return self._clock.now

    def run(self, most_events: int | None = None) -> Outcome:
        """Until all jobs are done; without a number `EVENTS_PER_JOB` are allowed, looks of the planner left out.

        :raises EndlessError: jobs are left and nothing will ever happen to them, or there is no end
        """
        window = max((active.job.arrival_s for active in self.jobs.values()), default=0.0)
        self._clock.at(window, Kind.WINDOW)
        if self.planner is not None:
            self._clock.at(self.planner.every_s, Kind.TICK)
        handled, last = 0, 0.0
        most = EVENTS_PER_JOB * len(self.jobs) if most_events is None else most_events
        while self._open:
            if not self._clock or handled >= most or self.now - last > STUCK_S:
                raise EndlessError(f"after {handled} events {self._open} jobs are not done, at {self.now:g} s")
            event = self._clock.take()
            if event is None:
                continue
            kind, active = event
            if kind not in (Kind.TICK, Kind.REQUEUE):
                handled, last = handled + 1, self.now
            self._handle(kind, active)
            while (decision := self.kueue.next()) is not None:
                if isinstance(decision, Admit):
                    self._admit(decision)
                else:
                    for victim in decision.victims:
                        victim.preempted += 1
                        self._evict(victim)
            if self._watch is not None:
                self._watch(self)
        done = sorted(self.jobs.values(), key=lambda active: active.job.id)
        told = (self.planner.refused, self.planner.allowed) if self.planner is not None else (Counter(), Counter())
        return Outcome(done, self.cluster, window, *self._window, *told, handled)

    # --- events ---------------------------------------------------------------------------------------------------
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
            self._left(active)
        elif kind is Kind.NEVER_READY:
            self._release(active)
            active.state, costs = State.BACKOFF, self.setting.costs
            wait = min(costs.backoff_s * 2.0 ** min(active.failures, 30), costs.backoff_most_s)
            active.failures += 1
            self._clock.next_of(active, wait, Kind.QUEUED)
        elif kind is Kind.DONE:
            self._release(active)
            active.state, active.finished_at, active.done_s = State.DONE, self.now, active.job.work_s
            del self.present[active.job.id]
            self._open -= 1

    def _of_all(self, kind: Kind) -> None:
        if kind is Kind.REQUEUE:
            self._requeues = False
            self.kueue.requeue()
            return
        if kind is Kind.WINDOW:
            self._account_all()
            held = sum(a.run_device_s + a.over_device_s for a in self.jobs.values())
            self._window = (held, sum(a.done_s * a.job.workers for a in self.jobs.values()))
            return
        assert self.planner is not None
        self._clock.at(self.now + self.planner.every_s, Kind.TICK)
        if self.present:
            for proposal in self.planner.look(self._look(), self.now):
                self._carry_out(proposal)

    def _requeue(self) -> None:
        """Something is free, or has another priority: Kueue looks in a moment at what it could not admit."""
        if not self._requeues:
            self._requeues = True
            self._clock.at(self.now + self.setting.requeue_s, Kind.REQUEUE)

    def _account(self, active: Active) -> None:
        active.account(self.now, self.prices[active.flavor] / HOUR_S if active.holds else 0.0)

    def _queue(self, active: Active) -> None:
        active.state, active.queued_since, active.since = State.WAITING, self.now, self.now
        active.stamp += 1
        self.kueue.enqueue(active)

    def _left(self, active: Active) -> None:
        """Its quota is free: it is queued again, or stays out of its queue where that was asked for."""
        if active.change is not None and active.change.under_way:
            active.change = dataclasses.replace(active.change, state="done", at=EPOCH + self.now)
            if active.change.op == "pause":
                active.state, active.since = State.PARKED, self.now
                active.stamp += 1
                return
        self._queue(active)

    def _admit(self, decision: Admit) -> None:
        active = decision.active
        self.kueue.admit(decision)
        active.waited_s += self.now - active.queued_since
        active.flavor, active.placement = decision.flavor, decision.placement
        active.devices, active.avoid = sum(decision.placement.values()), frozenset()
        active.packed = packed(decision.placement)
        active.state, active.admitted_at, active.since = State.STARTING, self.now, self.now
        active.first_admitted = self.now if active.first_admitted is None else active.first_admitted
        active.attempts += 1
        history.admitted(active, self.now)
        costs = self.setting.costs
        dice = random.Random(f"start {self.seed} {active.job.id} {active.attempts}")
        if dice.random() < costs.fails:
            self._clock.next_of(active, costs.ready_s, Kind.NEVER_READY)
        else:
            self._clock.next_of(active, costs.coming(active.job, active.devices, active.done_s == 0), Kind.READY)

    def _ready(self, active: Active) -> None:
        self._account(active)
        active.state, active.run_since, active.failures = State.RUNNING, self.now, 0
        active.began_s = active.kept_s = active.done_s
        speed = active.job.rate(active.devices, active.flavor, active.packed)
        active.rate = speed * self.setting.costs.slowdown(active.job)
        history.trains(active, self.now)
        self._clock.next_of(active, active.left_s / active.rate, Kind.DONE)

    def _evict(self, active: Active, why: str = "Preempted") -> None:
        self._account(active)
        costs, ran = self.setting.costs, active.state is State.RUNNING
        if ran:
            active.lose(self.now, costs)
        history.evicted(active, self.now, why)
        active.state = State.LEAVING
        self.kueue.holders[active.job.tenant].touch()
        self._clock.next_of(active, costs.leaving(active.job, active.devices) if ran else costs.evict_s, Kind.LEFT)

    def _release(self, active: Active) -> None:
        self._account(active)
        self.kueue.release(active)
        self._requeue()
        history.released(active, self.now)
        active.devices, active.placement, active.rate, active.packed = 0, {}, 0.0, True

    # --- the policy -----------------------------------------------------------------------------------------------
    def _account_all(self) -> None:
        for active in self.present.values():
            if active.holds:
                self._account(active)

    def _look(self) -> ClusterSnapshot:
        return self._eyes.look(self.present.values(), self.now, {n: it.free for n, it in self.kueue.nodes.items()})

    def _carry_out(self, proposal: Proposal) -> None:
        """By the same requests as in the controller. The arbiter has checked that the job trains, where it has to."""
        active, action = self.present[number_of(proposal)], str(proposal.action)
        by = f"{BY}{proposal.policy}: {proposal.reason}"
        if action == "priority":
            self._prioritise(active, proposal)
        elif action == "resume":
            active.change = Request("resume", by, "done", active.attempts, EPOCH + self.now, memory=proposal.memory)
            self._queue(active)
        elif action == "unpin":
            with self._out_of_its_queue(active):
                active.pinned = ""
        elif action in MOVES:
            if action == "resize":
                active.goal = proposal.workers
            active.avoid, active.pinned = frozenset(proposal.nodes), flavor_of(proposal) or active.pinned
            if action != "readmit":
                pins = bool(flavor_of(proposal))
                now, memory = EPOCH + self.now, proposal.memory
                active.change = Request(action, by, "running", active.attempts, now, pins=pins, memory=memory)
            active.moves.append(self.now)
            self._evict(active, MOVES[action])
        else:
            raise ValueError(f"policy {proposal.policy}: the simulator has no {action}")
        self._requeue()

    def _prioritise(self, active: Active, proposal: Proposal) -> None:
        with self._out_of_its_queue(active):
            active.priority = proposal.priority
        self.kueue.holders[active.job.tenant].touch()
        active.boosted_by = proposal.policy if proposal.priority != active.own_priority else ""

    @contextmanager
    def _out_of_its_queue(self, active: Active) -> Iterator[None]:
        """While something changes that its place in a queue depends on. It need not be in one."""
        waits = active.state is State.WAITING
        if waits:
            self.kueue.dequeue(active)
        yield
        active.stamp += 1
        if waits:
            self.kueue.enqueue(active)
