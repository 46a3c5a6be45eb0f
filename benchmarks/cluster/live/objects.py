"""A simulated workload as objects of a whole cluster: tenants, queues with our fence, fake nodes, training jobs. Pure.

One worker is one pod with one device. Topology is left out: fake nodes have no speed.
"""

from __future__ import annotations

from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import Object
from kueue_integration.spec.train_spec import TrainSpec

from ... import fleet
from ..model import DEVICES_PER_NODE, Cluster, Job, Tier
from ..nodes import name_of
from ..seam import COHORT, DEVICE
from ..twin import API, queue_spec

QUEUE = "queue"
FLAVOR_LABEL = "replay/flavor"


def cluster_objects(cluster: Cluster) -> list[Object]:
    """Flavors and classes; for each tenant a namespace, and a ClusterQueue with our fence and its LocalQueue."""
    made = [fleet.flavor(f.name, {FLAVOR_LABEL: f.name}) for f in cluster.flavors] + [_class(tier) for tier in Tier]
    for tenant in range(len(cluster.shares)):
        name = namespace(tenant)
        labels = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
        spec = queue_spec(cluster, tenant, COHORT, DEVICE)
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}
        local = {"name": QUEUE, "namespace": name}
        made += [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
            {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
            {"apiVersion": API, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": name}},
        ]
    return made


def _class(tier: Tier) -> Object:
    meta = {"name": tier.name.lower()}
    return {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": meta, "value": tier.priority}


def nodes(cluster: Cluster) -> list[Object]:
    return [_node(flavor.name, number) for flavor in cluster.flavors for number in range(flavor.nodes)]


def _node(flavor: str, number: int) -> Object:
    name = name_of(flavor, number)
    room = {"cpu": "1k", "memory": "1Ti", "pods": "1k", DEVICE: str(DEVICES_PER_NODE)}
    made = fleet.node(name, {FLAVOR_LABEL: flavor, "kubernetes.io/hostname": name})
    return {**made, "status": {"capacity": room, "allocatable": room}}


def namespace(tenant: int) -> str:
    """Of the tenant, and what its ClusterQueue is called."""
    return f"tenant-{tenant}"


def spec(job: Job, image: str) -> TrainSpec:
    """:param image: of the program, which nobody will run"""
    more: dict[str, Any] = {"min_workers": job.least} if job.least < job.workers else {}
    return TrainSpec(
        name=f"job-{job.id}",
        namespace=namespace(job.tenant),
        queue=QUEUE,
        command=["train"],
        image=image,
        workers=job.workers,
        world_size=max(job.most, job.workers),
        priority_class=job.tier.name.lower(),
        resources={DEVICE: "1"},
        engine="process",
        **more,
    )


def job_of(name: str) -> int | None:
    """None: not a name that `spec` gives."""
    number = name.removeprefix("job-")
    return int(number) if number != name and number.isdecimal() else None
