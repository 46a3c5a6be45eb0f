"""Place and devices against the cluster: what submit refuses before anything is created, and what `doctor` says."""

from __future__ import annotations

from typing import Any

import pytest
from kueue_samples import PLATFORM, cluster, spec

from kueue_integration.doctor import FAIL, OK, WARN, placement
from kueue_integration.doctor.gates import KUEUE_CONFIG
from kueue_integration.errors import Forbidden, NotFound, PlatformError, SpecError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import (
    CLUSTER_QUEUE,
    CONFIG_MAP,
    DEVICE_CLASS,
    JOB,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_FLAVOR,
    TOPOLOGY,
    Kind,
)

RACK, BLOCK = "example.com/rack", "example.com/block"
GPU = {"name": "gpu", "device_class": "gpu.example.com"}


def obj(kind: Kind, name: str, namespace: str | None = None, **fields: Any) -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **fields}


@pytest.fixture
def kube() -> FakeKube:
    """Flavor `flat` without a topology, flavor `racks` with one, and a DRA driver's DeviceClass."""
    levels = [{"nodeLabel": BLOCK}, {"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
    made = cluster(
        obj(TOPOLOGY, "halls", spec={"levels": levels}),
        obj(TOPOLOGY, "other", spec={"levels": [{"nodeLabel": "other"}]}),
        obj(RESOURCE_FLAVOR, "flat", spec={"nodeLabels": {"flavor": "flat"}}),
        obj(RESOURCE_FLAVOR, "racks", spec={"nodeLabels": {"flavor": "racks"}, "topologyName": "halls"}),
        obj(DEVICE_CLASS, "gpu.example.com", spec={}),
        obj(RESOURCE_CLAIM_TEMPLATE, "big", "default", spec={}),
    )
    flavors(made, "flat", "racks")
    return made


def flavors(kube: FakeKube, *names: str, covered: tuple[str, ...] = ("cpu", "memory")) -> None:
    """What ClusterQueue `training` has from now on."""
    group = {"coveredResources": [*covered], "flavors": [{"name": name} for name in names]}
    kube.patch(CLUSTER_QUEUE, None, "training", {"spec": {"resourceGroups": [group]}})


# --- submit ---------------------------------------------------------------------------------------------------------
def refused(kube: FakeKube, **changes: Any) -> dict[str, str]:
    try:
        lifecycle.submit(kube, spec(**changes), PLATFORM)
    except SpecError as error:
        assert kube.find(JOB, "default", "digits") is None, "something was created"
        return {field: text for field, _, text in error.problems}
    return {}


@pytest.mark.parametrize(
    "changes",
    [
        {"topology": {"required": RACK}},
        {"topology": {"preferred": BLOCK}},
        {"topology": "unconstrained"},
        {"node_selector": {"flavor": "racks", "disk": "fast"}},
        {"node_selector": {"disk": "fast"}},
        {"resource_claims": [GPU, {"name": "more", "template": "big"}]},
    ],
)
def test_what_the_cluster_has_is_created(kube: FakeKube, changes: dict[str, Any]) -> None:
    assert refused(kube, **changes) == {}
    assert kube.find(JOB, "default", "digits")


@pytest.mark.parametrize(
    ("field", "changes", "fix"),
    [
        ("topology", {"topology": {"required": "other"}}, f"they have: {BLOCK}, {RACK}, kubernetes.io/hostname"),
        ("node_selector", {"node_selector": {"flavor": "tape"}}, "flat: {'flavor': 'flat'}; racks:"),
        ("resource_claims[0].device_class", {"resource_claims": [{**GPU, "device_class": "nic"}]}, "gpu.example.com"),
        ("resource_claims[0].template", {"resource_claims": [{"name": "a", "template": "none"}]}, "create it first"),
    ],
)
def test_what_the_cluster_lacks_is_refused(kube: FakeKube, field: str, changes: dict[str, Any], fix: str) -> None:
    found = refused(kube, **changes)
    assert fix in found[field], found


def test_a_queue_without_any_topology_refuses_one(kube: FakeKube) -> None:
    flavors(kube, "flat")
    assert "leave it out or use another queue" in refused(kube, topology="unconstrained")["topology"]


def test_labels_of_flavors_for_resources_that_are_not_asked_for_do_not_count(kube: FakeKube) -> None:
    flavors(kube, "flat", covered=("example.com/tpu",))
    assert refused(kube, node_selector={"flavor": "tape"}) == {}


def test_a_cluster_without_dra_says_what_is_needed(kube: FakeKube) -> None:
    kube.fail_next("list", DEVICE_CLASS, NotFound("no such kind", 404))
    with pytest.raises(PlatformError, match=r"resource.k8s.io/v1.*Kubernetes 1\.34"):
        lifecycle.submit(kube, spec(resource_claims=[GPU]), PLATFORM)
    assert kube.find(JOB, "default", "digits") is None


@pytest.mark.parametrize("kind", [RESOURCE_FLAVOR, TOPOLOGY, DEVICE_CLASS])
def test_what_the_submitter_may_not_read_is_not_checked(kube: FakeKube, kind: Kind) -> None:
    kube.fail_next("list", kind, Forbidden("no", 403))
    unknown = {"topology": {"required": "other"}} if kind != DEVICE_CLASS else {}
    assert refused(kube, **unknown, resource_claims=[{**GPU, "device_class": "gpu.example.com"}]) == {}


def test_the_claim_template_of_a_job_goes_with_it(kube: FakeKube) -> None:
    made = lifecycle.submit(kube, spec(resource_claims=[GPU]), PLATFORM)
    found = kube.get(RESOURCE_CLAIM_TEMPLATE, "default", "digits-gpu")
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [made.uid]
    lifecycle.delete(kube, "default", "digits")
    assert kube.find(RESOURCE_CLAIM_TEMPLATE, "default", "digits-gpu") is None
    assert kube.find(RESOURCE_CLAIM_TEMPLATE, "default", "big"), "that of a user stays"


# --- doctor ---------------------------------------------------------------------------------------------------------
def topologies(kube: FakeKube) -> list[tuple[str, str]]:
    return [(check.status, check.message) for check in placement.topologies(kube, "default")]


def test_a_queue_with_both_kinds_of_flavors_is_a_warning(kube: FakeKube) -> None:
    ((status, message),) = topologies(kube)
    assert status == WARN and message.startswith("flavor flat has no topology, racks has")


def test_levels_are_shown_where_all_flavors_have_a_topology(kube: FakeKube) -> None:
    flavors(kube, "racks")
    assert topologies(kube) == [(OK, f"all flavors have one; levels {BLOCK}, {RACK}, kubernetes.io/hostname")]


def test_without_any_topology_nothing_is_said(kube: FakeKube) -> None:
    flavors(kube, "flat")
    assert topologies(kube) == []
    kube.patch(RESOURCE_FLAVOR, None, "racks", {"spec": {"topologyName": None}})
    assert topologies(kube) == []


def test_a_topology_that_does_not_exist_is_a_failure(kube: FakeKube) -> None:
    flavors(kube, "racks")
    kube.delete(TOPOLOGY, None, "halls")
    assert topologies(kube)[0] == (
        FAIL, "flavor racks names topology halls, which does not exist: its ClusterQueue is not active",
    )  # fmt: skip


def configured(kube: FakeKube, text: str) -> tuple[str, str, str]:
    """The one finding about device classes under this configuration of Kueue."""
    data = {"controller_manager_config.yaml": text}
    kube.put(obj(CONFIG_MAP, KUEUE_CONFIG, "kueue-system", data=data))
    (found,) = placement.device_classes(kube)
    return found.status, found.message, found.fix


MAPPED = "resources: {deviceClassMappings: [{name: devices/gpu, deviceClassNames: [gpu.example.com]}]}"


def test_a_device_class_that_kueue_does_not_count(kube: FakeKube) -> None:
    status, message, fix = configured(kube, "namespace: kueue-system")
    assert status == WARN and "no mapping for gpu.example.com" in message
    assert "deviceClassNames: [gpu.example.com]" in fix
    status, message, fix = configured(kube, MAPPED)
    assert status == WARN and "no ClusterQueue covers devices/gpu" in message and "coveredResources" in fix
    flavors(kube, "flat", covered=("cpu", "devices/gpu"))
    assert configured(kube, MAPPED) == (OK, "gpu.example.com counts as devices/gpu", "")
    status, message, _ = configured(kube, f"featureGates: {{KueueDRAIntegration: false}}\n{MAPPED}")
    assert status == WARN and "is off" in message


def test_without_dra_or_without_the_right_to_look_nothing_fails(kube: FakeKube) -> None:
    (found,) = placement.device_classes(kube)
    assert (found.status, found.fix) == (OK, "") and "may not be read" in found.message
    for error in (NotFound("no such kind", 404), Forbidden("no", 403)):
        kube.fail_next("list", DEVICE_CLASS, error)
        assert list(placement.device_classes(kube)) == []
    kube.delete(DEVICE_CLASS, None, "gpu.example.com")
    assert list(placement.device_classes(kube)) == []
