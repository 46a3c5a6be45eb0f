"""Rounds of the planner: look, ask the policies, let the arbiter rule, carry out what it allows, and tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ...contract import kinds
from ...drain import nodes as drained
from ...errors import JobNotFoundError, KubeError, NotFound, PlatformError, RequestRefusedError
from ...kube.client import Kube
from ...kube.resources import COHORT, Object
from ...planner import blocked, policies
from ...planner.arbiter import Arbiter, Ruling
from ...planner.model import ClusterSnapshot
from ...planner.policies import (
    Policy,
    cordon,
    defragmentation,
    health,
    introspection,
    lending,
    marginal_gain,
    regrow,
    tidy,
)
from ..cache import World
from ..forever import Skips
from ..hold import Settings
from ..metrics import Metrics
from .carry_out import CarryOut, Perform
from .disruption_budgets import DisruptionBudgets
from .look import Eyes, Seen
from .node_health import NodeHealth
from .report import Report
from .room import with_room
from .selection import always, chosen, in_order, regrowth_tried, terms
from .symptoms import Symptoms
from .usable import KEPT_S, Usable

PLAN_DELAY_S = 0.3
"""Quota changes come in bursts; one plan for a burst."""
LOOK_AT_NODES = {cordon.NAME, defragmentation.NAME, health.NAME}
"""Policies that ask for the nodes."""
GROWS = {introspection.NAME, lending.NAME, marginal_gain.NAME}
"""Policies that count on the nodes of free quota, as regrowth does."""
PLAN_SHARE = 0.1
"""Planning looks at every Workload of a cohort: it may take this share of the worker's time, no more."""


