"""Devices by Dynamic Resource Allocation: Kubernetes' example driver, real claims, a real scheduler, kubelet and Kueue.

The devices are made up. A container that has one finds its name in the environment, and has it from the driver, by CDI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from faults import Faults
from node_racks import RACKS
from rows import CPU, TIMEOUT_S, Rows, Training, places

from kueue_integration.kube.resources import Object
from localcluster import cluster
from localcluster.addons import dra
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
NAMESPACE = "dra"
COUNTED = "devices/gpu"
"""What Kueue calls the devices in quotas."""
WHERE, DEVICES = "ondemand-1", 2


@pytest.fixture(scope="module", autouse=True)
def _driver(stage: Stage, say: Callable[[str], None]) -> Iterator[None]:
    """Two devices on one node, and a Kueue that counts them."""
    mapping = {"name": COUNTED, "deviceClassNames": [dra.DRIVER]}
    assert WHERE in RACKS
    with dra.running(stage.name, WHERE, DEVICES, say):
        cluster.reconfigure_kueue(stage.name, {"resources": {"deviceClassMappings": [mapping]}}, say)
        try:
            yield
        finally:
            cluster.reconfigure_kueue(stage.name, {}, say)


def claims(rows: Rows, job: Training) -> list[Object]:
    """The ResourceClaims of the job's pods that are at work."""
    found = rows.stage.kubectl.json("-n", rows.namespace, "get", "resourceclaims")["items"]
    pods = {pod["metadata"]["uid"] for pod in job.pods()}
    return [claim for claim in found if pods & {owner["uid"] for owner in claim["metadata"]["ownerReferences"]}]


def allocated(rows: Rows, job: Training) -> set[str]:
    """Names of the devices that the job's one claim has, all of the driver and of its node."""
    (claim,) = claims(rows, job)
    results = claim["status"]["allocation"]["devices"]["results"]
    assert {(each["driver"], each["pool"]) for each in results} == {(dra.DRIVER, WHERE)}
    return {str(each["device"]) for each in results}


def given(rows: Rows, faults: Faults, job: Training) -> set[str]:
    """Names of the devices that the driver has put into the job's container."""
    (pod,) = job.pods()
    found = faults.kubectl("-n", rows.namespace, "exec", pod["metadata"]["name"], "-c", "train", "--", "env")
    pairs = dict(line.split("=", 1) for line in found.splitlines() if "=" in line)
    names = {f"GPU_DEVICE_{number}" for number in range(DEVICES)}
    return {value for name, value in pairs.items() if name in names}


def queue(rows: Rows, name: str) -> None:
    """A queue with quota for every device."""
    quota = [{"name": "cpu", "nominalQuota": "1"}, {"name": COUNTED, "nominalQuota": str(DEVICES)}]
    group = {"coveredResources": ["cpu", COUNTED], "flavors": [{"name": "ondemand", "resources": quota}]}
    rows.queue(name, {}, resourceGroups=[group])


def test_a_job_with_claimed_devices_is_preempted_for_one_and_claims_again(rows: Rows, faults: Faults) -> None:
    queue(rows, "claimed")
    selector = f"device.attributes['{dra.DRIVER}'].model == 'LATEST-GPU-MODEL'"
    claim = {"name": "gpu", "device_class": dra.DRIVER, "count": DEVICES, "selectors": [selector]}
    job = rows.train("both", "claimed", cpu=CPU, resource_claims=[claim])
    job.until_steps()
    assert places(job) == {WHERE}
    assert allocated(rows, job) == given(rows, faults, job) == {"gpu-0", "gpu-1"}
    (before,) = claims(rows, job)
    usage = rows.until_admitted("both")["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]
    assert usage[COUNTED] == str(DEVICES), usage

    rows.say("--> a job of high priority wants one of the two devices; there is CPU for both jobs")
    one = [{"name": "gpu", "device_class": dra.DRIVER}]
    urgent = rows.train("urgent", "claimed", cpu=CPU, resource_claims=one, priority_class="high")
    ended = job.until_ended(1)
    assert ended.ended_by == "Preempted" and ended.checkpoint is not None, ended
    urgent.until_steps()
    assert len(allocated(rows, urgent)) == 1 and allocated(rows, urgent) == given(rows, faults, urgent)
    assert not claims(rows, job), "the claim has gone with its pod"
    urgent.assert_exact(urgent.finish())

    rows.say("--> it comes back with a claim of its own, for both devices")
    job.until_attempt(2)
    (after,) = claims(rows, job)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert allocated(rows, job) == given(rows, faults, job) == {"gpu-0", "gpu-1"}
    job.assert_exact(job.finish())
    wait_for(lambda: not claims(rows, job), "the devices of a job that has ended are free", TIMEOUT_S)


def test_a_claim_by_a_template_is_counted_and_a_class_that_kueue_does_not_map_waits(rows: Rows, faults: Faults) -> None:
    queue(rows, "claims")
    unmapped = {**dra.device_class(), "metadata": {"name": "unmapped.example.com"}}
    rows.make(unmapped)
    waiting = rows.train("waiting", "claims", resource_claims=[{"name": "gpu", "device_class": "unmapped.example.com"}])

    exactly = {"deviceClassName": dra.DRIVER, "allocationMode": "ExactCount", "count": 1}
    spec = {"spec": {"devices": {"requests": [{"name": "any", "exactly": exactly}]}}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    rows.make({**kind, "metadata": {"name": "mine", "namespace": rows.namespace}, "spec": spec})
    job = rows.train("templated", "claims", resource_claims=[{"name": "gpu", "template": "mine"}])
    usage = rows.until_admitted("templated")["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]
    assert usage[COUNTED] == "1", usage
    job.until_steps()
    assert len(allocated(rows, job)) == 1 and allocated(rows, job) == given(rows, faults, job)
    job.assert_exact(job.finish())

    why = "DeviceClass unmapped.example.com is not mapped"
    assert not waiting.pods()
    waiting.until(lambda s: why in s.message, f"its status says: {why}")
