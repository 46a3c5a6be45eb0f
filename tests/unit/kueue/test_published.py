"""What the controller says to those who submit, with the authorities that pods trust; on a real API server, too."""

from __future__ import annotations

import contextlib
import json
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace

import adoption_cases
import pytest
from api_server import ApiServer
from kueue_samples import PLATFORM

from kueue_integration.adoption import recreate, review, trainjob
from kueue_integration.contract import job_names
from kueue_integration.controller import keys
from kueue_integration.controller.published import Publisher, Settings
from kueue_integration.errors import AlreadyExists, ChartError, KubeError, PlatformError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.api import Kube
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, MUTATING_WEBHOOK, TRAINING_RUNTIME, Object
from kueue_integration.spec import platform_config
from kueue_integration.spec.platform_config import USER_NAMESPACE, PlatformConfig
from kueue_integration.spec.train_spec import TrainSpec

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


def webhook() -> Object:
    """As the chart makes it, for nobody's Jobs: other tests have the same API server."""
    service = {"name": "c", "namespace": SYSTEM, "path": review.PATH, "port": 443}
    hook = {
        "name": "adoption.singularity.dev", "clientConfig": {"service": service}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "namespaceSelector": {"matchLabels": {"nobody": "has"}},
        "rules": [{"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}],
    }  # fmt: skip
    api = "admissionregistration.k8s.io/v1"
    return {"apiVersion": api, "kind": MUTATING_WEBHOOK.name, "metadata": {"name": review.NAME}, "webhooks": [hook]}


@pytest.fixture
def fake() -> Kube:
    return FakeKube(config_map(), check(), webhook())


@pytest.fixture
def real(server: ApiServer) -> Iterator[Kube]:
    kube = server.kube()
    with contextlib.suppress(AlreadyExists):
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    kube.create(config_map())
    kube.create(webhook())
    yield kube
    for kind, namespace, name in ((CONFIG_MAP, SYSTEM, NAME), (MUTATING_WEBHOOK, None, review.NAME)):
        if kube.find(kind, namespace, name) is not None:
            kube.delete(kind, namespace, name)


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


def test_clients_read_what_of_the_guard_of_pods_is_not_in_force(kube: Kube) -> None:
    problem = "no ValidatingAdmissionPolicy singularity-guard-pods"
    publisher = Publisher(kube, SYSTEM, Settings(CHART), lambda: True, guard_problem=lambda: problem)
    publisher.publish(KEYS)
    platform = platform_config.load(kube)
    spec = TrainSpec(name="t", queue="q", namespace="team", command=["true"], image="any:1", store="gs://b/c")
    for submit in (lifecycle.submit, lifecycle.validate_only):
        with pytest.raises(PlatformError, match=rf"not in force \({problem}\).*: {job_names.UPGRADE}"):
            submit(FakeKube(), spec, platform)
    with pytest.raises(PlatformError, match=problem):
        recreate.preview(FakeKube(), "team", "t", platform)
    problem = ""
    publisher.publish(KEYS)
    assert platform_config.load(kube).guard_problem == ""


def trusted(kube: Kube) -> list[str]:
    """What the API server trusts when it asks for adoption."""
    clients = [each["clientConfig"] for each in kube.get(MUTATING_WEBHOOK, None, review.NAME)["webhooks"]]
    assert all(client["service"]["path"] == review.PATH for client in clients)
    return [b64decode(client.get("caBundle") or "").decode() for client in clients]


def test_the_api_server_trusts_the_same_authorities_when_it_asks_for_adoption(kube: Kube) -> None:
    publisher = Publisher(kube, SYSTEM, Settings(CHART, adoption=True), lambda: True)
    assert publisher.adopts is None
    for found in (KEYS, MORE):
        publisher.publish(found)
        assert trusted(kube) == [found.bundle]
        assert publisher.adopts == replace(CHART, controller_ca=found.bundle)
    version = kube.get(MUTATING_WEBHOOK, None, review.NAME)["metadata"]["resourceVersion"]
    publisher.publish(MORE)
    assert kube.get(MUTATING_WEBHOOK, None, review.NAME)["metadata"]["resourceVersion"] == version
    kube.delete(MUTATING_WEBHOOK, None, review.NAME)
    with pytest.raises(ChartError, match="no Job is adopted by its label"):
        publisher.publish(MORE)
    kube.create(webhook())  # the chart was applied again
    publisher.publish(MORE)
    assert trusted(kube) == [MORE.bundle]


def test_without_adoption_nobody_looks_for_its_webhook(fake: Kube) -> None:
    fake.delete(MUTATING_WEBHOOK, None, review.NAME)
    publisher = Publisher(fake, SYSTEM, Settings(CHART), lambda: True)
    publisher.publish(KEYS)
    assert publisher.adopts is None


def test_a_new_process_puts_back_what_was_edited(fake: Kube) -> None:
    def publish() -> Object:
        Publisher(fake, SYSTEM, Settings(CHART, trainjob=True), lambda: True).publish(KEYS)
        return fake.get(TRAINING_RUNTIME, None, trainjob.RUNTIME)["spec"]

    before = publish()
    fake.patch(TRAINING_RUNTIME, None, trainjob.RUNTIME, {"spec": {"mlPolicy": {"numNodes": 7}}})
    assert publish() == before


def test_a_trainjob_runs_on_a_version_that_an_upgrade_leaves_as_it_is(fake: Kube) -> None:
    """Trainer applies the runtime again at each resume, and JobSet refuses another pod template."""

    def given(chart: PlatformConfig) -> tuple[str, Object]:
        """The version on which a TrainJob that is adopted now would run."""
        Publisher(fake, SYSTEM, Settings(chart, trainjob=True), lambda: True).publish(KEYS)
        platform = platform_config.load(fake)
        spec = trainjob.adopted_trainjob(adoption_cases.trainjob(), platform)["spec"]
        name = spec["runtimeRef"]["name"]
        return name, fake.get(TRAINING_RUNTIME, None, name)

    name, before = given(CHART)
    again = fake.get(TRAINING_RUNTIME, None, trainjob.RUNTIME)
    assert before["spec"] == again["spec"] and before["metadata"]["ownerReferences"][0]["kind"] == "AdmissionCheck"
    assert given(CHART) == (name, before)
    for change in ({"env": {"A": "b"}}, {"agent_image": "r/agent:2"}, {"privileges": USER_NAMESPACE}):
        other, made = given(replace(CHART, **change))
        assert other != name and made["spec"] != before["spec"]
        assert fake.get(TRAINING_RUNTIME, None, trainjob.RUNTIME)["spec"] == made["spec"]
        assert fake.get(TRAINING_RUNTIME, None, name) == before
    assert given(CHART) == (name, before), "a rollback finds its version"


def test_without_versions_a_trainjob_runs_on_the_runtime_itself() -> None:
    """The library is newer than the controller."""
    spec = trainjob.adopted_trainjob(adoption_cases.trainjob(), PLATFORM)["spec"]
    assert spec["runtimeRef"]["name"] == trainjob.RUNTIME


def test_the_runtime_of_trainjobs_names_an_image_where_the_platform_has_none(fake: Kube) -> None:
    settings = Settings(replace(CHART, train_image=""), trainjob=True)
    Publisher(fake, SYSTEM, settings, lambda: True).publish(KEYS)
    made = fake.get(TRAINING_RUNTIME, None, trainjob.RUNTIME)
    text = json.dumps(made["spec"])
    assert json.dumps(KEYS.bundle) in text and f'"image": "{trainjob.NO_IMAGE}"' in text
    assert made["metadata"]["labels"].items() >= trainjob.FRAMEWORK.items()
    assert made["metadata"]["ownerReferences"][0]["kind"] == "AdmissionCheck"


def test_only_the_one_that_acts_publishes(fake: Kube) -> None:
    standby = Publisher(fake, SYSTEM, Settings(CHART, adoption=True), lambda: False)
    standby.publish(KEYS)
    assert trusted(fake) == [""] and standby.adopts is not None, "both replicas answer the API server"
    with pytest.raises(ChartError, match=r"has no key platform\.json"):
        platform_config.load(fake)


def test_a_config_map_that_is_gone_is_named(fake: Kube) -> None:
    fake.delete(CONFIG_MAP, SYSTEM, NAME)
    with pytest.raises((ChartError, KubeError), match=f"no ConfigMap {SYSTEM}/{NAME}"):
        Publisher(fake, SYSTEM, Settings(CHART), lambda: True).publish(KEYS)
