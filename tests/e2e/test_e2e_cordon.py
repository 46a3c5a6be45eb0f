"""The planner's policy cordon: a node that is cordoned, drained or taken away is left, and no step is lost."""

from __future__ import annotations

import time

import pytest
from faults import Faults
from planning import LIMITS, SOON, told
from rows import TIMEOUT_S, Rows, Training, places

from kueue_integration.drain.look import at_work, node_of
from kueue_integration.kube.resources import DISRUPTION_BUDGET, Object
from kueue_integration.planner.settings import ENDING
from kueue_integration.requests import placement
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "cordon"
NODES = ("ondemand-0", "ondemand-1")
USUAL = {**LIMITS, "planner__cordon__mode": "none"}
NOTICE_S = 30.0
"""That a cloud gives before it takes a spot machine away."""
STATE_MIB = 1024


def started(rows: Rows, faults: Faults, name: str, workers: int, ballast: int = 0) -> Training:
    """A job all of whose pods are on the first node."""
    leaves, refuge = NODES
    rows.queue(name, {"ondemand": "100m"})
    faults.kubectl("cordon", refuge)
    job = rows.train(name, name, workers=workers, ballast=ballast)
    job.until_steps()
    assert places(job) == {leaves}
    faults.kubectl("uncordon", refuge)
    return job


def budgets(rows: Rows) -> list[Object]:
    return rows.kube.list(DISRUPTION_BUDGET, rows.namespace)


def test_a_drain_waits_until_the_job_has_left(rows: Rows, faults: Faults) -> None:
    """kubectl evicts the pods: the Eviction API refuses that until they are saved and gone."""
    leaves, refuge = NODES
    job = started(rows, faults, "drained", 2)
    faults.upgrade(planner__cordon__mode="act")
    wait_for(lambda: [b for b in budgets(rows) if b.get("status", {}).get("currentHealthy") == 2], "a budget", 120)
    rows.say("--> kubectl drain")
    selector = f"--pod-selector=batch.kubernetes.io/job-name={job.name}"
    out = faults.kubectl("drain", leaves, selector, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=10m")
    rows.say(out)
    status = job.until_attempt(2)
    assert places(job) == {refuge}
    first = status.attempts[0]
    assert (first.ended_by, first.checkpoint is not None) == ("Migrated", True), first
    job.assert_exact(job.finish())
    wait_for(lambda: not budgets(rows), "a job that has ended has no budget", 120)


def test_a_spot_notice_of_half_a_minute_costs_no_step(rows: Rows, faults: Faults) -> None:
    """The planner looks at nodes every 30 s: by then the machine would be gone."""
    leaves, refuge = NODES
    job = started(rows, faults, "spot", 1, ballast=STATE_MIB)
    faults.upgrade(planner__cordon__mode="act")
    faults.kubectl("taint", "node", leaves, f"{ENDING[3]}=now:NoSchedule")
    noticed = time.monotonic()
    try:
        while (left := [p for p in job.pods() if at_work(p) and node_of(p) == leaves]) and not over(noticed):
            time.sleep(0.2)
        took = time.monotonic() - noticed
        rows.say(f"--> {took:.1f} s after the notice {len(left)} pods are on {leaves}, which goes")
        for pod in left:
            faults.kill_pod(pod)
        status = job.until_attempt(2)
        assert places(job) == {refuge}
    finally:
        faults.kubectl("taint", "node", leaves, f"{ENDING[3]}-")
    first = status.attempts[0]
    assert (first.ended_by, first.checkpoint is not None) == ("Migrated", True), first
    assert len(status.checkpoints) == 1, "one save, not two"
    job.assert_exact(job.finish())


def over(noticed: float) -> bool:
    return time.monotonic() - noticed > NOTICE_S


def test_a_cordoned_node_is_left_with_a_checkpoint(rows: Rows, faults: Faults) -> None:
    leaves, refuge = NODES
    job = started(rows, faults, "pair", 2)
    rows.say("--> a dry run says what it would do, and does nothing")
    faults.upgrade(**SOON, planner__cordon__mode="propose")
    faults.kubectl("cordon", leaves)
    wait_for(lambda: told(rows, "cordon", "PlannerProposal") or None, "a proposal in an Event", TIMEOUT_S)
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
