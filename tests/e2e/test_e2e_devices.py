"""Parts of devices as jobs ask for them, with a real Kueue, scheduler and kubelet. The devices are names and counts.

A node advertises them as "Advertise Extended Resources for a Node" of Kubernetes' documentation has it, by its status.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from node_racks import RACKS
from rows import CPU, TIMEOUT_S, Rows, Training, places

from kueue_integration.kube.resources import NODE
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1200)]
NAMESPACE = "devices"
MIG, SHARED = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
"""A MIG instance, and a time-sliced GPU as NVIDIA's device plugin may rename it."""
WHERE = "ondemand-1"


@contextmanager
def advertised(rows: Rows, node: str, devices: dict[str, str]) -> Iterator[None]:
    """The node has these devices until the end of the block; its kubelet agrees."""

    def write(capacity: dict[str, str | None]) -> None:
        rows.kube.patch(NODE, None, node, {"status": {"capacity": capacity}}, subresource="status")

    def allocatable() -> set[str]:
        return {*rows.kube.get(NODE, None, node)["status"]["allocatable"]}

    write({**devices})
    try:
        wait_for(lambda: allocatable() >= {*devices}, f"the kubelet of {node} has {', '.join(devices)}", TIMEOUT_S)
        yield
    finally:
        write(dict.fromkeys(devices))
        wait_for(lambda: not allocatable() & {*devices}, f"the kubelet of {node} has them no more", TIMEOUT_S)


def asked(job: Training, resource: str) -> list[str]:
    """What each pod of the job has of the resource."""
    containers = [c for pod in job.pods() for c in pod["spec"]["containers"]]
    return [c["resources"]["limits"][resource] for c in containers if resource in c["resources"].get("limits", {})]


def test_jobs_on_parts_of_gpus_are_preempted_for_them_and_lose_no_step(rows: Rows) -> None:
    quota = [{"name": "cpu", "nominalQuota": "1"}, *({"name": name, "nominalQuota": "1"} for name in (MIG, SHARED))]
    group = {"coveredResources": ["cpu", MIG, SHARED], "flavors": [{"name": "ondemand", "resources": quota}]}
    rows.queue("parts", {}, resourceGroups=[group])
    assert WHERE in RACKS
    with advertised(rows, WHERE, {MIG: "1", SHARED: "1"}):
        jobs = {
            resource: rows.train(name, "parts", resources={"cpu": CPU, resource: "1"})
            for name, resource in (("mig", MIG), ("sliced", SHARED))
        }
        for resource, job in jobs.items():
            job.until_steps()
            assert asked(job, resource) == ["1"] and places(job) == {WHERE}

        rows.say("--> one job of high priority takes both devices; there is CPU for all three")
        urgent = intruder("urgent", rows.namespace, "parts", rows.stage.platform.train_image, 1, CPU)
        (container,) = urgent["spec"]["template"]["spec"]["containers"]
        container["resources"]["limits"] = {MIG: "1", SHARED: "1"}
        rows.kube.create(urgent)
        for job in jobs.values():
            ended = job.until_ended(1)
            assert ended.ended_by == "Preempted" and ended.checkpoint is not None, ended
        rows.until_admitted("urgent")
        rows.remove("urgent")

        for resource, job in jobs.items():
            job.until_attempt(2)
            assert asked(job, resource) == ["1"] and places(job) == {WHERE}
            job.assert_exact(job.finish())
