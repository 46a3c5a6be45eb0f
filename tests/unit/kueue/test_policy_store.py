"""Who may mount a volume of the checkpoint store, as a real API server enforces it: the sidecar, and nobody who could
read other namespaces in it (review F4)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
from api_server import TENANT, TRAINS, Policies
from kueue_samples import PLATFORM, STORE_PODS
from pod_variants import Pod, other, ours
from test_policy_pods import job, pod, said

from kueue_integration.doctor import probe
from kueue_integration.jobs import store_pod
from kueue_integration.spec.platform_config import PlatformConfig

APART = replace(PLATFORM, store="file:///store", store_pods=STORE_PODS)


def question(namespace: str = TRAINS, platform: PlatformConfig = APART) -> Pod:
    made = store_pod.manifest(TRAINS, platform, "file:///store", ["ls", namespace, "digits"], 9)
    return copy.deepcopy(made["spec"])


def changed(made: Pod, **fields: object) -> Pod:
    made["containers"][0].update(fields)
    return made


def with_store(made: Pod, container: str) -> Pod:
    made.setdefault("volumes", []).append(STORE_PODS["volumes"][0])
    (found,) = (each for each in made["containers"] if each["name"] == container)
    found.setdefault("volumeMounts", []).append(STORE_PODS["volumeMounts"][0])
    return made


GOOD: dict[str, Callable[[], Pod]] = {
    "a training job": lambda: ours(APART),
    "an encrypted one": lambda: ours(replace(APART, store_keys={"secret": "keys"})),
    "with variables from a Secret": lambda: ours(replace(APART, store_pods={**STORE_PODS, "secret": "s3"})),
    "a question about a job of this namespace": question,
    "doctor's probe": lambda: probe.pod(TRAINS, APART, {"spec": {}}, 60)["spec"],
}
BAD: dict[str, tuple[Callable[[], Pod], str]] = {
    "an ordinary pod": (lambda: with_store(other(PLATFORM), "main"), "main"),
    "the training container": (lambda: with_store(ours(PLATFORM), "train"), "train"),
    "a question about another namespace": (lambda: question("others"), "store"),
    "another program": (lambda: changed(question(), command=["cat", "/store", "-", "-", "-", TRAINS]), "store"),
    "another image": (lambda: changed(question(), image="example/mine:1"), "store"),
    "another folder to find programs in": (lambda: changed(question(), workingDir="/store"), "store"),
    "a Python of the user's": (lambda: changed(question(), env=[{"name": "PYTHONHOME", "value": "/x"}]), "store"),
}


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_the_sidecar_has_the_store(policies: Policies, make: Callable[[], Pod]) -> None:
    for manifest in (pod(make()), job(make())):
        policies.server.kube(TENANT).create(manifest, dry_run=True)


@pytest.mark.parametrize(("make", "container"), BAD.values(), ids=BAD.keys())
def test_nobody_else_has_it(policies: Policies, make: Callable[[], Pod], container: str) -> None:
    for manifest in (pod(make()), job(make())):
        refused = said(lambda manifest=manifest: policies.server.kube(TENANT).create(manifest, dry_run=True))
        assert f"container {container}: a volume of the checkpoint store" in refused, refused


@pytest.mark.parametrize("container", ["device-proxy", "store"])
@pytest.mark.parametrize(
    "fields",
    [{"envFrom": [{"configMapRef": {"name": "mine"}}]}, {"envFrom": [{"secretRef": {"name": "mine"}}]},
     {"env": [{"name": "AWS_CONFIG_FILE", "value": "/mine/config"}]},
     {"env": [{"name": "BOTO_CONFIG", "valueFrom": {"configMapKeyRef": {"name": "mine", "key": "x"}}}]}],
)  # fmt: skip
def test_no_variable_of_a_tenant_is_read_beside_the_store(policies: Policies, container: str, fields: Pod) -> None:
    """It may name modules for the program to load, from a volume of the tenant's."""
    made = ours(APART) if container == "device-proxy" else question()
    (found,) = (c for c in (*made.get("initContainers", ()), *made["containers"]) if c["name"] == container)
    found.update(envFrom=fields.get("envFrom", []), env=[*found["env"], *fields.get("env", [])])
    for manifest in (pod(made), job(made)):
        refused = said(lambda manifest=manifest: policies.server.kube(TENANT).create(manifest, dry_run=True))
        assert f"container {container}: beside a hostPath of the checkpoint store" in refused, refused


def test_nobody_looks_into_it_from_beside(policies: Policies) -> None:
    made = {**question(), "shareProcessNamespace": True}
    made["containers"].append({"name": "main", "image": "example/mine:1"})
    refused = said(lambda: policies.server.kube(TENANT).create(pod(made), dry_run=True))
    assert "container store: no shareProcessNamespace beside it" in refused, refused
