"""`doctor --probe --gpus` on the local cluster: nodes say that they have a GPU, and there is none.

The pod is let in, scheduled by its GPU, started as those of training jobs are, and its launcher answers: what is left
to show is a driver. Flavors without GPUs get no such pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from shell import Shell

from kueue_integration.jobs import store_pod
from kueue_integration.kube.resources import (
    CLUSTER_QUEUE,
    KUEUE_GROUP,
    KUEUE_VERSION,
    NODE,
    POD,
    RESOURCE_FLAVOR,
    selector,
)
from localcluster.demo.stage import NAMESPACE, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(900)]
GPU = "nvidia.com/gpu"
FLAVOR = {
    "apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}", "kind": "ResourceFlavor", "metadata": {"name": "gpus"},
    "spec": {},
}  # fmt: skip
QUEUE = {
    "apiVersion": FLAVOR["apiVersion"], "kind": "ClusterQueue", "metadata": {"name": "gpus"},
    "spec": {
        "resourceGroups": [
            {"coveredResources": [GPU], "flavors": [
                {"name": "gpus", "resources": [{"name": GPU, "nominalQuota": "1"}]}]}
        ]
    },
}  # fmt: skip


@pytest.fixture
def shell(stage: Stage) -> Iterator[Shell]:
    """Every node offers a GPU, and a queue has quota of it."""
    found = Shell(stage.cluster)
    nodes = [str(node["metadata"]["name"]) for node in stage.kube.list(NODE)]

    def patch(node: str, value: str | None) -> None:
        body = json.dumps({"status": {"capacity": {GPU: value}, "allocatable": {GPU: value}}})
        found.type(f"kubectl patch node {node} --subresource=status --type=merge -p '{body}'")

    for node in nodes:
        patch(node, "1")
    for made in (FLAVOR, QUEUE):
        stage.kube.create(made)
    try:
        yield found
    finally:
        for kind in (CLUSTER_QUEUE, RESOURCE_FLAVOR):
            stage.kube.delete(kind, None, "gpus")
        for node in nodes:
            patch(node, None)


def test_the_launcher_of_a_flavor_with_gpus_answers(stage: Stage, shell: Shell) -> None:
    found = shell.doctor("--probe", "--gpus", code=3)
    probed = {name: check for name, check in found.items() if name.startswith("GPUs of ")}
    assert list(probed) == ["GPUs of gpus"]
    assert probed["GPUs of gpus"]["status"] == "fail"
    assert "There is no NVIDIA GPU here: no /dev/nvidia0" in probed["GPUs of gpus"]["message"]
    # The launcher's own look, with what training pods have: CRIU is there, and so are its capabilities.
    assert not any(word in probed["GPUs of gpus"]["message"] for word in ("CRIU", "capabilities"))
    assert stage.kube.list(POD, NAMESPACE, selector(store_pod.LABELS)) == []
    assert {"store on ondemand", "node of ondemand"} <= found.keys()


def test_without_gpus_in_any_queue_there_is_nothing_to_probe(stage: Stage) -> None:
    found = Shell(stage.cluster).doctor_whatever_it_exits_with("--probe", "--gpus")
    assert found["gpu probe"]["status"] == "warn"
    assert "no ClusterQueue has quota for a resource nvidia.com/*" in found["gpu probe"]["message"]
