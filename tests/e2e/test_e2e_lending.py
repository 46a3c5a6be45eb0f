"""Policies lending and defragmentation on a real Kueue: quota that comes and goes by resizes, and a rack made free.

Nothing is measured yet when these jobs begin, so a move counts as 120 device-seconds.
"""

from __future__ import annotations

import pytest
from faults import Faults
from node_racks import RACK, most_of_a_node, racks, waits_for
from planning import LIMITS, SOON, first_told
from rows import CPU, TIMEOUT_S, Rows

from kueue_integration.kube.resources import is_true
from kueue_integration.planner.policies import defragmentation, lending, returns
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "lending"
USUAL = {**LIMITS, "planner__lending__mode": "none", "planner__defragmentation__mode": "none"}


def test_spare_quota_is_lent_and_comes_back_when_its_owner_waits(rows: Rows, faults: Faults) -> None:
    for name in ("borrower", "owner"):
        rows.queue(name, {"ondemand": CPU}, cohort="lending")
    elastic = rows.train("elastic", "borrower", workers=1, min_workers=1, world_size=2)
    elastic.until_steps()

    rows.say("--> a dry run says what it would do; then the job grows into the quota of the other queue")
    faults.upgrade(**SOON, planner__lending__mode="propose")
    assert "1 -> 2 workers on borrowed cpu" in first_told(rows, lending.NAME, "PlannerProposal")
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
    assert "elastic: 2 -> 1 workers" in first_told(rows, returns.NAME, "PlannerProposal")
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
    wait_for(lambda: waits_for(rows, "pair", racked), "Kueue finds no rack for pair", TIMEOUT_S)
    faults.upgrade(**SOON, planner__defragmentation__mode="propose")
    assert "makes room in rack b for job-pair" in first_told(rows, defragmentation.NAME, "PlannerProposal")
    assert waits_for(rows, "pair", racked) and small.look().attempt == 1

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
