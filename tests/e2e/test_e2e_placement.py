"""Where jobs may run, with a real Kueue and a real scheduler: gang, topology, node selectors and tolerations.

Racks are labels of the local cluster's nodes: see `node_racks`.
"""

from __future__ import annotations

import pytest
from faults import Faults
from node_racks import RACK, most_of_a_node, racks, until_placed, waits_for
from rows import CPU, TIMEOUT_S, Rows, Training, places
from shell import Shell

from kueue_integration.errors import SpecError
from kueue_integration.kube.resources import (
    KUEUE_GROUP,
    KUEUE_VERSION,
    LOCAL_QUEUE,
    RESOURCE_FLAVOR,
    is_true,
)
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1200)]
NAMESPACE = "placement"
TAINT = "example.com/reserved"


def flavor_of(rows: Rows, job: str) -> str:
    """Flavor of the job's pods, as Kueue has assigned it."""
    (pods,) = rows.until_admitted(job)["status"]["admission"]["podSetAssignments"]
    return str(pods["flavors"]["cpu"])


def test_a_job_that_requires_one_rack_gets_one_again_after_a_preemption(
    rows: Rows, faults: Faults, racked: str
) -> None:
    cpu = most_of_a_node(rows)
    rows.queue("racks", {racked: f"{2 * cpu}m"})
    with pytest.raises(SpecError, match="is not a level of the topologies"):
        rows.train("row", "racks", cpu=f"{cpu}m", topology={"required": "example.com/row"})
    shell = Shell(rows.stage.cluster)
    found = shell.doctor_whatever_it_exits_with("-n", rows.namespace)[f"topology {rows.cluster_queue('racks')}"]
    assert found["status"] == "ok" and RACK in found["message"]

    rows.say("--> three nodes have room for one pod each; only rack b has two of them")
    pair = rows.train("pair", "racks", workers=2, cpu=f"{cpu}m", topology={"required": RACK})
    pair.until_steps()
    assert racks(pair) == ["b", "b"]

    rows.say("--> preempted with a checkpoint")
    rows.other("urgent", "racks", cpu=f"{cpu}m")
    ended = pair.until_ended(1)
    assert ended.checkpoint is not None, ended
    rows.until_admitted("urgent")

    rows.say("--> quota is free again and two nodes have room, but in two racks: it waits")
    faults.kubectl("cordon", "spot-0")
    rows.remove("urgent")
    wait_for(lambda: waits_for(rows, "pair", racked), "Kueue finds no rack for pair", TIMEOUT_S)

    rows.say("--> rack b is whole again")
    faults.kubectl("uncordon", "spot-0")
    pair.until_attempt(2)
    assert racks(pair) == ["b", "b"]
    pair.assert_exact(pair.finish())


def test_a_job_that_prefers_one_rack_takes_two_when_none_is_whole(rows: Rows, faults: Faults, racked: str) -> None:
    cpu = most_of_a_node(rows)
    rows.queue("preferred", {racked: f"{2 * cpu}m"})
    pair = rows.train("fond", "preferred", workers=2, cpu=f"{cpu}m", topology={"preferred": RACK})
    pair.until_steps()
    assert racks(pair) == ["b", "b"], "the one rack with room for both"

    rows.say("--> preempted with a checkpoint; meanwhile rack b loses a node")
    rows.other("urgent-fond", "preferred", cpu=f"{cpu}m")
    assert pair.until_ended(1).checkpoint is not None
    rows.until_admitted("urgent-fond")
    faults.kubectl("cordon", "spot-0")
    rows.remove("urgent-fond")

    pair.until_attempt(2)
    assert racks(pair) == ["a", "b"]
    pair.assert_exact(pair.finish())


def test_pods_are_packed_into_the_fullest_rack_that_has_room(rows: Rows, racked: str) -> None:
    large = most_of_a_node(rows)
    small = large // 3
    rows.queue("packed", {racked: f"{4 * large}m"})
    ask = {"required": RACK}
    first = rows.train("first", "packed", cpu=f"{small}m", topology=ask)
    assert until_placed(first) == ["a"], "rack a is half as large as rack b"
    second = rows.train("second", "packed", cpu=f"{small}m", topology={"preferred": RACK})
    assert until_placed(second) == ["a"], "rack b is empty, and stays so for jobs that need it"
    third = rows.train("third", "packed", workers=2, cpu=f"{large}m", topology=ask)
    assert until_placed(third) == ["b", "b"]


def test_two_jobs_never_hold_half_of_what_each_needs(rows: Rows) -> None:
    rows.queue("gang", {"ondemand": "150m"})
    jobs = [rows.train(name, "gang", workers=2, cpu=CPU) for name in ("left", "right")]

    def trains() -> Training | None:
        pods = {job: len(job.pods()) for job in jobs}
        assert not all(pods.values()), f"both have pods: {list(pods.values())}"
        return next((job for job in jobs if job.look().step >= 5), None)

    winner = wait_for(trains, "one of two jobs trains", TIMEOUT_S)
    (loser,) = [job for job in jobs if job is not winner]
    used = rows.kube.get(LOCAL_QUEUE, rows.namespace, "gang")["status"]["flavorsReservation"]
    assert used == [{"name": "ondemand", "resources": [{"name": "cpu", "total": "100m"}]}], "room for a pod is left"
    assert not is_true(rows.workload(loser.name), "QuotaReserved") and not loser.pods()

    winner.assert_exact(winner.finish())
    loser.until_steps()
    assert len(loser.pods()) == 2
    loser.assert_exact(loser.finish())


def test_a_node_selector_chooses_the_flavor_that_has_the_label(rows: Rows) -> None:
    rows.queue("chosen", {"ondemand": "100m", "spot": "100m"})
    with pytest.raises(SpecError, match="node_selector"):
        rows.train("nowhere", "chosen", node_selector={"flavor": "none"})
    job = rows.train("there", "chosen", node_selector={"flavor": "spot"})
    assert flavor_of(rows, "there") == "spot", "ondemand comes first in the queue, and is free"
    job.until_steps()
    assert places(job) == {"spot-0"}
    job.assert_exact(job.finish())


def test_a_tainted_flavor_is_for_jobs_that_tolerate_the_taint(rows: Rows, faults: Faults) -> None:
    taint = {"key": TAINT, "value": "yes", "effect": "NoSchedule"}
    meta = {"name": "e2e-reserved"}
    spec = {"nodeLabels": {"flavor": "spot"}, "nodeTaints": [taint]}
    made = {"apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}", "kind": RESOURCE_FLAVOR.name, "metadata": meta}
    rows.make({**made, "spec": spec})
    rows.queue("tainted", {meta["name"]: "100m", "ondemand": "100m"})
    faults.kubectl("taint", "node", "spot-0", f"{TAINT}=yes:NoSchedule")
    try:
        others = rows.train("others", "tainted")
        assert flavor_of(rows, "others") == "ondemand", "the tainted flavor comes first in the queue, and is free"
        tolerant = rows.train("tolerant", "tainted", tolerations=[{"key": TAINT, "operator": "Exists"}])
        assert flavor_of(rows, "tolerant") == meta["name"]
        tolerant.until_steps()
        assert places(tolerant) == {"spot-0"}
        others.until_steps()
        assert places(others) <= {"ondemand-0", "ondemand-1"}
        tolerant.assert_exact(tolerant.finish())
    finally:
        faults.kubectl("taint", "node", "spot-0", f"{TAINT}-")
