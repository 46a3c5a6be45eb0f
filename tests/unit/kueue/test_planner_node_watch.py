"""A node that is about to go is acted on at once: by a watch, and not at the planner's next look at nodes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from test_planner_rounds import Stage, until

from kueue_integration.controller.hold import Settings
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.planning.node_watch import NodeWatch
from kueue_integration.controller.reconciler import Reconciler
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import NODE
from kueue_integration.planner.settings import Cordon, PlannerSettings
from kueue_integration.requests import user_requests

SPOT = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule", "value": "x"}
ACTS = PlannerSettings(cordon=Cordon(mode="act"))


def node(name: str = "n1", ready: str = "True", **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "message": "m" * 99}, {"type": "DiskPressure", "status": "False"}]
    status = {"conditions": conditions, "images": [{"names": ["i" * 99]}]}
    meta = {"name": name, "labels": {"a": "b"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status}


@pytest.fixture
def told() -> tuple[NodeWatch, list[int]]:
    hurried: list[int] = []
    return NodeWatch(FakeKube(), Cordon(mode="act"), lambda: hurried.append(1)), hurried


def test_only_a_new_reason_is_told(told: tuple[NodeWatch, list[int]]) -> None:
    watch, hurried = told
    steps = [
        (node(), 0), (node(taints=[SPOT]), 1), (node(taints=[SPOT]), 1), (node(taints=[SPOT], unschedulable=True), 1),
        (node(unschedulable=True), 2), (node(), 2), (node(unschedulable=True), 3), (node(ready="False"), 3),
        (node("n2", taints=[{"key": "mine", "effect": "NoSchedule"}]), 3),
        (node("n2", taints=[{"key": "mine", "effect": "NoExecute"}]), 4),
    ]  # fmt: skip
    for number, (seen, count) in enumerate(steps):
        watch.changed(seen, False)
        assert len(hurried) == count, number
    watch.changed(node("n2"), True)
    assert watch._said == {}


def test_of_a_node_little_is_kept_and_the_answer_is_the_same(told: tuple[NodeWatch, list[int]]) -> None:
    watch, hurried = told
    kept = watch._kept(node(taints=[SPOT]))
    assert len(str(kept)) < 400 < len(str(node(taints=[SPOT])))
    watch.changed(kept, False)
    assert hurried == [1]


def test_the_next_plan_looks_at_nodes_and_saves_once() -> None:
    stage = Stage(ACTS)
    stage.kube.patch(NODE, None, "n1", {"spec": {"unschedulable": None}})
    stage.round()  # all is well
    stage.kube.patch(NODE, None, "n1", {"spec": {"taints": [SPOT]}})
    stage.round(seconds=1)
    assert user_requests.asked(stage.job(), user_requests.CHANGE) is None, "nodes are looked at every 30 s"
    stage.rounds.hurry()
    stage.round(seconds=1)
    asked = user_requests.asked(stage.job(), user_requests.CHANGE)
    assert asked is not None and asked.op == "migrate" and asked.node == "n1"
    assert user_requests.asked(stage.job(), user_requests.CHECKPOINT) is None, "one save, not two"


def test_a_watch_of_the_api_server_hurries_the_planner() -> None:
    kube = FakeKube(node())
    reconciler = Reconciler(kube, Settings(regrow="none", planner=ACTS), Metrics())
    (watch,) = reconciler._nodes
    reconciler.plans.get(0.0)
    watch.informer.start()
    try:
        assert watch.informer.synced.wait(10)
        began = time.monotonic()
        kube.patch(NODE, None, "n1", {"spec": {"taints": [SPOT]}})
        until(lambda: reconciler.plans.due() == 1 and reconciler._rounds._hurried)
        assert time.monotonic() - began < 5
    finally:
        watch.informer.stop()


def test_without_the_policy_nobody_watches_nodes() -> None:
    assert Reconciler(FakeKube(), Settings(), Metrics())._nodes == []
    dry = PlannerSettings(cordon=Cordon(mode="propose"))
    assert Reconciler(FakeKube(), Settings(planner=dry), Metrics())._nodes == []


