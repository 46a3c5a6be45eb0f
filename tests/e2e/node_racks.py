"""Racks on the local cluster, by labels of its nodes: a topology of Kueue's, and which rack a job's pods are in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rows import TIMEOUT_S, Rows, Training

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
from localcluster.demo.wait import wait_for

HALL, RACK, HOST = "example.com/hall", "example.com/rack", "kubernetes.io/hostname"
RACKS = {"ondemand-0": "a", "ondemand-1": "b", "spot-0": "b"}
"""Rack of each node of the local cluster: only rack b has two."""


def label(rows: Rows, node: str, labels: dict[str, str | None]) -> None:
    rows.kube.patch(NODE, None, node, {"metadata": {"labels": labels}})


@contextmanager
def labelled(rows: Rows, *more: str) -> Iterator[None]:
    """Nodes with the labels of their hall and rack. These go at the end, and those named in `more` with them."""
    for node, rack in RACKS.items():
        label(rows, node, {HALL: "one", RACK: rack})
    try:
        yield
    finally:
        for node in RACKS:
            label(rows, node, dict.fromkeys((HALL, RACK, *more)))


def flavor(rows: Rows, name: str) -> str:
    """A ResourceFlavor of all nodes, with a Topology of hall, rack and host: both have that name."""
    levels = [{"nodeLabel": label} for label in (HALL, RACK, HOST)]
    rows.make(_kueue(TOPOLOGY.name, name, {"levels": levels}))
    rows.make(_kueue(RESOURCE_FLAVOR.name, name, {"nodeLabels": {HALL: "one"}, "topologyName": name}))
    return name


def _kueue(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def most_of_a_node(rows: Rows) -> int:
    """Millicores of which a node has room for one pod, and not for two."""
    free = [quantities.parse(rows.kube.get(NODE, None, n)["status"]["allocatable"]["cpu"]) for n in RACKS]
    return int(min(free) * 600)


def racks(job: Training) -> list[str]:
    """Rack of each pod that is at work, sorted."""
    pods = [pod for pod in job.pods() if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    return sorted(RACKS[str(pod["spec"].get("nodeName"))] for pod in pods)


def until_placed(job: Training) -> list[str]:
    """`racks` once the scheduler has put all its pods on nodes."""

    def placed() -> list[str] | None:
        pods = job.pods()
        done = len(pods) == job.spec.workers and all(pod["spec"].get("nodeName") for pod in pods)
        return racks(job) if done else None

    return wait_for(placed, f"all pods of {job.name} are on nodes", TIMEOUT_S)


def waits_for(rows: Rows, job: str, topology: str) -> bool:
    """Kueue has looked, and says that the topology is what the job waits for."""
    workload = rows.workload(job)
    told = condition(workload, "QuotaReserved") or {}
    return not is_true(workload, "QuotaReserved") and f'topology "{topology}"' in str(told.get("message"))
