"""Required topology on a real Kueue: a job is admitted into one rack, is preempted, and comes back to one rack only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from faults import Faults
from rows import Rows, Training
from shell import Shell

from kueue_integration.errors import SpecError
from kueue_integration.kube import quantities
from kueue_integration.kube.resources import (
    KUEUE_GROUP,
    KUEUE_VERSION,
    NODE,
    RESOURCE_FLAVOR,
    TOPOLOGY,
    Object,
    condition,
    is_true,
)
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
HALL, RACK, HOST = "example.com/hall", "example.com/rack", "kubernetes.io/hostname"
RACKS = {"ondemand-0": "a", "ondemand-1": "b", "spot-0": "b"}
"""Rack of each node of the local cluster: only rack b has two."""
TIMEOUT_S = 600.0


@pytest.fixture
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "placement", say)
    for node, rack in RACKS.items():
        label_node(made, node, {HALL: "one", RACK: rack})
    levels = [{"nodeLabel": label} for label in (HALL, RACK, HOST)]
    made.make(kueue(TOPOLOGY.name, "e2e-racks", {"levels": levels}))
    flavor = {"nodeLabels": {HALL: "one"}, "topologyName": "e2e-racks"}
    made.make(kueue(RESOURCE_FLAVOR.name, "e2e-racked", flavor))
    try:
        yield made
    finally:
        made.close()
        for node in RACKS:
            label_node(made, node, {HALL: None, RACK: None})


@pytest.fixture
def faults(rows: Rows) -> Iterator[Faults]:
    made = Faults(rows.stage, rows.namespace)
    yield made
    for node in RACKS:
        made.kubectl("uncordon", node)


def kueue(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def label_node(rows: Rows, node: str, labels: dict[str, str | None]) -> None:
    rows.kube.patch(NODE, None, node, {"metadata": {"labels": labels}})


def most_of_a_node(rows: Rows) -> int:
    """Millicores of which a node has room for one pod, and not for two."""
    free = [quantities.parse(rows.kube.get(NODE, None, n)["status"]["allocatable"]["cpu"]) for n in RACKS]
    return int(min(free) * 600)


def racks(job: Training) -> list[str]:
    """Rack of each pod that is at work, sorted."""
    pods = [pod for pod in job.pods() if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    return sorted(RACKS[str(pod["spec"].get("nodeName"))] for pod in pods)


def does_not_fit(rows: Rows, job: str) -> bool:
    """Kueue says that the topology is what the job waits for."""
    workload = rows.workload(job)
    told = condition(workload, "QuotaReserved") or {}
    return not is_true(workload, "QuotaReserved") and 'topology "e2e-racks"' in str(told.get("message"))


def test_a_job_that_requires_one_rack_gets_one_again_after_a_preemption(rows: Rows, faults: Faults) -> None:
    cpu = most_of_a_node(rows)
    rows.queue("racks", {"e2e-racked": f"{2 * cpu}m"})
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
    wait_for(lambda: does_not_fit(rows, "pair"), "Kueue finds no rack for pair", TIMEOUT_S)

    rows.say("--> rack b is whole again")
    faults.kubectl("uncordon", "spot-0")
    pair.until_attempt(2)
    assert racks(pair) == ["b", "b"]
    pair.assert_exact(pair.finish())
