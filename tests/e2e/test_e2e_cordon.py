"""The planner's policy cordon: a node that somebody cordons is left by itself, and no step is lost."""

from __future__ import annotations

import pytest
from faults import Faults
from planning import LIMITS, SOON, told
from rows import Rows, places

from kueue_integration.requests import placement
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1200)]
NAMESPACE = "cordon"
NODES = ("ondemand-0", "ondemand-1")
USUAL = {**LIMITS, "planner__cordon__mode": "none"}


def test_a_cordoned_node_is_left_with_a_checkpoint(rows: Rows, faults: Faults) -> None:
    leaves, refuge = NODES
    rows.queue("cordon", {"ondemand": "100m"})
    faults.kubectl("cordon", refuge)  # so that both pods start on the other node
    job = rows.train("pair", "cordon", workers=2)
    job.until_steps()
    assert places(job) == {leaves}
    faults.kubectl("uncordon", refuge)

    rows.say("--> a dry run says what it would do, and does nothing")
    faults.upgrade(**SOON, planner__cordon__mode="propose")
    faults.kubectl("cordon", leaves)
    wait_for(lambda: told(rows, "cordon", "PlannerProposal") or None, "a proposal in an Event", 120)
    assert f"node {leaves} is cordoned" in told(rows, "cordon", "PlannerProposal")[0]
    status = job.look()
    assert (status.attempt, status.requests, places(job)) == (1, [], {leaves}), status

    rows.say("--> the policy acts: saved, moved, and free again")
    faults.upgrade(planner__cordon__mode="act")
    status = job.until_attempt(2)
    assert places(job) == {refuge}
    first = status.attempts[0]
    assert (first.ended_by, first.checkpoint is not None) == ("Migrated", True), first
    assert first.note and f"policy/cordon: node {leaves} is cordoned" in first.note, first
    assert any("migrate" in message for message in told(rows, "cordon", "PlannerAction"))
    wait_for(lambda: placement.of(job.job()) == placement.ANYWHERE, "no node is avoided any more", 120)
    job.assert_exact(job.finish())
