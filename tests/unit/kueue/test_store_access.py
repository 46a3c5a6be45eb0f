"""Which part of a pod gets what of the store: the sidecar all of it, the user's program nothing (review F4, F5)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adoption_cases import plain
from kueue_samples import PLATFORM, STORE_PODS, spec
from rendered import CHART, HELM, NO_HELM, controller_env, helm, render

from kueue_integration.adoption import trainjob
from kueue_integration.adoption.patch import adopted
from kueue_integration.contract import job_names
from kueue_integration.jobs import store_pod
from kueue_integration.manifests import job_manifests
from kueue_integration.manifests.pod import pod_spec
from kueue_integration.spec import platform_config, store_access, validation
from kueue_integration.spec.platform_config import PlatformConfig
from singularity_proxy.protocol import names

APART = replace(
    PLATFORM,
    store="file:///mnt/checkpoints",
    store_pods={
        "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
        "volumeMounts": [
            {"name": "store", "mountPath": "/mnt/checkpoints/jobs/{namespace}", "subPath": "jobs/{namespace}"}
        ],
        "env": {"STORE_HINT": "here"},
        "secret": "",
    },
    store_keys={"secret": "our-keys", "namespaces": ["secret", "both"]},
    stores={
        "both": {"url": "gs://{namespace}/x", "secret": "gcs", "serviceAccount": "trainer", "volumes": [],
                 "volumeMounts": []},
        "open": {"encrypt": False},
        "closed": {"encrypt": True},
    },
)  # fmt: skip


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (c for c in (*pod["initContainers"], *pod["containers"]) if c["name"] == name)
    return dict(found)


def env(pod: dict[str, Any], name: str) -> dict[str, str]:
    return {e["name"]: e["value"] for e in container(pod, name)["env"] if "value" in e}


def mounts(pod: dict[str, Any], name: str) -> dict[str, str]:
    return {m["name"]: m["mountPath"] for m in container(pod, name)["volumeMounts"]}


def test_the_sidecar_alone_has_the_store_and_the_keys() -> None:
    pod = pod_spec(spec(namespace="secret"), APART)
    sidecar, train = job_names.CONTAINER_SIDECAR, job_names.CONTAINER_TRAIN
    assert mounts(pod, sidecar)["store"] == "/mnt/checkpoints/jobs/secret"
    assert mounts(pod, sidecar)[store_access.KEYS_VOLUME] == store_access.KEYS_DIR
    assert env(pod, sidecar)[names.ENV_STORE_KEYS] == store_access.KEYS_DIR
    assert env(pod, sidecar)["STORE_HINT"] == "here"
    for other in (train, job_names.CONTAINER_INSTALL):
        assert not {"store", store_access.KEYS_VOLUME} & mounts(pod, other).keys()
    assert not {names.ENV_STORE_KEYS, "STORE_HINT"} & env(pod, train).keys()
    (volume,) = (v for v in pod["volumes"] if v["name"] == store_access.KEYS_VOLUME)
    assert volume["secret"] == {"secretName": "our-keys", "optional": True, "defaultMode": 0o440}
    (mount,) = (m for m in container(pod, sidecar)["volumeMounts"] if m["name"] == "store")
    assert mount["subPath"] == "jobs/secret"
    assert [*validation.problems(spec(namespace="secret"), APART)] == []


def test_a_namespace_has_a_store_of_its_own() -> None:
    pod = pod_spec(spec(namespace="both"), APART)
    assert env(pod, job_names.CONTAINER_SIDECAR)[names.ENV_STORE] == "gs://both/x"
    assert container(pod, job_names.CONTAINER_SIDECAR)["envFrom"] == [{"secretRef": {"name": "gcs"}}]
    assert "envFrom" not in container(pod, job_names.CONTAINER_TRAIN)
    assert pod["serviceAccountName"] == "trainer" and "store" not in {v["name"] for v in pod["volumes"]}
    made = job_manifests.job(spec(namespace="both"), APART)
    assert made["metadata"]["annotations"][job_names.ANN_STORE] == "gs://both/x"


@pytest.mark.parametrize(
    ("namespace", "encrypted"), [("secret", True), ("both", True), ("other", False), ("open", False), ("closed", True)]
)
def test_where_checkpoints_are_encrypted(namespace: str, encrypted: bool) -> None:
    assert (store_access.of(APART, namespace).keys == "our-keys") == encrypted
    asked = store_pod.manifest(namespace, APART, "file:///mnt/checkpoints", ["ls", namespace, "x"], 9)["spec"]
    (store,) = asked["containers"]
    told = {e["name"]: e["value"] for e in store["env"]}
    assert (told.get(names.ENV_STORE_KEYS) == store_access.KEYS_DIR) == encrypted
    assert (store_access.KEYS_VOLUME in {v["name"] for v in asked["volumes"]}) == encrypted
    job = adopted({**plain(), "metadata": {**plain()["metadata"], "namespace": namespace}}, APART)
    pod = job["spec"]["template"]["spec"]
    assert (names.ENV_STORE_KEYS in env(pod, job_names.CONTAINER_SIDECAR)) == encrypted
    assert names.ENV_STORE_KEYS not in env(pod, job_names.CONTAINER_TRAIN)


def test_what_all_namespaces_share_does_not_say_that_keys_count() -> None:
    (step,) = trainjob.runtime(APART)["spec"]["template"]["spec"]["replicatedJobs"]
    inner = step["template"]["spec"]["template"]["spec"]
    assert names.ENV_STORE_KEYS not in env(inner, job_names.CONTAINER_SIDECAR)


def test_a_platform_of_an_older_chart_says_nothing_of_it() -> None:
    data = json.loads(platform_config.to_json(PLATFORM))
    for name in ("store_pods", "store_keys", "stores"):
        del data[name]
    assert platform_config.from_json(json.dumps(data)) == PLATFORM
    assert store_access.of(PLATFORM, "any") == store_access.StoreAccess(url=PLATFORM.store)


@pytest.mark.parametrize("given", [{"stores": {"a": "gs://x"}}, {"store_pods": []}, {"store_keys": "x"}])
def test_what_is_not_a_description_of_a_store_is_named(given: dict[str, Any]) -> None:
    data = {**json.loads(platform_config.to_json(PLATFORM)), **given}
    with pytest.raises(Exception, match=next(iter(given))):
        platform_config.from_json(json.dumps(data))


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_the_chart_says_what_the_platform_reads(tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    store = {
        "url": "gs://bucket/{namespace}", **STORE_PODS, "env": {"A": "b"}, "secret": "s3",
        "encryption": {"enabled": True, "namespaces": ["a"]}, "namespaces": {"b": {"url": "gs://b/x"}},
    }  # fmt: skip
    values.write_text(json.dumps({"store": store}))
    config = published(str(values))
    access = store_access.of(config, "a")
    assert (access.url, access.secret, access.keys) == ("gs://bucket/a", "s3", "singularity-store-key")
    assert [*access.volumes] == STORE_PODS["volumes"] and [*access.mounts] == STORE_PODS["volumeMounts"]
    assert (store_access.of(config, "b").url, store_access.of(config, "b").keys) == ("gs://b/x", "")
    assert store_access.of(published(""), "a") == store_access.StoreAccess()


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
@pytest.mark.parametrize(
    "sets",
    [
        ("adoption.enabled=true", "store.namespaces.a.url=gs://x"),
        ("trainjob.enabled=true", "store.namespaces.a.encrypt=true"),
        ("trainjob.enabled=true", "store.url=gs://x/{namespace}"),
        ("adoption.enabled=true", "store.volumeMounts[0].name=s", "store.volumeMounts[0].mountPath=/s/{namespace}"),
    ],
)
def test_what_gives_all_namespaces_the_same_cannot_keep_their_stores_apart(sets: tuple[str, ...]) -> None:
    command = ["template", "singularity", str(CHART), "--kube-version", "1.36.0"]
    done = helm(*command, *(word for each in sets for word in ("--set", each)))
    assert done.returncode and "store." in done.stderr and "all namespaces the same" in done.stderr, done.stderr


def published(values: str) -> PlatformConfig:
    return platform_config.from_json(controller_env(render(values=values))["SINGULARITY_PLATFORM"])
