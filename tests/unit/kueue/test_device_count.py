"""Which resources of a pod are devices, how many it has, and which of its flavors tells its kind of machine."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import controller_scene as scene
import overview_scene
import pytest
from controller_scene import T0

from kueue_integration.controller import fence, kept
from kueue_integration.controller.planning.look import read_job, read_workload
from kueue_integration.controller.snapshot import Job, Preemption
from kueue_integration.controller.snapshot import Workload as Seen
from kueue_integration.job import states
from kueue_integration.kube import devices
from kueue_integration.kube.resources import Object
from kueue_integration.overview import objects
from kueue_integration.planner import model, quota

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


@pytest.mark.parametrize(
    "name",
    [
        GPU, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "amd.com/cpx_nps4", "gpu.intel.com/i915",
        "gpu.intel.com/xe", "google.com/tpu", "habana.ai/gaudi", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore",
        "huawei.com/Ascend910", "cambricon.com/mlu", "hygon.com/dcu", "devices/gpu", "example.com/chip",
        "ibm.com/aiu_pf",
    ],
)  # fmt: skip
def test_accelerators_count(name: str) -> None:
    assert devices.number({name: Fraction(8), "cpu": Fraction(4), "memory": Fraction(2**30)}) == 8


@pytest.mark.parametrize(
    "name",
    [
        EFA, "vpc.amazonaws.com/pod-eni", "rdma/hca_shared_devices_a", "nvidia.com/roce", "openshift.io/sriov_nic",
        "intel.com/intel_sriov_netdevice", "example.org/nic", "devices.kubevirt.io/kvm", "smarter-devices/fuse",
        "aliyun.com/gpu-mem", "nvidia.com/gpumem", "nvidia.com/gpucores", "gpu.intel.com/memory.max",
        "kubernetes.io/batch-cpu", "hugepages-2Mi", "ephemeral-storage", "attachable-volumes-aws-ebs",
    ],
)  # fmt: skip
def test_network_cards_and_shares_of_memory_do_not(name: str) -> None:
    assert devices.number({name: Fraction(4)}) == 0
    assert quota.devices({name: Fraction(4)}) == 1


def test_a_known_accelerator_makes_unknown_resources_something_else() -> None:
    assert devices.number({GPU: Fraction(8), EFA: Fraction(4), "example.com/license": Fraction(1)}) == 8


def test_a_limit_without_a_request_counts() -> None:
    resources = {"limits": {GPU: "8", "cpu": "2"}, "requests": {"cpu": "1"}}
    podset = {"template": {"spec": {"containers": [{"resources": resources}]}}}
    assert quota.of_pod(podset) == {GPU: 8, "cpu": 1}


@pytest.mark.parametrize(
    ("flavors", "shown"),
    [
        ({"cpu": "default", GPU: "a100", "memory": "default"}, "a100"),
        ({"cpu": "default", EFA: "fabric", GPU: "a100"}, "a100"),
        ({"cpu": "default", EFA: "fabric"}, "default"),
        ({"cpu": "default", "devices/chip": "new"}, "new"),
        ({"memory": "large"}, "large"),
        ({}, ""),
    ],
    ids=["gpu", "gpu-and-network", "network", "claimed", "memory", "none"],
)
def test_the_flavor_of_the_devices_is_shown(flavors: dict[str, str], shown: str) -> None:
    assert devices.flavor(flavors) == shown


def two_groups(asks: dict[str, str], **more: Any) -> Object:
    """A Workload of two pods, admitted with the CPU on one flavor and the devices on another."""
    found = scene.workload(state="Pending", **more)
    (podset,) = found["spec"]["podSets"]
    podset["template"]["spec"]["containers"][0]["resources"]["requests"].update(asks)
    if "admission" in found["status"]:
        (given,) = found["status"]["admission"]["podSetAssignments"]
        given["flavors"] = {"cpu": "default", **dict.fromkeys(asks, "a100")}
        given["resourceUsage"].update({name: str(2 * int(amount)) for name, amount in asks.items()})
    return found


def claims(**more: Any) -> Object:
    """Each pod claims four devices that Kueue counts as `whole-chips`."""
    found = two_groups({"whole-chips": "4"}, **more)
    (podset,) = found["spec"]["podSets"]
    del podset["template"]["spec"]["containers"][0]["resources"]["requests"]["whole-chips"]
    podset["template"]["spec"]["resourceClaims"] = [{"name": "chips", "resourceClaimTemplateName": "chips"}]
    return found


def answered(workload: Object, prices: dict[str, float]) -> Any:
    made = fence.answer(Job.parse(scene.job()), Seen.parse(workload), Preemption(), T0, prices=prices)
    return scene.stored(made.job_annotations)[-1]


def test_a_pod_with_a_network_card_is_priced_by_its_eight_devices_and_their_flavor() -> None:
    workload = two_groups({GPU: "8", EFA: "4"})
    record = answered(workload, {"a100": 3.0, "default": 0.1})
    assert (record.flavor, record.price) == ("a100", 24.0)
    given = states.admission(workload)
    assert given is not None and given.flavor == "a100"


def test_claimed_devices_are_those_of_kueues_account() -> None:
    workload = claims()
    record = answered(workload, {"a100": 3.0})
    assert (record.flavor, record.price) == ("a100", 12.0)
    assert read_workload(workload, "training").devices == 8
    job = read_job(scene.job(suspend=False), workload, [], {})
    assert job is not None and job.devices_per_pod == 4
    claim = objects.claim(workload, overview_scene.training("train", []))
    assert claim is not None and claim.devices_per_pod == 4
    # Of others' Workloads the controller keeps that too.
    assert quota.devices_of(kept.workload(workload)) == 4


def test_a_waiting_job_has_the_claimed_devices_of_kueues_last_try() -> None:
    workload = claims(reserved_at=None)
    assert quota.devices_of(workload) == 1  # Kueue has not looked yet
    workload["status"]["resourceRequests"] = [{"name": "main", "resources": {"cpu": "500m", "whole-chips": "8"}}]
    assert quota.devices_of(workload) == 4


def test_what_kueue_makes_of_other_resources_is_no_device() -> None:
    """`resources.transformations`: credits, say. The pod claims nothing."""
    workload = two_groups({GPU: "2"})
    (given,) = workload["status"]["admission"]["podSetAssignments"]
    given["resourceUsage"]["example.com/credits"] = "40"
    assert quota.devices_of(workload) == 2


def test_pods_that_are_not_alike_count_as_one_device() -> None:
    assert model.Workload("n", "w", "u", "q", 0, 0.0).devices == 1
    assert (
        model.Workload("n", "w", "u", "q", 0, 0.0, pods=2, per_pod={GPU: Fraction(8), EFA: Fraction(4)}).devices == 16
    )
