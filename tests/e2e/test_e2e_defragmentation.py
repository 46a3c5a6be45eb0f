"""Policy defragmentation on a real Kueue, for large jobs that require no topology: a small job moves out of their way.

Once the large job has quota, and no node has room for its second pod. Once no flavor alone has the quota. The third
case, a rack, is in `test_e2e_lending`. Nothing is measured yet when these jobs begin, so a move counts as 120
device-seconds.
"""

from __future__ import annotations

import pytest
from faults import Faults
from node_racks import RACKS, most_of_a_node
from planning import LIMITS, SOON, told
from rows import CPU, TIMEOUT_S, Rows, Training, places

from kueue_integration.kube.resources import (
    KUEUE_GROUP,
    KUEUE_VERSION,
    POD,
    RESOURCE_FLAVOR,
    Object,
    condition,
    is_true,
)
from kueue_integration.planner.policies import defragmentation
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "defragmentation"
USUAL = {**LIMITS, "planner__defragmentation__mode": "none"}


def test_a_small_job_leaves_the_node_that_a_pod_of_a_large_one_needs(rows: Rows, faults: Faults) -> None:
    flavor = _flavor_of_all_nodes(rows)
    large_cpu, small_cpu = most_of_a_node(rows) * 5 // 4, most_of_a_node(rows) // 2
    rows.queue("nodes", {flavor: f"{2 * (large_cpu + small_cpu)}m"})
    _only(faults, "ondemand-0")
    small = rows.train("small", "nodes", cpu=f"{small_cpu}m")
    small.until_steps()
    _only(faults, "ondemand-1")
    rows.other("other", "nodes", cpu=f"{small_cpu}m", priority="low")
    wait_for(lambda: _nodes_of(rows, "other") == {"ondemand-1"}, "the other job is on a node", TIMEOUT_S)
    faults.uncordon_all()
    assert places(small) == {"ondemand-0"}

    rows.say("--> quota and devices are free for two large pods, but only one node has room for one")
    large = rows.train("large", "nodes", workers=2, cpu=f"{large_cpu}m")
    rows.until_admitted("large")
    wait_for(lambda: _unplaced(large) == 1, "the scheduler finds no node for one pod", TIMEOUT_S)
    faults.upgrade(**SOON, planner__defragmentation__mode="propose")
    _proposed(rows, "makes room in hostname ondemand-0 for job-large")
    assert (_unplaced(large), large.look().step, small.look().attempt) == (1, 0, 1)

    rows.say("--> the policy acts: the small one is saved, and moves to the node where the other one is")
    faults.upgrade(planner__defragmentation__mode="act")
    large.until_attempt(1)
    _moved(small, "hostname ondemand-0")
    assert (places(large), places(small)) == ({"ondemand-0", "spot-0"}, {"ondemand-1"})
    for job in (large, small):
        job.assert_exact(job.finish())
    assert len(large.look().attempts) == 1, "it kept its quota and its pod, and waited"


def test_a_small_job_leaves_the_flavor_whose_quota_a_large_one_needs(rows: Rows, faults: Faults) -> None:
    rows.queue("flavors", {"ondemand": "100m", "spot": CPU})
    small = rows.train("small", "flavors")
    assert small.until_steps().flavor == "ondemand"

    rows.say("--> quota is free for two pods, but for one of each flavor: the pair waits")
    pair = rows.train("pair", "flavors", workers=2)
    wait_for(lambda: _waits_for_quota(rows, "pair"), "Kueue has no flavor for pair", TIMEOUT_S)
    faults.upgrade(**SOON, planner__defragmentation__mode="propose")
    _proposed(rows, "makes room in flavor ondemand for job-pair")
    assert _waits_for_quota(rows, "pair") and small.look().attempt == 1

    rows.say("--> the policy acts: the small one is saved, and moves to the other flavor")
    faults.upgrade(planner__defragmentation__mode="act")
    assert pair.until_attempt(1).flavor == "ondemand"
    assert _moved(small, "flavor ondemand") == "spot"
    for job in (pair, small):
        job.assert_exact(job.finish())


def _flavor_of_all_nodes(rows: Rows) -> str:
    meta = {"name": "e2e-all-nodes"}
    made = {"apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}", "kind": RESOURCE_FLAVOR.name, "metadata": meta}
    rows.make({**made, "spec": {}})
    return meta["name"]


def _only(faults: Faults, node: str) -> None:
    """New pods go to this node alone."""
    for each in RACKS:
        faults.kubectl("uncordon" if each == node else "cordon", each)


def _nodes_of(rows: Rows, job: str) -> set[str]:
    """Nodes of the pods of a plain Job."""
    return {str(pod["spec"].get("nodeName")) for pod in rows.kube.list(POD, rows.namespace, f"job-name={job}")}


def _unplaced(job: Training) -> int:
    """Pods that the scheduler finds no node for."""
    return sum((_scheduled(pod).get("reason")) == "Unschedulable" for pod in job.pods())


def _scheduled(pod: Object) -> Object:
    return condition(pod, "PodScheduled") or {}


def _waits_for_quota(rows: Rows, job: str) -> bool:
    """Kueue has looked, and names quota as what the job waits for."""
    workload = rows.workload(job)
    said = str((condition(workload, "QuotaReserved") or {}).get("message"))
    return not is_true(workload, "QuotaReserved") and "insufficient unused quota" in said


def _proposed(rows: Rows, what: str) -> None:
    """The dry run says so in an Event. Those of the other test stay in the namespace."""
    found = lambda: any(what in message for message in told(rows, defragmentation.NAME, "PlannerProposal"))  # noqa: E731
    wait_for(found, f"a proposal: {what}", TIMEOUT_S)


def _moved(job: Training, where: str) -> str:
    """Flavor of the job after its move for `where`, by which it has lost nothing."""
    status = job.until_attempt(2)
    first = status.attempts[0]
    assert (first.ended_by, first.checkpoint is not None) == ("Migrated", True), first
    assert first.note and f"policy/defragmentation: makes room in {where}" in first.note, first
    return str(status.flavor)
