"""The controller's planner in the simulator: policies, checks of their proposals, and the arbiter are the product's.

This module shows them the simulated cluster as the `ClusterSnapshot` that the controller makes of Kubernetes objects.
A policy that is added to the planner is found by its mode in `PlannerSettings`; nothing here names one.

One worker is one pod with one device. Jobs that need one node ask for a topology, so they cannot be resized.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from kueue_integration.controller.hold import Settings
from kueue_integration.controller.planning.selection import chosen, in_order, terms
from kueue_integration.planner import policies
from kueue_integration.planner.arbiter import Arbiter, Terms
from kueue_integration.planner.job import Given, Job, Workload
from kueue_integration.planner.model import ClusterSnapshot, Node, Queue
from kueue_integration.planner.policies import Policy, regrow
from kueue_integration.planner.proposals import Proposal
from kueue_integration.planner.quota import Group
from kueue_integration.planner.settings import PlannerSettings, problem

from . import model
from .active import Active, State
from .history import EPOCH
from .nodes import name_of

DEVICE = "nvidia.com/gpu"
COHORT = "all"
TIERS = {tier.name.lower(): tier.value for tier in model.Tier}
HOST = "kubernetes.io/hostname"
PER_POD: Mapping[str, Fraction] = {DEVICE: Fraction(1)}
NEEDS: Mapping[str, Mapping[str, object]] = {"sla_tiers": {"tiers": TIERS}}
"""What policies of `PlannerSettings` cannot do without."""


@functools.cache
def _whole(number: int) -> Fraction:
    """Made once: a study asks for the same few numbers millions of times."""
    return Fraction(number)


# --- which policies there are ---------------------------------------------------------------------------------------
def modes() -> list[str]:
    """The fields of `PlannerSettings` that are a policy."""
    return [f.name for f in dataclasses.fields(PlannerSettings) if hasattr(getattr(PlannerSettings(), f.name), "mode")]


def acting(names: Iterable[str], every_s: float) -> PlannerSettings:
    """Settings with these policies on.

    :raises ValueError: a name that `modes` does not have, or settings that the controller would refuse
    """
    usual, on = PlannerSettings(every_s=every_s, prices=model.PRICES), dict[str, Any]()
    for name in names:
        if name not in modes():
            raise ValueError(f"policy {name}: there is none of this name; there are {', '.join(modes())}")
        on[name] = dataclasses.replace(getattr(usual, name), mode="act", **NEEDS.get(name, {}))
    settings = dataclasses.replace(usual, **on)
    if problem(settings):
        raise ValueError(f"{', '.join(on)}: {problem(settings)}")
    return settings


class Planner:
    """One run's planner. `refused` counts proposals that were not carried out, by policy; nonsense by its words.

    :param every_s: between two looks
    """

    def __init__(self, asked: Mapping[str, Policy], limits: Mapping[str, Terms], every_s: float) -> None:
        self._policies, self._arbiter, self.every_s = asked, Arbiter(limits), every_s
        self.refused: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()

    @classmethod
    def of(cls, settings: PlannerSettings, regrowth: bool) -> Planner:
        """As the controller has it with these settings."""
        asked = chosen(settings, "act")
        if regrowth:
            asked[regrow.NAME] = functools.partial(regrow.propose, enabled=True, min_run_s=Settings().regrow_min_run_s)
        asked = in_order(asked)
        return cls(asked, terms(settings, asked), settings.every_s)

    def look(self, snapshot: ClusterSnapshot, clock: float) -> list[Proposal]:
        """What is to be carried out now."""

        def trouble(policy: str, what: str, error: BaseException | None) -> None:
            if error is not None:
                raise error  # a study of a policy that does not work is no study
            self.refused["nonsense"] += 1

        found = []
        for ruling in self._arbiter.rule(snapshot, policies.ask(self._policies, snapshot, trouble), clock):
            if ruling.allowed:
                found.append(ruling.proposal)
                self.allowed[ruling.proposal.policy] += 1
            else:
                self.refused[ruling.proposal.policy] += 1
        return found


# --- what they see --------------------------------------------------------------------------------------------------
class Eyes:
    """Looks, again and again; a job that has not changed is not made again."""

    def __init__(self, cluster: model.Cluster, classes: bool, report_s: float) -> None:
        self._classes, self._report_s = classes, report_s
        self._queues = {_queue_name(t): _queue(cluster, t) for t in range(len(cluster.shares))}
        self._flavors = {flavor.name: {"flavor": flavor.name} for flavor in cluster.flavors}
        self._node = functools.lru_cache(maxsize=None)(_node)
        self._known: dict[int, tuple[int, float, Job]] = {}

    def look(self, present: Iterable[Active], now: float, rooms: Mapping[str, Sequence[int]]) -> ClusterSnapshot:
        """:param now: seconds of the simulation
        :param rooms: free devices of each node, by flavor
        """
        jobs, workloads, made = {}, [], {}
        for active in present:
            before = self._known.get(active.job.id)
            stale = before is None or before[0] != active.stamp or now - before[1] >= self._report_s
            if before is None or (stale and (before[0] != active.stamp or active.state is State.RUNNING)):
                before = active.stamp, now, self._job(active, now)
            made[active.job.id] = before
            job = before[2]
            assert job.workload is not None
            jobs[job.key] = job
            workloads.append(job.workload)
        self._known = made
        nodes = [self._node(flavor, n, devices) for flavor, free in rooms.items() for n, devices in enumerate(free)]
        named = {node.name: node for node in nodes}
        return ClusterSnapshot(EPOCH + now, self._queues, tuple(workloads), jobs, named, self._flavors)

    def _job(self, active: Active, now: float) -> Job:
        job, runs = active.job, active.state is State.RUNNING
        holds = active.state in (State.STARTING, State.RUNNING)
        done = active.done_s + (active.rate * (now - active.since) if runs else 0.0)
        fewest = min(job.least, active.goal)
        return Job(
            key=key_of(job),
            uid=f"job-{job.id}",
            created=EPOCH + job.arrival_s,
            workload=_workload(active, fewest),
            given=_given(active) if holds else None,
            priority_class=job.tier.name.lower() if self._classes else "",
            own_priority=active.own_priority,
            boosted_by=active.boosted_by,
            wanted=active.goal,
            fewest=fewest,
            ranks=max(job.most, job.workers),
            resizable=job.elastic and not job.one_node,
            topology=job.one_node,
            flavors=(active.pinned,) if active.pinned else (),
            attempts=tuple(active.records),
            runs_since=EPOCH + active.run_since if runs else None,
            whole=runs,
            nodes=frozenset(name_of(active.flavor, node) for node in active.placement),
            change=active.change,
            paused=active.state is State.PARKED,
            steps_done=int(done) if runs else None,
            steps_seen_at=EPOCH + now if runs else None,
            steps_total=max(int(done) + 1, int(job.work_s * job.misjudged)),
            steps_printed=int(done),
        )


def key_of(job: model.Job) -> tuple[str, str]:
    return f"tenant-{job.tenant}", f"job-{job.id}"


def flavor_of(proposal: Proposal) -> str:
    """To which a job is to go and stay, "" for no other."""
    return str(getattr(proposal, "flavor", ""))


def number_of(proposal: Proposal) -> int:
    """The job that it is about. Raises ValueError: not a name that `key_of` gives."""
    return int(proposal.job[1].removeprefix("job-"))


def _workload(active: Active, fewest: int) -> Workload:
    job, leaves = active.job, active.state is State.LEAVING
    return Workload(
        namespace=key_of(job)[0],
        name=f"job-{job.id}",
        uid=f"job-{job.id}",
        queue=_queue_name(job.tenant),
        priority=active.priority,
        created=EPOCH + job.arrival_s,
        holds={(active.flavor, DEVICE): _whole(active.devices)} if active.holds else None,
        asks={DEVICE: _whole(fewest)},
        waits=active.state in (State.WAITING, State.BACKOFF),
        leaves=leaves,
        pods=fewest,
        per_pod=PER_POD,
        level=HOST if job.one_node else "",
    )


def _node(flavor: str, number: int, free: int) -> Node:
    name = name_of(flavor, number)
    room = {DEVICE: _whole(free), "pods": _whole(1000)}
    return Node(name, labels={"flavor": flavor, HOST: name}, free=room)


def _given(active: Active) -> Given:
    return Given(active.devices, active.flavor, {DEVICE: active.flavor}, {DEVICE: _whole(active.devices)})


def _queue_name(tenant: int) -> str:
    return f"queue-{tenant}"


def _queue(cluster: model.Cluster, tenant: int) -> Queue:
    names: Sequence[str] = [flavor.name for flavor in cluster.flavors]
    nominal = {(f.name, DEVICE): Fraction(cluster.nominal(f)[tenant]) for f in cluster.flavors}
    return Queue(_queue_name(tenant), COHORT, [Group([DEVICE], names, nominal)])
