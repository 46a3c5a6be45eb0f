"""Queues that admit nobody, and Workloads that take no quota: nobody leaves such a queue, or makes room there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import planner_scene as scene
import pytest
from planner_scene import GPU, NOW
from test_planner_introspection import job as cheap
from test_planner_introspection import propose as introspect
from test_planner_introspection import ran
from test_planner_sharing import QUANTUM, measured

from kueue_integration.controller.planning.look import read_queue
from kueue_integration.planner import free, quota
from kueue_integration.planner.arbiter import Arbiter, Limits, Terms
from kueue_integration.planner.job import Job, Workload
from kueue_integration.planner.model import ClusterSnapshot, Queue
from kueue_integration.planner.policies import (
    attained_service,
    lending,
    marginal_gain,
    regrow,
    sla_tiers,
    time_sharing,
)
from kueue_integration.planner.proposals import Proposal

Proposals = list[Proposal]
POLICIES: dict[str, tuple[Callable[[], list[Job]], Callable[[ClusterSnapshot], Proposals]]] = {
    "regrow": (lambda: [scene.job(count=1, wanted=2)], lambda seen: regrow.propose(seen, True, 10.0)),
    "time sharing": (
        lambda: [scene.job("runs", count=8), scene.waiting()], lambda seen: time_sharing.propose(seen, QUANTUM)
    ),
    "marginal gain": (lambda: [measured("scales", one_s=2.0, two_s=1.0)], marginal_gain.propose),
    "lending": (lambda: [scene.job()], lambda seen: lending.propose(seen, 1800.0)),
    "attained service": (
        lambda: [scene.job("old"), scene.waiting()],
        lambda seen: [p for p in attained_service.propose(seen, [1000.0], 8.0, 60.0) if p.gain_device_seconds],
    ),
}  # fmt: skip


def stopped(how: str, jobs: list[Job]) -> ClusterSnapshot:
    """`how`: "" for a queue that admits, `ClusterQueue`, or `LocalQueue` of all jobs here."""
    if how == "LocalQueue":
        jobs = [replace(j, workload=replace(j.workload, stopped=True)) for j in jobs if j.workload is not None]
    return scene.snapshot(*jobs, queues=(replace(scene.queue(), stopped=how == "ClusterQueue"),))


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_moves_nobody_who_could_not_come_back(name):
    jobs, ask = POLICIES[name]
    assert ask(stopped("", jobs())) != []
    assert ask(stopped("ClusterQueue", jobs())) == []
    assert ask(stopped("LocalQueue", jobs())) == []


def test_introspection_moves_nobody_who_could_not_come_back():
    ready = cheap(ran(1, "t4", 1.0))
    assert ready.workload is not None and introspect(ready) != []
    assert introspect(replace(ready, workload=replace(ready.workload, stopped=True))) == []
    queue = replace(scene.queue(flavors=("a100", "t4")), stopped=True)
    assert introspect(ready, queues=(queue,)) == []


def test_a_local_queue_stops_the_jobs_of_its_namespace_only():
    mine, theirs = scene.job("mine", count=1, wanted=2), scene.job("theirs", namespace="other", count=1, wanted=2)
    assert mine.workload is not None
    held = replace(mine, workload=replace(mine.workload, stopped=True))
    assert [p.job[1] for p in regrow.propose(scene.snapshot(held, theirs), True, 10.0)] == ["theirs"]
    full = scene.snapshot(replace(held, wanted=1), scene.waiting(), queues=(scene.queue(devices=2),))
    assert time_sharing.propose(full, 1) == []


def test_the_arbiter_lets_nobody_go_who_could_not_come_back():
    """Whatever proposes it: cordon and health do not ask for queues."""
    job = scene.job()
    assert job.workload is not None
    judge = Arbiter({"one": Terms(Limits(0.0, None, None))})
    for held in (job, replace(job, workload=replace(job.workload, stopped=True))):
        (ruling,) = judge.rule(scene.snapshot(held), [Proposal("migrate", job.key, "because", 1e6, "one")], 100.0)
        assert ruling.allowed == (held is job)
        judge.undo(ruling)
    assert ruling.why == "its queue is stopped: it would not come back"
    (save,) = judge.rule(scene.snapshot(held), [Proposal("checkpoint", job.key, "because", 1e6, "one")], 200.0)
    assert save.allowed


def waits(asks: dict[str, int], **changes: Any) -> Workload:
    amounts = {resource: Fraction(amount) for resource, amount in asks.items()}
    return Workload("team", "ray", "wl-ray", "training", 10, NOW - 50, asks=amounts, waits=True, **changes)


def grown(other: Workload, *more: Queue, stopped: bool = False) -> bool:
    """Whether a job that was shrunk comes back while `other` waits."""
    queues = (scene.queue(), *(replace(queue, stopped=stopped) for queue in more))
    seen = scene.snapshot(scene.job(count=1, wanted=2), queues=queues, others=(other,))
    return bool(regrow.propose(seen, True, 10.0))


def test_who_waits_for_what_no_queue_here_covers_keeps_nobody_small():
    assert not grown(waits({GPU: 1}))
    assert grown(waits({"cpu": 1, "memory": 1}))
    assert not grown(waits({GPU: 1, "cpu": 1})), "Kueue's configuration may exclude what no queue covers"
    cpus = Queue("cpus", "", [quota.Group(["cpu"], ["any"], {("any", "cpu"): Fraction(9)})])
    assert grown(waits({GPU: 1, "cpu": 1}), cpus), "cpu is counted, and this queue has none"
    assert not grown(waits({GPU: 1, "cpu": 0}), cpus)
    assert not grown(waits({})), "what it takes is not known"


def test_who_waits_in_a_stopped_queue_keeps_nobody_small():
    assert grown(waits({GPU: 1}, stopped=True))
    there = replace(scene.queue("there", cohort="c"), stopped=True)
    here, other = scene.queue(cohort="c"), replace(waits({GPU: 1}), queue="there")
    seen = scene.snapshot(scene.job(count=1, wanted=2), queues=(here, there), others=(other,))
    assert free.waiting(seen, here) == [] and regrow.propose(seen, True, 10.0) != []


def test_nobody_gives_way_to_who_waits_in_a_stopped_queue():
    ahead, behind = scene.job("ahead", priority=100, priority_class="basic"), scene.waiting("behind")
    behind = replace(behind, priority_class="basic", created=NOW - 900)
    tiers = {"basic": 0.2}
    assert [p.job[1] for p in sla_tiers.propose(scene.snapshot(ahead, behind), tiers, 1000.0, 60.0)] == ["ahead"]
    assert behind.workload is not None
    behind = replace(behind, workload=replace(behind.workload, stopped=True))
    assert sla_tiers.propose(scene.snapshot(ahead, behind), tiers, 1000.0, 60.0) == []


@pytest.mark.parametrize(
    ("spec", "active", "expected"),
    [
        ({}, None, False), ({"stopPolicy": "None"}, "True", False), ({"stopPolicy": "Hold"}, "True", True),
        ({"stopPolicy": "HoldAndDrain"}, None, True), ({}, "False", True), ({}, "Unknown", False),
    ],
)  # fmt: skip
def test_a_cluster_queue_is_stopped_by_its_policy_or_because_it_is_not_active(spec, active, expected):
    conditions = [{"type": "Active", "status": active}] if active else []
    raw = {"metadata": {"name": "training"}, "spec": spec, "status": {"conditions": conditions}}
    assert read_queue(raw).stopped is expected
