"""Policies lending and defragmentation on a real Kueue: quota that comes and goes by resizes, and a rack made free.

Nothing is measured yet when these jobs begin, so a move counts as 120 device-seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from faults import Faults
from rows import CPU, Rows
from test_e2e_placement import HALL, HOST, RACK, RACKS, does_not_fit, kueue, label_node, most_of_a_node, racks

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import EVENT, RESOURCE_FLAVOR, TOPOLOGY, is_true, selector
from kueue_integration.planner.policies import defragmentation, lending, returns
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
SOON = {"planner__everySeconds": 1, "planner__limits__minRunSeconds": 0, "planner__limits__movesPerHour": 100}
USUAL = {
    "planner__everySeconds": 30, "planner__limits__minRunSeconds": 300, "planner__limits__movesPerHour": 4,
    "planner__lending__mode": "none", "planner__defragmentation__mode": "none",
}  # fmt: skip
TIMEOUT_S = 600.0


@pytest.fixture
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "lending", say)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def faults(rows: Rows) -> Iterator[Faults]:
    made = Faults(rows.stage, rows.namespace)
    yield made
    for node in RACKS:
        made.kubectl("uncordon", node)
    made.upgrade(**USUAL)


@pytest.fixture
def racked(rows: Rows) -> Iterator[str]:
    """A flavor with a topology: only rack b has two nodes."""
    for node, rack in RACKS.items():
        label_node(rows, node, {HALL: "one", RACK: rack})
    levels = [{"nodeLabel": label} for label in (HALL, RACK, HOST)]
    rows.make(kueue(TOPOLOGY.name, "e2e-racks", {"levels": levels}))
    flavor = {"nodeLabels": {HALL: "one"}, "topologyName": "e2e-racks"}
    rows.make(kueue(RESOURCE_FLAVOR.name, "e2e-racked", flavor))
    yield "e2e-racked"
    for node in RACKS:
        label_node(rows, node, {HALL: None, RACK: None})


def told(rows: Rows, policy: str, reason: str) -> str:
    """The message of the planner's first Event of that policy and reason, waited for."""

    def first() -> str | None:
        events = rows.kube.list(EVENT, rows.namespace, selector({job_names.LABEL_PLANNER: policy}))
        return next((str(event["message"]) for event in events if event["reason"] == reason), None)

    return wait_for(first, f"an Event {reason} of {policy}", TIMEOUT_S)


def test_spare_quota_is_lent_and_comes_back_when_its_owner_waits(rows: Rows, faults: Faults) -> None:
    for name in ("borrower", "owner"):
        rows.queue(name, {"ondemand": CPU}, cohort="lending")
    elastic = rows.train("elastic", "borrower", workers=1, min_workers=1, world_size=2)
    elastic.until_steps()

    rows.say("--> a dry run says what it would do; then the job grows into the quota of the other queue")
    faults.upgrade(**SOON, planner__lending__mode="propose")
    assert "1 -> 2 workers on borrowed cpu" in told(rows, lending.NAME, "PlannerProposal")
    status = elastic.look()
    assert (status.attempt, status.requests) == (1, []), status
    faults.upgrade(planner__lending__mode="act")
    elastic.until_attempt(2)
    ended = elastic.until_ended(1)
    assert (ended.ended_by, ended.checkpoint is not None) == ("Resized", True), ended
    assert elastic.look().attempts[1].pods == 2

    rows.say("--> without the policy the owner of the quota waits: Kueue takes nothing back in this cohort")
    faults.upgrade(planner__lending__mode="propose")
    mine = rows.train("mine", "owner")
    assert "elastic: 2 -> 1 workers" in told(rows, returns.NAME, "PlannerProposal")
    assert not is_true(rows.workload("mine"), "QuotaReserved")

    rows.say("--> with it the borrower shrinks, and goes on beside the owner")
    faults.upgrade(planner__lending__mode="act")
    mine.until_attempt(1)
    status = elastic.until_attempt(3)
    assert [record.pods for record in status.attempts] == [1, 2, 1]
    back = status.attempts[1]
    assert (back.ended_by, back.checkpoint is not None) == ("Resized", True), back
    assert back.note and "policy/lendingReturn: 2 -> 1 workers" in back.note, back
    faults.upgrade(planner__lending__mode="none")
    for job in (mine, elastic):
        job.assert_exact(job.finish())


def test_a_small_job_leaves_the_rack_that_a_larger_one_needs(rows: Rows, faults: Faults, racked: str) -> None:
    cpu = f"{most_of_a_node(rows)}m"
    rows.queue("racks", {racked: f"{3 * most_of_a_node(rows)}m"})
    for node in ("ondemand-0", "spot-0"):
        faults.kubectl("cordon", node)  # so that it starts in rack b
    small = rows.train("small", "racks", cpu=cpu)
    small.until_steps()
    assert racks(small) == ["b"]
    for node in ("ondemand-0", "spot-0"):
        faults.kubectl("uncordon", node)

    rows.say("--> quota and nodes are free for two more pods, but not in one rack: the pair waits")
    pair = rows.train("pair", "racks", workers=2, cpu=cpu, topology={"required": RACK})
    wait_for(lambda: does_not_fit(rows, "pair"), "Kueue finds no rack for pair", TIMEOUT_S)
    faults.upgrade(**SOON, planner__defragmentation__mode="propose")
    assert "makes room in rack b for job-pair" in told(rows, defragmentation.NAME, "PlannerProposal")
    assert does_not_fit(rows, "pair") and small.look().attempt == 1

    rows.say("--> the policy acts: the small one is saved and moves to the other rack")
    faults.upgrade(planner__defragmentation__mode="act")
    pair.until_attempt(1)
    status = small.until_attempt(2)
    assert (racks(pair), racks(small)) == (["b", "b"], ["a"])
    first = status.attempts[0]
    assert (first.ended_by, first.checkpoint is not None) == ("Migrated", True), first
    assert first.note and "policy/defragmentation: makes room in rack b" in first.note, first
    for job in (pair, small):
        job.assert_exact(job.finish())
