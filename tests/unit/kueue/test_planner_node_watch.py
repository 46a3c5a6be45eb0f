"""A node that is about to go is acted on at once: by a watch, and not at the planner's next look at nodes."""

from __future__ import annotations

from typing import Any

import pytest
from test_planner_rounds import Stage
from waits import until

from kueue_integration.controller.hold import Settings
from kueue_integration.controller.machines import nodes as machines
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
    conditions = [{"type": "Ready", "status": ready}, {"type": "DiskPressure", "status": "False"}]
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec,
            "status": {"conditions": conditions}}  # fmt: skip


def test_only_a_new_reason_is_told() -> None:
    hurried: list[int] = []
    watch = NodeWatch(Cordon(mode="act"), lambda: hurried.append(1))
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
    assert watch._reasons == {}


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
    stage.world.stop()


@pytest.mark.parametrize("mode", ["act", "propose"])
def test_a_change_of_a_node_hurries_the_planner_that_acts_on_it(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "IDLE_S", 0.0)
    kube = FakeKube(node())
    planner = PlannerSettings(cordon=Cordon(mode=mode))
    reconciler = Reconciler(kube, Settings(regrow="none", planner=planner), Metrics())
    nodes = reconciler.world.nodes
    try:
        assert [n["metadata"]["name"] for n in nodes.all()] == ["n1"]
        reconciler.everything()
        assert nodes.followed is (mode == "act"), "who acts on nodes goes on following them"
        while reconciler.plans.get(0.5) is not None:
            pass
        nodes.all()
        kube.patch(NODE, None, "n1", {"spec": {"taints": [SPOT]}})
        until(lambda: any(n["spec"].get("taints") for n in nodes.all()))
        if mode == "act":
            until(lambda: reconciler._rounds._hurried and reconciler.plans.due() == 1)
        else:
            assert not reconciler._rounds._hurried
    finally:
        nodes.stop()
