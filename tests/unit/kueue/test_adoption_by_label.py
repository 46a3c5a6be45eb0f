"""A Job that is adopted by its label alone, by a real API server: it has the level that `adopt` would have given it."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adoption_cases import plain
from api_server import ApiServer
from kueue_samples import PLATFORM
from rendered import HELM, NO_HELM, render

from kueue_integration.adoption import admission_policy, recreate
from kueue_integration.contract import job_names
from kueue_integration.job import states
from kueue_integration.kube.client import ApiKube
from kueue_integration.kube.resources import Kind, Object, annotation
from kueue_integration.spec import privileges, store_access
from kueue_integration.spec.platform_config import AUTO, NODE, USER_NAMESPACE, PlatformConfig
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol import names

API = "admissionregistration.k8s.io/v1"
SETTINGS = (AUTO, USER_NAMESPACE, NODE)
CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a claim": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
    "huge pages": {"volumes": [{"name": "data", "emptyDir": {"medium": "HugePages"}}]},
    "a device": {"resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}},
    "a device claim": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]},
}


def given(setting: str) -> PlatformConfig:
    return replace(
        PLATFORM, privileges=setting, user_namespaces={"new": {privileges.CAN: privileges.ALL}},
        store="file:///shared/{namespace}", store_keys={"secret": "keys", "namespaces": [f"of-{AUTO}"]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def kube(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiKube]:
    """A namespace for each setting of the chart, with the policy that the chart has then."""
    if HELM is None:
        pytest.skip(NO_HELM)
    admin = server.kube()
    file = tmp_path_factory.mktemp("values") / "values.json"
    for setting in SETTINGS:
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"of-{setting}"}})
        _install(admin, file, setting)
        wait_for(lambda s=setting: adopted(admin, plain(), s), f"the policy of {setting} is in force", 60)
    yield admin
    for setting, kind in itertools.product(SETTINGS, ("MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy")):
        admin.delete(_kind(kind), None, f"of-{setting}")


def _install(admin: ApiKube, file: Path, setting: str) -> None:
    pods = {"volumes": [*PLATFORM.volumes], "volumeMounts": [*PLATFORM.volume_mounts], "env": dict(PLATFORM.env)}
    values = {"images": {"agent": PLATFORM.agent_image}, "store": {"url": given(setting).store}}
    file.write_text(json.dumps({**values, "pods": {**pods, "privileges": setting}}))
    chart = render("adoption.enabled=true", values=str(file), served=(f"{API}/MutatingAdmissionPolicy",))
    name = f"of-{setting}"
    admin.create(admission_policy.pod_template(given(setting), name))
    for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"):
        made = copy.deepcopy(chart[kind, admission_policy.NAME])
        made["metadata"] = {"name": name}
        if "policyName" in made["spec"]:
            made["spec"] |= {"policyName": name, "matchResources": {"namespaceSelector": _only(name)}}
            made["spec"]["paramRef"]["namespace"] = name
        admin._json("POST", _kind(kind).path(None), body=made)


def _kind(name: str) -> Kind:
    plural = f"{name.lower()[:-1]}ies" if name.endswith("y") else f"{name.lower()}s"
    return Kind(name, *API.split("/"), plural, namespaced=False)


def _only(namespace: str) -> Object:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def adopted(admin: ApiKube, job: Object, setting: str) -> Object | None:
    """The Job as the API server makes it; None where no policy is in force yet."""
    made = copy.deepcopy(job)
    made["metadata"]["namespace"] = f"of-{setting}"
    made["metadata"]["labels"][job_names.LABEL_MANAGED] = "true"
    answer: Object = admin.create(made, dry_run=True)
    return answer if annotation(answer, job_names.ANN_PRIVILEGES_WHY) is not None else None


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("wish", [None, AUTO, USER_NAMESPACE])
@pytest.mark.parametrize("case", CASES)
def test_a_label_gives_the_level_that_the_command_gives(
    kube: ApiKube, setting: str, wish: str | None, case: str
) -> None:
    job, more = plain(), CASES[case]
    job["metadata"]["annotations"] |= {job_names.ANN_PRIVILEGES: wish} if wish else {}
    pod = job["spec"]["template"]["spec"]
    pod["volumes"] = [*pod["volumes"], *more.get("volumes", ())]
    pod["containers"][0]["resources"] |= more.get("resources", {})
    pod |= {key: value for key, value in more.items() if key == "resourceClaims"}
    want, made = recreate.manifest(job, given(setting)), adopted(kube, job, setting)
    assert made is not None
    for read in (states.privileges, lambda each: annotation(each, job_names.ANN_PRIVILEGES_WHY)):
        assert read(made) == read(want)
    expected = setting if setting != AUTO else NODE if more else USER_NAMESPACE
    assert states.privileges(made) == (USER_NAMESPACE if wish == USER_NAMESPACE else expected)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_label_gives_the_store_that_the_command_gives(kube: ApiKube, setting: str) -> None:
    """Its URL has the namespace's name, and checkpoints are encrypted in one of the namespaces alone."""
    job, made = plain(), adopted(kube, plain(), setting)
    job["metadata"]["namespace"] = f"of-{setting}"
    assert made is not None
    of_label, of_command = (_sidecar(each) for each in (made, recreate.manifest(job, given(setting))))
    assert _variables(of_label) == _variables(of_command)
    assert _variables(of_label)[names.ENV_STORE] == f"file:///shared/of-{setting}"
    assert annotation(made, job_names.ANN_STORE) == f"file:///shared/of-{setting}"
    assert (names.ENV_STORE_KEYS in _variables(of_label)) == (setting == AUTO)
    (mount,) = (m for m in of_label["volumeMounts"] if m["name"] == store_access.KEYS_VOLUME)
    assert mount["mountPath"] == store_access.KEYS_DIR and mount["readOnly"]


def _sidecar(job: Object) -> Object:
    pod = job["spec"]["template"]["spec"]
    (found,) = (c for c in pod["initContainers"] if c["name"] == job_names.CONTAINER_SIDECAR)
    return dict(found)


def _variables(container: Object) -> dict[str, str]:
    return {e["name"]: e["value"] for e in container["env"] if e.get("value")}