class Rounds:
    """`now` gives the API server's time, Unix seconds; `clock` is monotonic."""

    def __init__(
        self,
        kube: Kube,
        world: World,
        settings: Settings,
        skips: Skips,
        metrics: Metrics,
        perform: Perform,
        now: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._world, self._settings, self._now, self._clock = kube, world, settings, now, clock
        self._eyes, self._report = Eyes(world, skips), Report(kube, metrics)
        self._carry_out = CarryOut(kube, perform, settings.max_budget_s)
        self._budgets = DisruptionBudgets(kube, self._report, world.namespaces)
        planner, acting = settings.planner, chosen(settings.planner, "act")
        self._usual = always(settings, acting)
        self._act = in_order({**acting, **self._usual})
        self._dry = in_order({**chosen(planner, "propose"), **regrowth_tried(settings)})
        self._arbiter, self._shadow = Arbiter(terms(planner, self._act)), Arbiter(terms(planner, self._dry))
        symptoms = Symptoms(world, skips, planner.health.throttled_percent)
        self._usable = Usable(kube, world.nodes, clock)
        self._health = NodeHealth(kube, planner.health, metrics, symptoms)
        self._pause = PLAN_DELAY_S
        self._planned_at = 0.0
        self._others_at = self._tidied_at = -planner.every_s
        self._hurried = False

    @property
    def leaves_nodes(self) -> bool:
        """Whether jobs are to leave nodes that go."""
        return cordon.NAME in self._act

    def hurry(self) -> None:
        """Have the next plan look at nodes and ask every policy, whenever that was last done."""
        self._hurried = True

    def delay(self) -> float:
        """Seconds until the next plan: soon, but planning as a whole stays within its share of the worker."""
        return max(PLAN_DELAY_S, self._planned_at + self._pause - time.monotonic())

    def plan(self, again: Callable[[float], None]) -> None:
        """One round; `again` gets seconds until another one. Raises Conflict, KubeError."""
        began = time.monotonic()
        try:
            self._round(again)
        finally:
            self._planned_at = time.monotonic()
            self._pause = (self._planned_at - began) / PLAN_SHARE

    def _round(self, again: Callable[[float], None]) -> None:
        """Regrowth is looked at after every change; the others, whose inputs drift, every so many seconds."""
        self._tidy(again)
        act, dry = self._usual, dict[str, Policy]()
        nodes: Sequence[Object] = ()
        others = len(self._act) > len(self._usual) or bool(self._dry)
        if others:
            every_s = self._settings.planner.every_s
            if self._hurried or self._clock() - self._others_at >= every_s:
                self._hurried = False
                self._others_at, act, dry = self._clock(), self._act, self._dry
                if LOOK_AT_NODES & {*act, *dry}:
                    nodes = self._nodes()
            again(max(PLAN_DELAY_S, self._others_at + every_s - self._clock()))
        left = self._settings.planner.cordon
        seen = self._eyes.look(self._now(), nodes, left.conditions, left.taints)
        asked = {*act, *dry}
        if defragmentation.NAME in asked:
            seen = self._with_room(seen, nodes)
        if asked - {regrow.NAME}:  # which moves nobody who would not fit
            seen = replace(seen, snapshot=self._with_cohorts(seen.snapshot))
        if health.NAME in asked:
            jobs = {kinds.place(job): job for job in self._world.all_jobs()}
            told = self._health.look(seen.snapshot, {str(n["metadata"]["name"]): n for n in nodes}, jobs)
            seen = replace(seen, snapshot=told)
        if GROWS & asked or self._regrows(seen.snapshot):
            seen = replace(seen, snapshot=self._with_usable(seen.snapshot, again))
        if introspection.NAME in asked:
            for flavor in introspection.unpriced(seen.snapshot, self._settings.planner.prices):
                self._report.remark(introspection.NAME, f"leaves flavor {flavor} alone: planner.prices has none for it")
        self._keep_budgets(seen, asked)
        self._dry_run(seen, dry)
        self._really(seen, act, again)

    def _tidy(self, again: Callable[[float], None]) -> None:
        """Jobs that have left nodes may go everywhere again, also when no policy is on any more that asks for that."""
        every_s = self._settings.planner.every_s
        if self._clock() - self._tidied_at >= every_s:
            self._tidied_at = self._clock()
            try:
                self._carry_out.tidy(self._world.all_jobs())
            except KubeError as error:
                self._report.trouble(tidy.NAME, f"cannot see its requests: {error}", None, self._now())
        if self._carry_out.waits:
            again(max(PLAN_DELAY_S, self._tidied_at + every_s - self._clock()))

    def _nodes(self) -> Sequence[Object]:
        """An error here stops no other policy: nothing leaves a node that we do not see."""
        try:
            return self._world.nodes.all()
        except KubeError as error:
            self._report.trouble(cordon.NAME, f"cannot see nodes: {error}", None, self._now())
            return ()

    def _keep_budgets(self, seen: Seen, asked: Collection[str]) -> None:
        """Who empties a node waits for the jobs that are to leave it."""
        if not (self.leaves_nodes and self._settings.planner.cordon.disruption_budgets):
            self._budgets.withdraw(seen.snapshot.now)
        elif cordon.NAME in asked:
            self._budgets.keep(seen)

    def _with_cohorts(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """With cohorts whose quota is not that of their queues alone. Where they cannot be seen, each may be one."""
        if not any(queue.cohort for queue in snapshot.queues.values()):
            return snapshot
        try:
            specs = {c["metadata"]["name"]: c.get("spec") or {} for c in self._kube.list(COHORT)}
            linked = [(name, parent) for name, spec in specs.items() if (parent := spec.get("parentName"))]
            rich = {str(name) for name, spec in specs.items() if spec.get("resourceGroups")}
            return replace(snapshot, nested=frozenset(rich | {str(name) for pair in linked for name in pair}))
        except NotFound:  # this Kueue has none
            return snapshot
        except KubeError as error:
            self._report.trouble("planner", f"cannot see cohorts: {error}", None, self._now())
            return replace(snapshot, nested=frozenset(q.cohort for q in snapshot.queues.values() if q.cohort))

    def _regrows(self, snapshot: ClusterSnapshot) -> bool:
        """Whether a job would grow or change its flavor now, as far as quotas tell."""
        on = [way[regrow.NAME] for way in (self._usual, self._dry) if regrow.NAME in way]
        found = (p for policy in on for p in policies.ask({regrow.NAME: policy}, snapshot, lambda *told: None))
        return any(p.not_before <= snapshot.now for p in found)

    def _with_usable(self, snapshot: ClusterSnapshot, again: Callable[[float], None]) -> ClusterSnapshot:
        """With what nodes can hold where some take no pods: a job that has left them must not be sent back to them."""
        try:
            seen = self._usable.see(snapshot, self._left)
        except (KubeError, ValueError, LookupError, TypeError) as error:
            self._report.trouble(regrow.NAME, f"cannot see which nodes take pods: {error}", None, self._now())
            return snapshot
        if seen.usable:  # nothing tells us when these nodes take pods again
            again(KEPT_S)
        return seen

    def _left(self, node: Object) -> bool:
        """Whether a policy that acts sends jobs away from the node."""
        left = self._settings.planner.cordon
        if cordon.NAME in self._act and drained.leaving(node, left.conditions, left.taints):
            return True
        return health.NAME in self._act and str(node["metadata"]["name"]) in self._health.sick

    def _with_room(self, seen: Seen, nodes: Sequence[Object]) -> Seen:
        """With the room on nodes, if somebody waits whom it may help. Without it nothing is defragmented."""
        if not blocked.of(seen.snapshot):
            return seen
        try:
            return replace(seen, snapshot=with_room(self._kube, seen.snapshot, nodes, self._world.pods.all()))
        except (KubeError, ValueError, LookupError, TypeError) as error:
            self._report.trouble(defragmentation.NAME, f"cannot see the room on nodes: {error}", None, self._now())
            return seen

    def _really(self, seen: Seen, act: Mapping[str, Policy], again: Callable[[float], None]) -> None:
        errors: list[Exception] = []
        for ruling in self._rulings(self._arbiter, seen, act):
            if not ruling.allowed:
                if ruling.wait_s is not None:
                    again(ruling.wait_s)
                if not ruling.quiet:
                    self._report.refused(ruling, ruling.why, seen.snapshot.now)
                continue
            try:
                self._done(ruling, seen)
            except Exception as error:  # it has changed since, say: this plan is void, the others are not
                errors.append(error)
        if errors:
            raise errors[0]

    def _done(self, ruling: Ruling, seen: Seen) -> None:
        proposal = ruling.proposal
        job, workload = seen.raw[proposal.job]
        try:
            self._carry_out.do(proposal, job, workload, seen.snapshot.now)
        except (RequestRefusedError, PlatformError, JobNotFoundError) as error:
            self._arbiter.undo(ruling)
            self._report.refused(ruling, str(error), seen.snapshot.now)
            if proposal.policy == cordon.NAME:
                self._budgets.leave_out(seen.snapshot.jobs[proposal.job])
            return
        except Exception:
            self._arbiter.undo(ruling)
            raise
        self._report.done(ruling, job, seen.snapshot.now)

    def _dry_run(self, seen: Seen, dry: Mapping[str, Policy]) -> None:
        for ruling in self._rulings(self._shadow, seen, dry):
            if ruling.allowed:
                self._report.would(ruling, seen.raw[ruling.proposal.job][0], seen.snapshot.now)

    def _rulings(self, arbiter: Arbiter, seen: Seen, asked: Mapping[str, Policy]) -> list[Ruling]:
        def trouble(policy: str, what: str, error: BaseException | None) -> None:
            self._report.trouble(policy, what, error, seen.snapshot.now)

        proposals = policies.ask(asked, seen.snapshot, trouble)
        return arbiter.rule(seen.snapshot, proposals, self._clock())
