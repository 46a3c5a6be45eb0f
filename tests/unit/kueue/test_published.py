"""What the controller says to those who submit, with the authorities that pods trust; on a real API server, too."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from api_server import ApiServer
from kueue_samples import PLATFORM

from kueue_integration.adoption import admission_policy, patch, trainjob
from kueue_integration.contract import job_names
from kueue_integration.controller import keys
from kueue_integration.controller.published import Publisher, Settings
from kueue_integration.errors import AlreadyExists, ChartError, KubeError
from kueue_integration.kube.api import Kube
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, POD_TEMPLATE, TRAINING_RUNTIME, Object
from kueue_integration.spec import platform_config

SYSTEM, NAME = job_names.SYSTEM_NAMESPACE, job_names.PLATFORM_CONFIGMAP
HELM = {"meta.helm.sh/release-name": "singularity", "meta.helm.sh/release-namespace": SYSTEM}
MANAGED = {"app.kubernetes.io/managed-by": "Helm"}
LABELS = {**MANAGED, "app.kubernetes.io/instance": "singularity"}
CHART = replace(PLATFORM, controller_ca="")
KEYS = keys.fresh(["c.svc"], 1_790_000_000.0, 3650)
MORE = keys.kept(KEYS, ["c.svc"], 1_790_000_000.0, 3650, None, "again")


def config_map() -> Object:
    """As the chart makes it."""
    meta = {"name": NAME, "namespace": SYSTEM, "annotations": {**HELM, "other": "x"}, "labels": LABELS}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}


def check() -> Object:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck",
        "metadata": {"name": job_names.ADMISSION_CHECK_NAME},
    }  # fmt: skip


@pytest.fixture
def fake() -> Kube:
    return FakeKube(config_map(), check())


@pytest.fixture
def real(server: ApiServer) -> Iterator[Kube]:
    kube = server.kube()
    with contextlib.suppress(AlreadyExists):
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    kube.create(config_map())
    yield kube
    for kind, name in ((CONFIG_MAP, NAME), (POD_TEMPLATE, admission_policy.NAME)):
        if kube.find(kind, SYSTEM, name) is not None:
            kube.delete(kind, SYSTEM, name)


@pytest.fixture(params=["fake", "real"])
def kube(request: pytest.FixtureRequest) -> Kube:
    found: Kube = request.getfixturevalue(request.param)
    return found


def test_clients_read_the_charts_settings_with_all_authorities(kube: Kube) -> None:
    publisher = Publisher(kube, SYSTEM, Settings(CHART), lambda: True)
    for found in (KEYS, MORE):
        publisher.publish(found)
        assert platform_config.load(kube) == replace(CHART, controller_ca=found.bundle)
    version = kube.get(CONFIG_MAP, SYSTEM, NAME)["metadata"]["resourceVersion"]
    publisher.publish(MORE)
    assert kube.get(CONFIG_MAP, SYSTEM, NAME)["metadata"]["resourceVersion"] == version


def test_adoption_has_the_same_authorities_and_goes_with_the_chart(kube: Kube) -> None:
    publisher = Publisher(kube, SYSTEM, Settings(CHART, adoption=True), lambda: True)
    for found in (KEYS, MORE):
        publisher.publish(found)
        made = kube.get(POD_TEMPLATE, SYSTEM, admission_policy.NAME)
        assert literals(made["template"]["spec"]) == literals(patch.parts(replace(CHART, controller_ca=found.bundle)))
    meta = made["metadata"]
    assert meta["annotations"].items() >= HELM.items() and "other" not in meta["annotations"]
    assert meta["labels"] == MANAGED
    (owner,) = meta["ownerReferences"]
    assert owner["uid"] == kube.get(CONFIG_MAP, SYSTEM, NAME)["metadata"]["uid"]
    publisher.publish(MORE)
    assert kube.get(POD_TEMPLATE, SYSTEM, admission_policy.NAME)["metadata"] == meta
    kube.delete(POD_TEMPLATE, SYSTEM, admission_policy.NAME)
    publisher.publish(MORE)
    assert kube.get(POD_TEMPLATE, SYSTEM, admission_policy.NAME)["template"] == made["template"]


def literals(pod: Object) -> list[tuple[str, str, str]]:
    """The variables with a value; the API server adds defaults to the others."""
    containers = [*pod["initContainers"], *pod["containers"]]
    return [(c["name"], e["name"], e["value"]) for c in containers for e in c.get("env") or () if "value" in e]


def test_a_new_process_puts_back_what_was_edited(fake: Kube) -> None:
    def publish() -> Object:
        Publisher(fake, SYSTEM, Settings(CHART, adoption=True), lambda: True).publish(KEYS)
        return fake.get(POD_TEMPLATE, SYSTEM, admission_policy.NAME)["template"]

    before = publish()
    fake.patch(POD_TEMPLATE, SYSTEM, admission_policy.NAME, {"template": {"spec": {"containers": []}}})
    assert publish() == before


def test_the_runtime_of_trainjobs_names_an_image_where_the_platform_has_none(fake: Kube) -> None:
    settings = Settings(replace(CHART, train_image=""), trainjob=True)
    Publisher(fake, SYSTEM, settings, lambda: True).publish(KEYS)
    made = fake.get(TRAINING_RUNTIME, None, trainjob.RUNTIME)
    text = json.dumps(made["spec"])
    assert json.dumps(KEYS.bundle) in text and f'"image": "{trainjob.NO_IMAGE}"' in text
    assert made["metadata"]["labels"].items() >= trainjob.FRAMEWORK.items()
    assert made["metadata"]["ownerReferences"][0]["kind"] == "AdmissionCheck"


def test_only_the_one_that_acts_publishes(fake: Kube) -> None:
    Publisher(fake, SYSTEM, Settings(CHART, adoption=True), lambda: False).publish(KEYS)
    with pytest.raises(ChartError, match=r"has no key platform\.json"):
        platform_config.load(fake)


def test_a_config_map_that_is_gone_is_named(fake: Kube) -> None:
    fake.delete(CONFIG_MAP, SYSTEM, NAME)
    with pytest.raises((ChartError, KubeError), match=f"no ConfigMap {SYSTEM}/{NAME}"):
        Publisher(fake, SYSTEM, Settings(CHART), lambda: True).publish(KEYS)
