"""Gates, Kueue's configuration, the controller's permissions, grace periods, and the pods of --probe."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from kueue_samples import PLATFORM, attempt, job

from kueue_integration.doctor import FAIL, OK, WARN, access, gates, jobs, run_probe
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import KUEUE_GROUP, KUEUE_VERSION, POD
from kueue_integration.spec import platform_config

METRICS = """# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="SidecarContainers",stage=""} %d
kubernetes_feature_enabled{name="JobPodReplacementPolicy",stage="BETA"} 1
"""


def config_map(**config: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": gates.KUEUE_CONFIG, "namespace": "kueue-system"},
        "data": {"controller_manager_config.yaml": yaml.safe_dump(config)},
    }  # fmt: skip


@pytest.mark.parametrize(("value", "status"), [(1, OK), (0, FAIL)])
def test_gates_of_the_api_server(value: int, status: str) -> None:
    kube = FakeKube()
    kube.paths["/metrics"] = METRICS % value  # type: ignore[assignment]
    (check,) = gates.api_gates(kube)
    assert check.status == status
    assert ("SidecarContainers=true" in check.fix) is (status == FAIL)


def test_metrics_that_are_not_for_us_are_no_finding() -> None:
    (check,) = gates.api_gates(FakeKube())
    assert check.status == OK and "not checked" in check.message


@pytest.mark.parametrize(
    ("config", "status", "words"),
    [
        ({}, OK, "suit"),
        ({"integrations": {"frameworks": ["batch/job", "pod"]}}, OK, "suit"),
        ({"integrations": {"frameworks": ["jobset.x-k8s.io/jobset"]}}, FAIL, "no batch/job"),
        ({"featureGates": {"PartialAdmission": False}}, WARN, "fewer workers"),
        ({"featureGates": {"ConcurrentAdmission": True}}, WARN, "without an attempt"),
        ({"featureGates": {"FailureRecoveryPolicy": True}}, WARN, "while it still writes"),
        ({"featureGates": {"FlavorFungibility": False}}, WARN, "while the next one has room"),
        ({"featureGates": {"FailureRecoveryPolicy": False, "ConcurrentAdmission": False}}, OK, "suit"),
        ({"waitForPodsReady": {"timeout": "30m"}}, OK, "suit"),
        ({"waitForPodsReady": {"timeout": "1m"}}, WARN, "timeout is 60 s"),
        ({"waitForPodsReady": {"recoveryTimeout": "1m30s"}}, WARN, "recoveryTimeout is 90 s"),
        ({"waitForPodsReady": {"enable": False, "timeout": "1s"}}, OK, "suit"),
    ],
)
def test_kueue_configuration(config: dict[str, Any], status: str, words: str) -> None:
    (check,) = gates.kueue_config(FakeKube(config_map(**config)))
    assert (check.status, words in check.message) == (status, True), check
    assert bool(check.fix) is (status != OK)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--config=/c.yaml", "--feature-gates=ConcurrentAdmission=true,MultiKueue=true"],
            ["ConcurrentAdmission is on"],
        ),
        (["--feature-gates=PartialAdmission=false,FlavorFungibility=false"], ["PartialAdmission", "FlavorFungibility"]),
        (["--config=/c.yaml", "--zap-log-level=2"], ["suit"]),
    ],
)
def test_gates_that_are_flags_of_kueue(flags: list[str], words: list[str]) -> None:
    labels = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    meta = {"name": "kueue-controller-manager", "namespace": "kueue-system", "labels": labels}
    pod = {"spec": {"containers": [{"name": "manager", "args": flags}]}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"template": pod}}
    found = [check.message for check in gates.kueue_config(FakeKube(config_map(), deployment))]
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found, strict=True)), found


def test_kueue_without_a_readable_configuration_is_no_finding() -> None:
    spoilt = config_map()
    spoilt["data"]["controller_manager_config.yaml"] = "{[}"
    for kube in (FakeKube(), FakeKube(spoilt)):
        assert [c.status for c in gates.kueue_config(kube)] == [OK]


def test_visibility() -> None:
    kube = FakeKube()
    assert [c.status for c in gates.visibility(kube)] == [WARN]
    kube.paths["/apis/visibility.kueue.x-k8s.io/v1beta1"] = {}
    assert [c.status for c in gates.visibility(kube)] == [OK]


@pytest.mark.parametrize(
    "denied", [("patch", "jobs"), ("patch", "workloads/status"), ("update", "leases"), ("create", "tokenreviews")]
)
def test_a_controller_without_a_permission(denied: tuple[str, str]) -> None:
    kube = FakeKube()
    assert [c.status for c in access.controller(kube)] == [OK]
    kube.denied_to[access.USER] = {denied}
    (check,) = access.controller(kube)
    assert check.status == FAIL and " ".join(denied) in check.message and "helm upgrade" in check.fix


@pytest.mark.parametrize(("grace", "found"), [(90, 0), (20, 1)])
def test_a_grace_period_shorter_than_the_last_checkpoint(grace: int, found: int) -> None:
    its_job = job(history=[attempt(evicted_at=10.0, committed_at=50.0), attempt(2)])
    its_job["spec"]["template"] = {"spec": {"terminationGracePeriodSeconds": grace}}
    checks = [c for c in jobs.running(FakeKube(its_job), "default", 100.0, PLATFORM) if "node drain" in c.message]
    assert len(checks) == found
    if checks:
        assert "took 40 s" in checks[0].message and "--grace 65" in checks[0].fix


FLAVOR = {
    "apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}", "kind": "ResourceFlavor", "metadata": {"name": "spot"},
    "spec": {"nodeLabels": {"flavor": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
}  # fmt: skip
CHART = {
    "apiVersion": "v1", "kind": "ConfigMap",
    "metadata": {"name": "singularity-platform", "namespace": "singularity-system"},
    "data": {"platform.json": platform_config.to_json(PLATFORM)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("store", "criu", "statuses"),
    [
        ({"result": {"url": "x"}}, ["seccomp_suspend is supported"], [OK, OK]),
        ({"error": "store x: cannot write"}, ["Error: seccomp_suspend is not supported"], [FAIL, WARN]),
    ],
)
def test_probe(monkeypatch: pytest.MonkeyPatch, store: dict[str, Any], criu: list[str], statuses: list[str]) -> None:
    kube = FakeKube(FLAVOR, CHART)
    create, made = kube.create, []

    def and_run(obj: Any, dry_run: bool = False) -> Any:
        made.append(obj)
        done = create(obj, dry_run)
        kube.logs["default", obj["metadata"]["name"], "store"] = [json.dumps(store)]
        kube.logs["default", obj["metadata"]["name"], "criu"] = criu
        kube.set_status(POD, "default", obj["metadata"]["name"], {"phase": "Succeeded"})
        return done

    monkeypatch.setattr(kube, "create", and_run)
    checks = run_probe(kube, "default", 10)
    assert [c.status for c in checks] == statuses
    (pod,) = made
    assert pod["spec"]["nodeSelector"] == {"flavor": "spot"} and len(pod["spec"]["tolerations"]) == 1
    assert "SYS_ADMIN" in pod["spec"]["containers"][1]["securityContext"]["capabilities"]["add"]
    assert pod["spec"]["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert kube.list(POD, "default") == []


def test_a_volume_of_the_platform_whose_ids_cannot_be_mapped_fails_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = FakeKube(FLAVOR, CHART)
    create = kube.create
    said = "runc create failed: failed to set MOUNT_ATTR_IDMAP on /mnt/nfs: invalid argument"

    def and_fails(obj: Any, dry_run: bool = False) -> Any:
        done = create(obj, dry_run)
        ended = {"terminated": {"exitCode": 128, "reason": "StartError", "message": said}}
        status = {"phase": "Failed", "containerStatuses": [{"name": "store", "state": ended}]}
        kube.set_status(POD, "default", obj["metadata"]["name"], status)
        return done

    monkeypatch.setattr(kube, "create", and_fails)
    (check,) = run_probe(kube, "default", 10)
    assert check.status == FAIL and "container store" in check.message and said in check.message
    assert check.fix.endswith("--set pods.privileges=node") and kube.list(POD, "default") == []


def test_probe_without_a_chart_tries_nothing() -> None:
    assert run_probe(FakeKube(FLAVOR), "default", 10) == []
