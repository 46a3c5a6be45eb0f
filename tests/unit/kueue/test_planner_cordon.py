"""The policy cordon: which nodes are left, by whom, and what comes first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import planner_scene as scene
import pytest
import yaml
from planner_scene import NOW

from kueue_integration.controller.planning import selection
from kueue_integration.drain import nodes
from kueue_integration.planner import policies
from kueue_integration.planner.arbiter import Arbiter
from kueue_integration.planner.job import Request
from kueue_integration.planner.policies import cordon
from kueue_integration.planner.settings import ENDING, Cordon, PlannerSettings

LEAVES = {"n1": "is cordoned", "n2": ""}


def saved(state: str = "done", by: str = "policy/cordon: saved first", attempt: int = 1, ago: float = 5) -> Request:
    return Request("checkpoint", by, state, attempt, NOW - ago)


def test_a_job_is_saved_while_it_goes_on_and_then_asked_to_leave():
    (first,) = cordon.propose(scene.snapshot(scene.job(), nodes=LEAVES))
    assert (first.action, first.reason) == ("checkpoint", "node n1 is cordoned")
    (then,) = cordon.propose(scene.snapshot(scene.job(save=saved()), nodes=LEAVES))
    assert (then.action, then.nodes, then.reason) == ("migrate", ("n1",), "node n1 is cordoned")


@pytest.mark.parametrize(
    "save", [saved("failed"), saved(by="ann"), saved(attempt=9), saved(ago=601), saved("running")],
    ids=["failed", "of a user", "of another attempt", "old", "under way"],
)  # fmt: skip
def test_only_a_fresh_save_of_its_own_counts(save):
    (proposal,) = cordon.propose(scene.snapshot(scene.job(save=save), nodes=LEAVES))
    assert proposal.action == "checkpoint"


def test_jobs_elsewhere_and_jobs_without_quota_are_left_alone():
    elsewhere = scene.job("else", nodes=frozenset({"n2"}))
    assert cordon.propose(scene.snapshot(elsewhere, scene.waiting(), nodes=LEAVES)) == []
    assert cordon.propose(scene.snapshot(scene.job())) == []


def test_high_priority_goes_first():
    jobs = [scene.job("low", priority=1), scene.job("high", priority=100)]
    assert [p.job[1] for p in cordon.propose(scene.snapshot(*jobs, nodes=LEAVES))] == ["high"]


def test_one_save_of_a_cohort_waits_for_its_move():
    jobs = [scene.job("a", save=saved()), scene.job("b"), scene.job("c", queue_name="other")]
    queues = (scene.queue(), scene.queue("other"))
    found = cordon.propose(scene.snapshot(*jobs, queues=queues, nodes=LEAVES))
    assert [(p.action, p.job[1]) for p in found] == [("migrate", "a"), ("checkpoint", "c")]


def test_a_job_that_cannot_be_saved_lets_the_next_one_try():
    stuck = scene.job("a", save=saved("failed", ago=300), priority=100)
    (proposal,) = cordon.propose(scene.snapshot(stuck, scene.job("b"), nodes=LEAVES))
    assert (proposal.action, proposal.job[1]) == ("checkpoint", "b")


@pytest.mark.parametrize(
    "stuck",
    [
        scene.job("a", priority=100, change=Request("resize", "ann", "running", 1, NOW - 900), wanted=4),
        scene.job("a", priority=100, save=saved("running", by="ann")),
        scene.job("a", priority=100, whole=False),
        scene.job("a", priority=100, runs_since=None),
    ],
    ids=["waits for more workers", "is being saved", "lacks a pod", "has not started"],
)
def test_a_job_that_cannot_go_now_keeps_nobody_else_on_the_node(stuck):
    """A wish for more workers may be under way for days: the arbiter refuses every move beside it."""
    found = cordon.propose(scene.snapshot(stuck, scene.job("b"), nodes=LEAVES))
    assert ("checkpoint", "b") in {(p.action, p.job[1]) for p in found}


def test_a_job_in_a_stopped_queue_is_not_saved_and_keeps_nobody_else_on_the_node():
    stopped = scene.job("a", priority=100)
    stopped = replace(stopped, workload=replace(stopped.workload, stopped=True))
    found = cordon.propose(scene.snapshot(stopped, scene.job("b"), nodes=LEAVES))
    assert {(p.action, p.job[1]) for p in found} == {("migrate", "a"), ("checkpoint", "b")}


def test_a_job_whose_hold_is_off_is_not_saved_in_vain():
    """The arbiter refuses its move, and says why."""
    off, on = scene.job("off", held=False), scene.job("on")
    found = cordon.propose(scene.snapshot(off, on, nodes=LEAVES))
    assert {(p.action, p.job[1]) for p in found} == {("migrate", "off"), ("checkpoint", "on")}


def test_what_is_at_risk_is_the_work_since_the_newest_checkpoint():
    job = scene.job(since=NOW - 900, history=(scene.moved(1, 4000, save=10, restore=20),))
    assert cordon.at_risk(job, NOW) == pytest.approx(2 * (900 + 30))
    assert cordon.at_risk(replace(job, saved_at=NOW - 100), NOW) == pytest.approx(2 * (100 + 30))
    assert cordon.at_risk(replace(job, saved_at=NOW - 5000), NOW) == pytest.approx(2 * (900 + 30))


def node(ready: str = "True", conditions: tuple[str, ...] = (), **spec: Any) -> Any:
    told = [{"type": "Ready", "status": ready}, *({"type": name, "status": "True"} for name in conditions)]
    return {"metadata": {"name": "n1"}, "spec": spec, "status": {"conditions": told}}


def taint(key: str, effect: str = "NoExecute") -> Any:
    return {"taints": [{"key": key, "effect": effect}]}


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (node(), ""),
        (node(unschedulable=True), "is cordoned"),
        (node(**taint("maintenance")), "has the taint maintenance (NoExecute)"),
        (node(**taint("gpu", "NoSchedule")), ""),
        (node(conditions=("GpuUnhealthy",)), "reports GpuUnhealthy"),
        (node(conditions=("Other",)), ""),
        (node("False", unschedulable=True), ""),  # nothing can be saved there any more
        (node("Unknown", unschedulable=True), ""),
        (node(unschedulable=True, **taint("node.kubernetes.io/unreachable")), ""),
    ],
)
def test_which_nodes_are_to_be_left(of, why):
    assert nodes.leaving(of, ["GpuUnhealthy"]) == why


def tainted(*keys: str, effect: str = "NoSchedule", ready: str = "True") -> dict[str, Any]:
    taints = [{"key": key, "effect": effect} for key in keys]
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": "n1"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}


@pytest.mark.parametrize("key", ENDING)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "PreferNoSchedule"])
def test_a_node_that_a_cloud_takes_away_is_about_to_go(key, effect):
    assert nodes.ending(tainted("mine", key, effect=effect), ENDING) == f"is about to go (taint {key})"


@pytest.mark.parametrize(
    "of", [tainted("mine"), tainted(ENDING[0], ready="False"), tainted(ENDING[0], nodes.NOT_THERE[0])],
    ids=["another taint", "not ready", "does not answer"],
)  # fmt: skip
def test_a_node_that_stays_or_is_gone_is_not_about_to_go(of):
    assert nodes.ending(of, ENDING) == ""


def ending_snapshot(*jobs):
    made = scene.snapshot(*jobs, nodes=LEAVES)
    return replace(made, nodes={**made.nodes, "n1": replace(made.nodes["n1"], ending=True)})


def ruled(seen):
    settings = PlannerSettings(cordon=Cordon("act"))
    chosen = selection.chosen(settings, "act")
    found = policies.ask(chosen, seen, lambda *told: None)
    return Arbiter(selection.terms(settings, chosen)).rule(seen, found, 1e6)


def test_all_jobs_leave_a_node_that_is_about_to_go_at_once_without_a_save_before():
    rulings = ruled(ending_snapshot(scene.job("a"), scene.job("b"), scene.job("c", save=saved("failed"))))
    assert [(r.proposal.action, r.proposal.job[1], r.allowed) for r in rulings] == [
        ("migrate", "a", True), ("migrate", "b", True), ("migrate", "c", True),
    ]  # fmt: skip


def test_a_cordoned_node_is_left_one_job_at_a_time():
    rulings = ruled(scene.snapshot(scene.job("a", save=saved()), scene.job("b", save=saved()), nodes=LEAVES))
    assert [r.allowed for r in rulings] == [True, False]


def test_a_node_that_goes_waits_for_no_budget_of_optimisers():
    """It had moved often, has just started, and its namespace's moves were used up: it stayed, and was lost."""
    gone = [scene.job(f"m{n:02d}", history=(scene.moved(1, ago=600 + n),), nodes=frozenset({"n2"}), queue_name=f"q{n}")
            for n in range(25)]  # fmt: skip
    moves = tuple(scene.moved(k, ago=3000 - 600 * k) for k in range(1, 5))
    last = scene.job("last", save=saved(attempt=5), history=moves, since=NOW - 100, queue_name="qx")
    queues = (*(scene.queue(f"q{n}") for n in range(25)), scene.queue("qx"))
    (ruling,) = ruled(scene.snapshot(last, *gone, queues=queues, nodes=LEAVES))
    assert (ruling.proposal.action, ruling.allowed) == ("migrate", True), ruling


def test_the_chart_names_the_same_taints():
    values = yaml.safe_load((Path(__file__).parents[3] / "charts/singularity/values.yaml").read_text())
    assert tuple(values["planner"]["cordon"]["taints"]) == ENDING
