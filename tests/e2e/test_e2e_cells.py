"""Affinity cells on a real Kueue: a job that needs a rack gets its tenant's rack back; with plain quota it waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from faults import Faults
from node_racks import HOST, RACK, RACKS, flavor, label, labelled, most_of_a_node, racks, waits_for
from rows import TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.cells.binding import LABEL
from kueue_integration.kube.resources import (
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NODE,
    RESOURCE_FLAVOR,
    TOPOLOGY,
    Object,
    is_true,
    kind_of,
)
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "cells"


@pytest.fixture(autouse=True)
def _labelled(rows: Rows) -> Iterator[None]:
    with labelled(rows, LABEL):
        yield


def plain_quota(rows: Rows, cpu: int) -> None:
    """The same amounts without cells: two queues of a cohort, one flavor of all nodes."""
    flavor(rows, "e2e-plain")
    reclaim = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    rows.queue("vision-plain", {"e2e-plain": f"{2 * cpu}m"}, cohort="plain", preemption=reclaim)
    rows.queue("speech-plain", {"e2e-plain": f"{cpu}m"}, cohort="plain", preemption=reclaim)


def generated(rows: Rows, tmp_path: Path) -> Path:
    """Apply what `cells generate` prints, as its help says; the description."""
    description: Object = {
        "name": "e2e-lab",
        "levels": [{"name": name, "label": label} for name, label in (("rack", RACK), ("node", HOST))],
        "resources": ["cpu"],
        "tenants": [
            {"name": "vision", "namespaces": [NAMESPACE], "cells": [{"level": "rack", "nodes": 2}]},
            {"name": "speech", "namespaces": [NAMESPACE], "cells": [{"level": "node"}]},
        ],
    }
    file = tmp_path / "cells.yaml"
    file.write_text(yaml.safe_dump(description))
    text = Shell(rows.stage.cluster).run("cells", "generate", str(file))
    for manifest in yaml.safe_load_all(text):
        if kind_of(manifest) is NODE:
            label(rows, manifest["metadata"]["name"], manifest["metadata"]["labels"])
        else:
            rows.make(manifest)
    assert {node: _label(rows, node) for node in RACKS} == {
        "ondemand-0": "e2e-lab-speech", "ondemand-1": "e2e-lab-vision", "spot-0": "e2e-lab-vision",
    }  # fmt: skip
    return file


def _label(rows: Rows, node: str) -> str:
    return str(rows.kube.get(NODE, None, node)["metadata"]["labels"].get(LABEL))


def in_the_way(rows: Rows, faults: Faults, name: str, queue: str, cpu: int) -> Training:
    """A job of the tenant speech that got a node of rack b while rack a was away."""
    faults.kubectl("cordon", "ondemand-0")
    job = rows.train(name, queue, cpu=f"{cpu}m", topology={"required": RACK})
    job.until_steps()
    assert racks(job) == ["b"]
    faults.kubectl("uncordon", "ondemand-0")
    return job


def test_plain_quota_lets_a_job_wait_that_its_private_rack_would_take(rows: Rows, faults: Faults) -> None:
    cpu = most_of_a_node(rows)
    plain_quota(rows, cpu)
    small = in_the_way(rows, faults, "small", "speech-plain", cpu)
    pair = rows.train("pair", "vision-plain", workers=2, cpu=f"{cpu}m", topology={"required": RACK})
    rows.say("--> vision has quota for two nodes and nobody borrows it, but no rack has two free ones")
    wait_for(lambda: waits_for(rows, "pair", "e2e-plain"), "pair waits for a rack", TIMEOUT_S)
    small.finish()
    pair.until_steps()
    assert racks(pair) == ["b", "b"]
    pair.assert_exact(pair.finish())


def test_with_cells_the_tenant_gets_its_rack_back(rows: Rows, tmp_path: Path) -> None:
    cpu = most_of_a_node(rows)
    file = generated(rows, tmp_path)
    for kind, name in ((TOPOLOGY, "e2e-lab"), (RESOURCE_FLAVOR, "e2e-lab-vision"), (COHORT, "e2e-lab")):
        assert rows.kube.find(kind, None, name) is not None
    assert rows.kube.find(LOCAL_QUEUE, NAMESPACE, "vision") is not None
    wait_for(lambda: _active(rows), "Kueue takes the generated queues", TIMEOUT_S)

    rows.say("--> speech has filled its own cell, and borrows a node of vision's rack")
    own = rows.train("own", "speech", cpu=f"{cpu}m", topology={"required": RACK})
    own.until_steps()
    small = rows.train("small", "speech", cpu=f"{cpu}m", topology={"required": RACK})
    small.until_steps()
    assert (racks(own), racks(small)) == (["a"], ["b"])
    pair = rows.train("pair", "vision", workers=2, cpu=f"{cpu}m", topology={"required": RACK})
    ended = small.until_ended(1)
    assert ended.ended_by == "Preempted" and ended.checkpoint is not None, ended
    pair.until_steps()
    assert racks(pair) == ["b", "b"]
    rows.say("--> speech goes on in its own cell, beside the pair")
    own.assert_exact(own.finish())
    small.until_attempt(2)
    assert racks(small) == ["a"]

    told = _checked(rows, file)
    (kept,) = [r for r in told["vision"] if r["job"] == f"{NAMESPACE}/pair"]
    assert kept["level"] == RACK and kept["promise"] == "kept", kept
    pair.assert_exact(pair.finish())
    small.assert_exact(small.finish())


def _active(rows: Rows) -> bool:
    queues = [rows.kube.get(CLUSTER_QUEUE, None, f"e2e-lab-{tenant}") for tenant in ("vision", "speech")]
    return all(is_true(queue, "Active") for queue in queues)


def _checked(rows: Rows, file: Path) -> dict[str, list[dict[str, Any]]]:
    """Requests by tenant. The checkpoint of the borrower takes as long as this busy machine needs."""
    text = Shell(rows.stage.cluster).run("cells", "check", str(file), "--json", "--allow", str(TIMEOUT_S))
    return {one["tenant"]: one["requests"] for one in json.loads(text)["tenants"]}
