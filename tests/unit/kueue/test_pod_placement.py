"""`topology`, `node_selector`, `tolerations`, `resource_claims`: what they become, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_server import ApiServer
from hypothesis import given
from hypothesis import strategies as st
from kueue_samples import PLATFORM, namespace, spec

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError, SpecError
from kueue_integration.kube.resources import NAMESPACE
from kueue_integration.manifests import live_job
from kueue_integration.manifests.job_manifests import render
from kueue_integration.multikueue import companions
from kueue_integration.spec.train_spec import TrainSpec, from_mapping
from kueue_integration.spec.validate import validate
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Origin

RACK = "example.com/rack"
CEL = "device.attributes['gpu.example.com'].memory == '80Gi'"
GPU = {"name": "gpu", "device_class": "gpu.example.com", "count": 2, "selectors": [CEL]}
NIC = {"name": "nic", "template": "fast-nic"}
SPOT = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}


def rendered(**changes: Any) -> dict[str, Any]:
    return {obj["kind"]: obj for obj in render(spec(**changes), PLATFORM)}


def template(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = rendered(**changes)["Job"]["spec"]["template"]
    return found


def refused(**changes: Any) -> dict[str, str]:
    try:
        validate(spec(**changes), PLATFORM)
    except SpecError as error:
        return {field: text for field, _, text in error.problems}
    return {}


# --- what they become -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("topology", "annotation"),
    [
        ({"required": RACK}, {"kueue.x-k8s.io/podset-required-topology": RACK}),
        ({"preferred": RACK}, {"kueue.x-k8s.io/podset-preferred-topology": RACK}),
        ("unconstrained", {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}),
        (None, {}),
    ],
)
def test_a_topology_is_one_annotation_of_the_pods(topology: Any, annotation: dict[str, str]) -> None:
    job = rendered(topology=topology, annotations={"example.org/bill": "7"})["Job"]
    found = job["spec"]["template"]["metadata"]["annotations"]
    assert found == {"example.org/bill": "7", **annotation}
    assert not set(annotation) & set(job["metadata"]["annotations"]), "Kueue reads it from the pods"


def test_node_selector_and_tolerations_are_those_of_the_pod_and_leave_room_for_the_flavors() -> None:
    pod = template(node_selector={"disk": "fast"}, tolerations=[SPOT])["spec"]
    assert pod["nodeSelector"] == {"disk": "fast"} and pod["tolerations"] == [SPOT]
    override = {"spec": {"nodeSelector": {"zone": "a"}}}
    both = template(node_selector={"disk": "fast"}, pod_override=override)["spec"]
    assert both["nodeSelector"] == {"disk": "fast", "zone": "a"}


def test_without_them_nothing_is_said() -> None:
    text = json.dumps(render(spec(), PLATFORM))
    for word in ("topology", "nodeSelector", "tolerations", "resourceClaims", "ResourceClaimTemplate"):
        assert word not in text


def test_a_claim_by_device_class_is_a_template_of_its_own_one_claim_per_pod() -> None:
    objects = rendered(resource_claims=[GPU, NIC], resources={"cpu": "1", "memory": "1Gi"})
    assert list(objects) == ["ConfigMap", "ResourceClaimTemplate", "Service", "Job"]
    made, pod = objects["ResourceClaimTemplate"], objects["Job"]["spec"]["template"]["spec"]
    assert made["metadata"]["labels"][job_names.LABEL_JOB] == "digits"
    exactly = {
        "deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 2,
        "selectors": [{"cel": {"expression": CEL}}],
    }  # fmt: skip
    assert made["spec"] == {"spec": {"devices": {"requests": [{"name": "devices", "exactly": exactly}]}}}
    assert pod["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": made["metadata"]["name"]},
        {"name": "nic", "resourceClaimTemplateName": "fast-nic"},
    ]
    (train,) = pod["containers"]
    assert train["resources"]["claims"] == [{"name": "gpu"}, {"name": "nic"}]
    assert train["resources"]["limits"] == {"memory": "1Gi"}
    assert all("claims" not in c.get("resources", {}) for c in pod["initContainers"])


def test_a_pod_with_claimed_devices_has_no_limit_of_images_by_memory() -> None:
    def told(**changes: Any) -> set[str]:
        (train,) = template(resources={"cpu": "1", "memory": "1Gi"}, **changes)["spec"]["containers"]
        return {item["name"] for item in train["env"]}

    assert names.ENV_IMAGE_ROOM in told() and names.ENV_IMAGE_ROOM not in told(resource_claims=[GPU])


def test_slices_and_shares_of_a_device_are_resources() -> None:
    amounts = {"cpu": "1", "nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu.shared": "2"}
    (train,) = template(resources=amounts)["spec"]["containers"]
    assert train["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu.shared": "2"}


def test_templates_of_a_dag_may_render_all_of_them_to_text() -> None:
    text = {
        "name": "digits", "queue": "training", "command": '["python3", "t.py"]',
        "topology": json.dumps({"required": RACK}), "node_selector": '{"disk": "fast"}',
        "tolerations": json.dumps([SPOT]), "resource_claims": json.dumps([GPU]),
    }  # fmt: skip
    found = from_mapping(text)
    assert (found.topology, found.node_selector) == ({"required": RACK}, {"disk": "fast"})
    assert (found.tolerations, found.resource_claims) == ((SPOT,), (GPU,))
    assert from_mapping({**text, "topology": "unconstrained"}).topology == "unconstrained"


# --- what is refused ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("field", "changes", "fix"),
    [
        ("topology", {"topology": RACK}, "{'required': LABEL}"),
        ("topology", {"topology": {}}, "one entry"),
        ("topology", {"topology": {"required": RACK, "preferred": RACK}}, "one entry"),
        ("topology", {"topology": {"wanted": RACK}}, "one entry"),
        ("topology['required']", {"topology": {"required": "a rack"}}, "key of a node label"),
        ("topology['preferred']", {"topology": {"preferred": None}}, "key of a node label"),
        ("node_selector", {"node_selector": "disk=fast"}, "mapping of node labels"),
        ("node_selector['a b']", {"node_selector": {"a b": "c"}}, "the key"),
        ("node_selector['disk']", {"node_selector": {"disk": "a b"}}, "at most 63 letters"),
        ("node_selector['disk']", {"node_selector": {"disk": True}}, "must be text"),
        ("tolerations", {"tolerations": "spot"}, "list of mappings"),
        ("tolerations", {"tolerations": ["spot"]}, "list of mappings"),
        ("tolerations[0].seconds", {"tolerations": [{**SPOT, "seconds": 3}]}, "use key, operator"),
        ("tolerations[0].operator", {"tolerations": [{**SPOT, "operator": "In"}]}, "Equal or Exists"),
        ("tolerations[0].key", {"tolerations": [{"effect": "NoSchedule"}]}, "name the taint"),
        ("tolerations[0].value", {"tolerations": [{**SPOT, "value": "x"}]}, "left out with operator Exists"),
        ("tolerations[0].effect", {"tolerations": [{**SPOT, "effect": "No"}]}, "NoExecute"),
        ("tolerations[0].key", {"tolerations": [{"key": "a b", "value": "c"}]}, "a taint can have"),
        ("tolerations[0].tolerationSeconds", {"tolerations": [{**SPOT, "tolerationSeconds": 3}]}, "NoExecute"),
        ("resource_claims", {"resource_claims": "gpu"}, "list of mappings"),
        ("resource_claims[0].name", {"resource_claims": [{**GPU, "name": "My GPU"}]}, "lower-case"),
        ("resource_claims[1].name", {"resource_claims": [GPU, GPU]}, "name of its own"),
        ("resource_claims[0]", {"resource_claims": [{"name": "gpu"}]}, "either device_class, or template"),
        ("resource_claims[0]", {"resource_claims": [{**GPU, "template": "t"}]}, "either device_class, or template"),
        ("resource_claims[0].claim", {"resource_claims": [{**NIC, "claim": "c"}]}, "is not a field of a claim"),
        ("resource_claims[0].template", {"resource_claims": [{**NIC, "template": "T"}]}, "ResourceClaimTemplate"),
        ("resource_claims[0].count", {"resource_claims": [{**NIC, "count": 2}]}, "leave it out here"),
        ("resource_claims[0].device_class", {"resource_claims": [{**GPU, "device_class": 7}]}, "DeviceClass"),
        ("resource_claims[0].count", {"resource_claims": [{**GPU, "count": 33}]}, "1 to 32"),
        ("resource_claims[0].count", {"resource_claims": [{**GPU, "count": True}]}, "whole number"),
        ("resource_claims[0].selectors", {"resource_claims": [{**GPU, "selectors": CEL}]}, "list of CEL"),
        ("resource_claims[0].selectors", {"resource_claims": [{**GPU, "selectors": [""]}]}, "list of CEL"),
    ],
)
def test_bad_input_is_named_with_its_fix(field: str, changes: dict[str, Any], fix: str) -> None:
    found = refused(**changes)
    assert fix in found[field], found


@pytest.mark.parametrize(
    ("where", "fields", "body"),
    [
        ("tolerations", {"tolerations": [SPOT]}, {"tolerations": [SPOT]}),
        ("resourceClaims", {"resource_claims": [GPU]}, {"resourceClaims": [{"name": "x"}]}),
        ("nodeSelector['disk']", {"node_selector": {"disk": "fast"}}, {"nodeSelector": {"disk": "slow"}}),
        (
            "containers[0].resources.claims",
            {"resource_claims": [GPU]},
            {"containers": [{"name": "train", "resources": {"claims": [{"name": "x"}]}}]},
        ),
    ],
)
def test_what_pod_override_would_replace_silently_is_refused(
    where: str, fields: dict[str, Any], body: dict[str, Any]
) -> None:
    assert refused(pod_override={"spec": body}) == {}
    assert list(refused(**fields, pod_override={"spec": body})) == [f"pod_override.spec.{where}"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(anything, anything, st.lists(anything, max_size=2), st.lists(anything, max_size=2))
def test_whatever_is_given_is_valid_or_named(topology: Any, selector: Any, tolerations: Any, claims: Any) -> None:
    try:
        given = TrainSpec(
            name="digits", queue="training", command=["t"], topology=topology, node_selector=selector,
            tolerations=tolerations, resource_claims=claims,
        )  # fmt: skip
        json.dumps(render(given, PLATFORM))
    except SpecError as error:
        fields = ("topology", "node_selector", "tolerations", "resource_claims")
        assert all(field.startswith(fields) and text for field, _, text in error.problems)


# --- what comes along -----------------------------------------------------------------------------------------------
def test_a_branch_of_a_job_has_its_topology_and_claims_of_its_own() -> None:
    objects = rendered(resource_claims=[GPU, NIC], topology={"required": RACK})
    new = live_job.Fork("branch", "training", None, Origin(job="digits", checkpoint="c"))
    made = live_job.forked(objects["Job"], None, new)
    claims = made["spec"]["template"]["spec"]["resourceClaims"]
    assert [c["resourceClaimTemplateName"] for c in claims] == ["branch-gpu", "fast-nic"]
    assert made["spec"]["template"]["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == RACK
    child = live_job.forked_child(objects["ResourceClaimTemplate"], "digits", "branch")
    assert (child["metadata"]["name"], child["spec"]) == ("branch-gpu", objects["ResourceClaimTemplate"]["spec"])


def test_claim_templates_follow_the_copy_of_a_job_into_another_cluster() -> None:
    objects = rendered(resource_claims=[GPU, NIC])
    wanted = {(kind.name, name) for kind, name in companions.needed(objects["Job"])}
    assert {("ResourceClaimTemplate", "digits-gpu"), ("ResourceClaimTemplate", "fast-nic")} <= wanted
    copy = {**objects["Job"], "metadata": {**objects["Job"]["metadata"], "uid": "there"}}
    made = companions.made_for(objects["ResourceClaimTemplate"], copy)
    assert made["spec"] == objects["ResourceClaimTemplate"]["spec"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "there"


# --- a real API server ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def place(server: ApiServer) -> str:
    name = "placement"
    server.kube().create(namespace(name))
    assert server.kube().get(NAMESPACE, None, name)
    return name


def test_the_api_server_keeps_every_field_as_it_was_rendered(server: ApiServer, place: str) -> None:
    given = spec(
        namespace=place, resource_claims=[GPU, NIC], topology={"required": RACK}, node_selector={"disk": "fast"},
        tolerations=[SPOT, {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 9}],
    )  # fmt: skip
    objects = {obj["kind"]: obj for obj in render(given, PLATFORM)}
    claim = server.kube().create(objects["ResourceClaimTemplate"])
    assert claim["spec"]["spec"] == objects["ResourceClaimTemplate"]["spec"]["spec"]
    sent = objects["Job"]["spec"]["template"]
    found = server.kube().create(objects["Job"])["spec"]["template"]
    assert found["metadata"]["annotations"] == sent["metadata"]["annotations"]
    for field in ("nodeSelector", "tolerations", "resourceClaims"):
        assert found["spec"][field] == sent["spec"][field], f"{field}: a field is unknown or was changed"
    assert found["spec"]["containers"][0]["resources"] == sent["spec"]["containers"][0]["resources"]


@pytest.mark.parametrize("selector", ["device.attributes[", "1 + 1"])
def test_a_selector_that_is_no_expression_is_refused_by_the_api_server(
    server: ApiServer, place: str, selector: str
) -> None:
    claims = [{**GPU, "selectors": [selector]}]
    made = next(o for o in render(spec(namespace=place, resource_claims=claims), PLATFORM) if "Claim" in o["kind"])
    with pytest.raises(KubeError, match="expression"):
        server.kube().create(made, dry_run=True)
