"""The planner's policy cordon: a node that somebody cordons is left by itself, and no step is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from faults import Faults
from rows import Rows, places

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import EVENT, selector
from kueue_integration.requests import placement
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
NODES = ("ondemand-0", "ondemand-1")
SOON = {"planner__everySeconds": 1, "planner__limits__minRunSeconds": 0}
USUAL = {"planner__everySeconds": 30, "planner__limits__minRunSeconds": 300, "planner__cordon__mode": "none"}


@pytest.fixture
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "cordon", say)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def faults(rows: Rows) -> Iterator[Faults]:
    made = Faults(rows.stage, rows.namespace)
    yield made
    for node in NODES:
        made.kubectl("uncordon", node)
    made.upgrade(**USUAL)


def told(rows: Rows, reason: str) -> list[str]:
    """Messages of the planner's Events."""
    events = rows.kube.list(EVENT, rows.namespace, selector({job_names.LABEL_PLANNER: "cordon"}))
    return [str(event["message"]) for event in events if event["reason"] == reason]


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
    wait_for(lambda: told(rows, "PlannerProposal") or None, "a proposal in an Event", 120)
    assert f"node {leaves} is cordoned" in told(rows, "PlannerProposal")[0]
    status = job.look()
    assert (status.attempt, status.requests, places(job)) == (1, [], {leaves}), status

    rows.say("--> the policy acts: saved, moved, and free again")
    faults.upgrade(planner__cordon__mode="act")
    status = job.until_attempt(2)
    assert places(job) == {refuge}
    first = status.attempts[0]
    assert (first.ended_by, first.checkpoint is not None) == ("Migrated", True), first
    assert first.note and f"policy/cordon: node {leaves} is cordoned" in first.note, first
    assert any("migrate" in message for message in told(rows, "PlannerAction"))
    wait_for(lambda: placement.of(job.job()) == placement.ANYWHERE, "no node is avoided any more", 120)
    job.assert_exact(job.finish())
