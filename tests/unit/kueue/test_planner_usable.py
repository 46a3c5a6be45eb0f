"""Nodes that take no pods: quota that only they would serve is not free for a job that runs elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import controller_scene as controller
import planner_scene as scene
import pytest
from controller_scene import T0
from planner_scene import GPU
from test_planner_introspection import PRICES, ran
from test_planner_introspection import job as priced
from test_planner_rounds import Stage
from test_planner_sharing import measured
from test_verbs_ask import node as bare
from test_verbs_ask import queue
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.controller.planning.usable import held_by
from kueue_integration.errors import Forbidden
from kueue_integration.kube.resources import NODE
from kueue_integration.planner.job import Given, Job
from kueue_integration.planner.policies import introspection, lending, marginal_gain, regrow
from kueue_integration.planner.settings import Cordon, Introspection, PlannerSettings


# --- what nodes can hold --------------------------------------------------------------------------------------------
def node(name: str = "n1", gpus: int = 4, **how: Any) -> Any:
    made = bare(name, "a100", **how)
    made["status"]["allocatable"] = {GPU: str(gpus), "cpu": "8"}
    return made


def nobody(_: Any) -> bool:
    return False


def test_only_nodes_that_take_pods_count_once_one_does_not():
    assert held_by([node("n1"), node("n2")], nobody) is None
    assert held_by([], nobody) is None  # it may be scaled to none
    marked = node("n1")
    marked["spec"]["taints"] = [{"key": job_names.TAINT_UNHEALTHY, "effect": "NoSchedule"}]
    for out in node("n1", cordoned=True), node("n1", ready=False), marked:
        assert held_by([out, node("n2", gpus=2)], nobody) == {GPU: Fraction(2), "cpu": Fraction(8)}
        assert held_by([out], nobody) == {GPU: Fraction(0), "cpu": Fraction(0)}
    assert held_by([node("n1"), node("n2", gpus=2)], lambda n: n["metadata"]["name"] == "n1") == {GPU: 2, "cpu": 8}


# --- policies -------------------------------------------------------------------------------------------------------
def moved_away() -> Job:
    """It has left `a100`, the first flavor of its queue, for `t4`."""
    found = scene.job(wanted=2)
    assert found.workload is not None
    workload = replace(found.workload, holds={("t4", GPU): Fraction(2)})
    return replace(found, workload=workload, given=Given(2, "t4", {GPU: "t4"}, {GPU: Fraction(2)}))


FAST = measured("fast", one_s=2.0, two_s=1.0)


@pytest.mark.parametrize(
    ("policy", "job", "flavor", "devices"),
    [
        (lambda seen: regrow.propose(seen, True, 0.0), moved_away(), "a100", 2),
        (lambda seen: regrow.propose(seen, True, 0.0), scene.job(wanted=4), "a100", 4),
        (marginal_gain.propose, FAST, "a100", 4),
        (lambda seen: lending.propose(seen, 1800.0), scene.job(), "a100", 4),
        (lambda seen: introspection.propose(seen, PRICES, Introspection("act")), priced(ran(1, "t4", 1.0)), "t4", 2),
    ],
    ids=["regrowth to another flavor", "regrowth", "marginal gain", "lending", "introspection"],
)
def test_no_job_is_sent_where_no_node_would_take_it(policy: Any, job: Job, flavor: str, devices: int):
    """`devices` on nodes that take pods are enough for what the job would have there."""
    seen = scene.snapshot(job, queues=(scene.queue(flavors=("a100", "t4")),))
    for there, found in (None, True), (devices, True), (devices - 1, False), (0, False):
        usable = {} if there is None else {flavor: {GPU: Fraction(there)}}
        assert bool(policy(replace(seen, usable=usable))) is found, there


# --- rounds ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A job on `spot`, where quota of `ondemand` is free. All nodes of `ondemand` are cordoned."""
    made = Stage(PlannerSettings())
    flavors = queue("ondemand", "spot")
    for each in flavors["spec"]["resourceGroups"][0]["flavors"]:
        each["resources"] = [{"name": "cpu", "nominalQuota": "1"}]
    made.kube.put(flavors)
    made.kube.put(controller.workload(state="Ready", admitted=True, flavor="spot", cpu="500m", count=2, wanted=2))
    for name in "n1", "n2":
        cordon(made, name, True)
    until(lambda: "resources" in str(made.world.cluster_queues.get("", "training")))
    performed: list[Any] = []
    monkeypatch.setattr(made, "_never", lambda action, *_: performed.append(action))
    made.performed = performed  # type: ignore[attr-defined]
    made.settings = replace(made.settings, regrow="act", regrow_min_run_s=10.0)
    made.rounds = made.again()
    yield made
    made.world.stop()


def cordon(play: Stage, name: str, on: bool) -> None:
    found = node(name, cordoned=on)
    found["metadata"]["labels"]["flavor"] = "ondemand"
    play.kube.put(found)


def test_regrowth_does_not_bring_a_job_back_to_the_nodes_that_were_drained(play: Any):
    """The drain lets it go everywhere again, and the quota of its nodes is free."""
    assert min(play.round()) <= 20  # nothing tells us of the end of a cordon
    assert play.performed == []
    cordon(play, "n2", False)
    play.round()
    (action,) = play.performed
    assert action.message.endswith("quota is free again: 2 -> 2 workers on ondemand")


@pytest.mark.parametrize("mode", ["act", "none"])
def test_nor_to_nodes_that_a_policy_sends_jobs_away_from(play: Any, mode: Any):
    """It would be sent away again."""
    for name in "n1", "n2":
        sick = node(name)
        sick["metadata"]["labels"]["flavor"] = "ondemand"
        sick["status"]["conditions"].append({"type": "GpuUnhealthy", "status": "True"})
        play.kube.put(sick)
    play.settings = replace(play.settings, planner=PlannerSettings(cordon=Cordon(mode, ["GpuUnhealthy"])))
    play.rounds = play.again()
    play.round()
    assert bool(play.performed) is (mode == "none")


def test_where_nodes_cannot_be_seen_quotas_alone_count(play: Any):
    play.kube.fail_next("list", NODE, Forbidden("nodes", 403, "Forbidden"))
    play.round()
    assert len(play.performed) == 1
    assert play.metrics.value("singularity_planner_policy_errors_total", "regrow") == 1


def test_nodes_are_listed_only_for_a_job_that_would_move(play: Any):
    play.kube.requests.clear()
    play.now = T0 + 21 - 31  # it has not trained for long enough
    play.round()
    assert not [r for r in play.kube.requests if r[1] == NODE.name]
