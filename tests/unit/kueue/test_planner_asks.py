"""What a Workload that waits asks for, of a queue that counts pods or devices that pods claim."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import controller_scene as controller
import planner_scene as scene
import pytest

from kueue_integration.controller.planning.look import read_workload
from kueue_integration.planner import free, quota
from kueue_integration.planner.model import Queue
from kueue_integration.planner.policies import returns

CHIPS = "whole-chips"


def waits(claims: bool) -> Any:
    """Two pods wait in `owner`, each with 250m and, by a claim, four chips."""
    made = controller.workload(
        "job-big", reserved_at=None, state=None, count=2, wanted=2, owner="big", uid="uid-big", request="250m",
        queue="q-owner",
    )  # fmt: skip
    if claims:
        made["spec"]["podSets"][0]["template"]["spec"]["resourceClaims"] = [{"name": "chips"}]
        made["status"]["resourceRequests"] = [{"name": "main", "resources": {"cpu": "500m", CHIPS: "8"}}]
    return made


def queue(name: str, resource: str, amount: int) -> Queue:
    nominal = {("a100", "cpu"): Fraction(8), ("a100", resource): Fraction(amount)}
    return Queue(name, "c", [quota.Group(["cpu", resource], ["a100"], nominal)])


@pytest.mark.parametrize(("resource", "amount"), [("pods", 2), (CHIPS, 8)])
def test_what_only_kueue_counts_is_waited_for_and_comes_back(resource: str, amount: int):
    """The quota of the owner is lent to a job of two pods, all of it."""
    workload = read_workload(waits(resource == CHIPS), "owner")
    assert (workload.asks["cpu"], workload.asks[resource]) == (Fraction(1, 2), amount)
    used = {("a100", "cpu"): Fraction(1), ("a100", resource): Fraction(amount)}
    borrower = scene.job(queue_name="guest")
    given = scene.Given(2, "a100", {"cpu": "a100", resource: "a100"}, {r: n for (_, r), n in used.items()})
    borrower = scene.replace(borrower, given=given, workload=scene.replace(borrower.workload, holds=used))
    seen = scene.snapshot(
        borrower, queues=(queue("owner", resource, amount), queue("guest", resource, 0)), others=(workload,)
    )
    assert not returns.propose(seen, 1800.0)  # with one worker fewer it would still not be enough
    small = scene.replace(seen, queues={**seen.queues, "guest": queue("guest", resource, amount // 2)})
    (back,) = returns.propose(small, 1800.0)
    assert (back.action, back.workers) == ("resize", 1)


def test_pods_are_no_resource_that_another_queue_could_miss():
    workload = read_workload(waits(False), "owner")
    plain = Queue("owner", "", [quota.Group(["cpu"], ["a100"], {("a100", "cpu"): Fraction(8)})])
    seen = scene.snapshot(queues=(plain, queue("guest", "pods", 2)), others=(workload,))
    assert free.servable(seen, workload)
