"""A healthy cluster has no findings; each fault that a platform can have gives its own finding with its fix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from kueue_samples import PLATFORM, job, workload
from module_clock import set_clock

from kueue_integration import cli, doctor
from kueue_integration.cli import doctor as command
from kueue_integration.contract import agent_images, job_names
from kueue_integration.errors import Forbidden, KubeError, Unreachable
from kueue_integration.guard import names as guards
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import (
    ADMISSION_CHECK,
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    CLUSTER_QUEUE,
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    LEASE,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    PRIORITY_CLASS,
    SECRET,
    Kind,
)
from kueue_integration.spec import platform_config

NOW = 1_750_000_000.0
RENEWED = "2025-06-15T15:06:37.000000Z"
"""Three seconds before NOW."""
SYSTEM = job_names.SYSTEM_NAMESPACE
KUEUE_USER = "system:serviceaccount:kueue-system:kueue-controller-manager"
ACTIVE = {"conditions": [{"type": "Active", "status": "True", "reason": "Ready", "message": ""}]}
TRAINING = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
HOLD_YAML = Path(__file__).parents[3] / "charts" / "singularity" / "templates" / "hold.yaml"


def obj(kind: Kind, name: str, namespace: str | None = None, **fields: Any) -> dict[str, Any]:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **fields}


def chart() -> list[dict[str, Any]]:
    """Policies, bindings, Lease and fence as the chart's own templates have them."""
    text = "\n---\n".join(HOLD_YAML.with_name(name).read_text() for name in (HOLD_YAML.name, "controller-limits.yaml"))
    for pattern, value in (
        (r"\{\{- include [^}]*\}\}", "{}"),
        (r"\{\{ \.Values\.kueue\.username \| toJson \}\}", json.dumps(KUEUE_USER)),
        (r"\{\{ \.Release\.Namespace \}\}", SYSTEM),
    ):
        text = re.sub(pattern, value, text)
    made = [
        obj(kind, name, spec=spec)
        for name in guards.POLICIES
        if name != guards.CONTROLLER  # which is in the text
        for kind, spec in (
            (ADMISSION_POLICY, {"failurePolicy": "Fail"}),
            (ADMISSION_POLICY_BINDING, {"policyName": name, "validationActions": ["Deny"]}),
        )
    ]
    return [*(document for document in yaml.safe_load_all(text) if document), *made]


def node(name: str, **info: str) -> dict[str, Any]:
    about = {
        "architecture": "amd64", "operatingSystem": "linux", "kernelVersion": "6.18.0-cloud",
        "containerRuntimeVersion": "containerd://2.4.2",
    }  # fmt: skip
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {**about, **info}}
    return obj(NODE, name, status=status)


def images(trusted: str) -> dict[str, Any]:
    """The Lease of the agent images that the guard trusts."""
    made = obj(LEASE, job_names.TRUSTED_IMAGES_LEASE, SYSTEM)
    made["metadata"]["annotations"] = agent_images.to_annotations({trusted: NOW})
    return made


@pytest.fixture
def kube() -> FakeKube:
    fence = {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}
    spec = {"admissionChecksStrategy": fence, "preemption": {"withinClusterQueue": "LowerPriority"}}
    spec["resourceGroups"] = [{"flavors": [{"name": "ondemand"}, {"name": "spot"}]}]
    pod = {"spec": {"serviceAccountName": "kueue-controller-manager"}}
    manager = obj(DEPLOYMENT, "kueue", "kueue-system", spec={"template": pod})
    manager["metadata"]["labels"] = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    fake = FakeKube(
        *chart(),
        {**obj(NAMESPACE, "default"), "metadata": {"name": "default", "labels": TRAINING}},
        node("one"),
        node("two"),
        manager,
        obj(
            CONFIG_MAP, job_names.PLATFORM_CONFIGMAP, SYSTEM, data={"platform.json": platform_config.to_json(PLATFORM)}
        ),
        images(PLATFORM.agent_image),
        obj(SECRET, job_names.KEYS_SECRET, SYSTEM, data={"keys.json": "e30="}),
        obj(DEPLOYMENT, job_names.CONTROLLER_NAME, SYSTEM, spec={"replicas": 1}, status={"readyReplicas": 1}),
        obj(CLUSTER_QUEUE, "training", spec=spec, status=ACTIVE),
        obj(LOCAL_QUEUE, "training", "default", spec={"clusterQueue": "training"}, status=ACTIVE),
        obj(PRIORITY_CLASS, "low", value=10),
        obj(PRIORITY_CLASS, "high", value=1000),
    )
    renewed = {"renewTime": RENEWED, "leaseDurationSeconds": 10, "holderIdentity": "pod-1"}
    fake.patch(LEASE, SYSTEM, job_names.HOLD_LEASE, {"spec": renewed})
    fake.set_status(ADMISSION_CHECK, None, job_names.ADMISSION_CHECK_NAME, ACTIVE)
    fake.paths = {
        "/version": {"major": "1", "minor": "36+", "gitVersion": "v1.36.3"},
        "/metrics": 'kubernetes_feature_enabled{name="SidecarContainers",stage=""} 1\n',  # type: ignore[dict-item]
        "/apis/visibility.kueue.x-k8s.io/v1beta2": {},
        "/apis/kueue.x-k8s.io": {"versions": [{"version": "v1beta2"}, {"version": "v1beta1"}]},
        "/apis/kueue.x-k8s.io/v1beta2": {
            "resources": [
                {"name": plural}
                for plural in (
                    "workloads", "localqueues", "clusterqueues", "admissionchecks", "workloadpriorityclasses",
                    "resourceflavors", "workloads/status",
                )
            ]
        },
    }  # fmt: skip
    return fake


def helm_release(status: str) -> dict[str, Any]:
    """What Helm writes down before it begins."""
    made = obj(SECRET, "sh.helm.release.v1.singularity.v2", SYSTEM)
    made["metadata"]["labels"] = {"owner": "helm", "name": "singularity", "status": status}
    return made


def waiting(agent_image: str) -> dict[str, Any]:
    """A suspended job whose pods have this agent image."""
    pod = {"initContainers": [{"name": job_names.CONTAINER_INSTALL, "image": agent_image}], "containers": []}
    made = obj(JOB, "train", "default", spec={"suspend": True, "template": {"spec": pod}})
    made["metadata"]["labels"] = {job_names.LABEL_MANAGED: "true"}
    return made


def findings(kube: FakeKube, namespace: str = "default") -> list[doctor.Check]:
    return [check for check in doctor.run(kube, namespace, NOW) if check.status != doctor.OK]


def test_a_healthy_cluster_has_no_findings_and_is_not_changed(kube: FakeKube) -> None:
    before = kube.objects()
    checks = doctor.run(kube, "default", NOW)
    assert [c for c in checks if c.status != doctor.OK] == []
    assert [c.name for c in checks] == [
        "API server", "feature gates", "node architecture", "node kernel", "container runtime", "Kueue", "chart",
        "store", "controller", "authorities", "keys", "controller RBAC", "lease", "hold policy", "guard policies",
        "fence", "Kueue config", "visibility", "priority classes", "pod security", "engine auto", "pod guard",
        "permissions", "queue training", "jobs",
    ]  # fmt: skip
    assert all(c.fix == "" for c in checks)
    assert kube.objects() == before


def _spec(kind: Kind, name: str, namespace: str | None = None, **change: Any) -> Callable[[FakeKube], object]:
    return lambda kube: kube.patch(kind, namespace, name, {"spec": change})


def _gone(kind: Kind, name: str, namespace: str | None = None) -> Callable[[FakeKube], object]:
    return lambda kube: kube.delete(kind, namespace, name)


def _status(kind: Kind, name: str, namespace: str | None = None, **change: Any) -> Callable[[FakeKube], object]:
    return lambda kube: kube.set_status(kind, namespace, name, change)


def _config(**change: Any) -> Callable[[FakeKube], object]:
    text = json.dumps({**json.loads(platform_config.to_json(PLATFORM)), **change})
    where = (CONFIG_MAP, SYSTEM, job_names.PLATFORM_CONFIGMAP)
    return lambda kube: kube.patch(*where, {"data": {"platform.json": text}})


def _paths(path: str, answer: dict[str, Any]) -> Callable[[FakeKube], object]:
    return lambda kube: kube.paths.__setitem__(path, answer)


def _inactive(reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Active", "status": "False", "reason": reason, "message": message}]}


HOLD = job_names.HOLD_LEASE
FENCE = job_names.ADMISSION_CHECK_NAME
CASES: dict[str, tuple[Callable[[FakeKube], object], str, str, str, str]] = {
    # fault: (how, name of the only finding, status, part of the message, part of the fix)
    "old kubernetes": (
        _paths("/version", {"major": "1", "minor": "32"}), "API server", "fail", "1.32 is older than 1.33", "Upgrade"
    ),
    "old kernel": (
        lambda k: k.put(node("two", kernelVersion="5.8.1")), "node kernel", "warn", "1 of 2 nodes", "nodeLabels"
    ),
    "two architectures": (
        lambda k: k.put(node("two", architecture="arm64")),
        "node architecture", "warn", "amd64 (1), arm64 (1)", "kubernetes.io/arch",
    ),
    "other runtime": (
        lambda k: k.put(node("two", containerRuntimeVersion="cri-o://1.33")),
        "container runtime", "warn", "cri-o://1.33", "Preempt a small job",
    ),
    "broken configuration": (_config(agent_image=""), "chart", "fail", "agent_image", "helm upgrade --install"),
    "no store": (_config(store=""), "store", "warn", "no default", "store.url="),
    "unknown store": (_config(store="ftp://x/y"), "store", "fail", "no library for", "store.url="),
    "store outside of any volume": (
        _config(store="file:///elsewhere"), "store", "fail", "not writable", "store.volumeMounts"
    ),
    "no replica": (
        lambda k: k.put(obj(DEPLOYMENT, job_names.CONTROLLER_NAME, SYSTEM, spec={"replicas": 2}, status={})),
        "controller", "fail", "0 of 2 replicas", "logs deployment/singularity-controller",
    ),
    "scaled down": (
        lambda k: k.put(obj(DEPLOYMENT, job_names.CONTROLLER_NAME, SYSTEM, spec={"replicas": 0}, status={})),
        "controller", "fail", "scaled to 0", "--replicas=1",
    ),
    "no deployment": (
        _gone(DEPLOYMENT, job_names.CONTROLLER_NAME, SYSTEM), "controller", "fail", "no Deployment", "helm",
    ),
    "lease too old": (
        _spec(LEASE, HOLD, SYSTEM, renewTime="2025-06-15T15:06:00.000000Z"),
        "lease", "fail", "not renewed for 40 s (lasts 10 s), last by pod-1", "logs deployment",
    ),
    "lease from the future": (
        _spec(LEASE, HOLD, SYSTEM, renewTime="2025-06-15T15:07:10.000000Z"), "lease", "warn", "30 s in the", "NTP"
    ),
    "lease never taken": (
        _spec(LEASE, HOLD, SYSTEM, renewTime=None), "lease", "fail", "no controller has ever", "logs deployment"
    ),
    "no lease": (_gone(LEASE, HOLD, SYSTEM), "lease", "fail", "no Lease", "helm upgrade"),
    "no policy": (
        _gone(ADMISSION_POLICY, HOLD), "hold policy", "fail", "no ValidatingAdmissionPolicy ", "helm upgrade"
    ),
    "no binding": (
        _gone(ADMISSION_POLICY_BINDING, HOLD), "hold policy", "fail", "no ValidatingAdmissionPolicyBinding", "helm"
    ),
    "policy that blocks": (
        _spec(ADMISSION_POLICY, HOLD, failurePolicy="Fail"), "hold policy", "fail", "failurePolicy", "helm upgrade"
    ),
    "binding that only warns": (
        _spec(ADMISSION_POLICY_BINDING, HOLD, validationActions=["Warn"]), "hold policy", "fail", "not Deny", "helm"
    ),
    **{
        f"{name} {what}": (change, "guard policies", "fail", said, "helm upgrade")
        for name in guards.POLICIES
        for what, change, said in (
            ("gone", _gone(ADMISSION_POLICY, name), f"no ValidatingAdmissionPolicy {name}"),
            ("unbound", _gone(ADMISSION_POLICY_BINDING, name), f"no ValidatingAdmissionPolicyBinding {name}"),
            ("warns", _spec(ADMISSION_POLICY_BINDING, name, validationActions=["Warn"]), f"{name} does not Deny"),
            ("open", _spec(ADMISSION_POLICY, name, failurePolicy="Ignore"), f"{name} is not Fail"),
        )
    },
    "no list of trusted images": (
        _gone(LEASE, job_names.TRUSTED_IMAGES_LEASE, SYSTEM),
        "guard policies", "fail", "no Lease singularity-system/singularity-agent-images", "helm upgrade",
    ),
    "an image of before": (
        lambda k: k.put(waiting("example/agent:0")),
        "job train", "fail", "image example/agent:0 is not trusted", "images.trusted={example/agent:0}",
    ),
    "kueue runs as another user": (
        lambda k: k.patch(
            DEPLOYMENT, "kueue-system", "kueue", {"spec": {"template": {"spec": {"serviceAccountName": "other"}}}}
        ),
        "hold policy", "fail", "but Kueue runs as system:serviceaccount:kueue-system:other",
        "kueue.username=system:serviceaccount:kueue-system:other",
    ),
    "no fence": (_gone(ADMISSION_CHECK, FENCE), "fence", "fail", "no AdmissionCheck", "helm upgrade"),
    "fence inactive": (
        _status(ADMISSION_CHECK, FENCE, conditions=[]), "fence", "fail", "not Active", "logs deployment"
    ),
    "fence of somebody else": (
        _spec(ADMISSION_CHECK, FENCE, controllerName="x/y"), "fence", "fail", "belongs to x/y", "kubectl delete"
    ),
    "one priority": (_gone(PRIORITY_CLASS, "high"), "priority classes", "warn", "only low", '{"name": "high"}'),
    "pod security": (
        lambda k: k.patch(
            NAMESPACE, None, "default", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        ),
        "pod security", "warn", "'restricted': only jobs with engine 'state' can run here",
        "kubectl label namespace default --overwrite pod-security.kubernetes.io/enforce=privileged",
    ),
    "no guard of pods": (
        lambda k: k.patch(NAMESPACE, None, "default", {"metadata": {"labels": {job_names.LABEL_TRAINING: None}}}),
        "pod guard", "fail", "no label singularity.dev/training=enabled",
        "kubectl label namespace default singularity.dev/training=enabled",
    ),
    "no permission": (
        lambda k: k.denied.update({("create", "jobs"), ("get", "pods/log")}),
        "permissions", "fail", "you may not create jobs.batch; get pods/log in default",
        "--verb=create --resource=jobs.batch",
    ),
    "no queue and none to point to": (
        lambda k: (k.delete(LOCAL_QUEUE, "default", "training"), k.delete(CLUSTER_QUEUE, None, "training")),
        "queue", "fail", "no LocalQueue", "--reuse-values \\\n  --set sampleQueues.enabled=true,",
    ),
    "no queue": (
        _gone(LOCAL_QUEUE, "training", "default"), "queue", "fail", "no LocalQueue", '{"clusterQueue": "training"}'
    ),
    "no cluster queue": (_gone(CLUSTER_QUEUE, "training"), "queue training", "fail", "does not exist", "Create it"),
    "queue with other checks only": (
        _spec(CLUSTER_QUEUE, "training", admissionChecksStrategy={"admissionChecks": [{"name": "prov"}]}),
        "queue training", "fail", "lacks admission check singularity-fence",
        "\nsingularityctl fence training",
    ),
    "fence on one flavor": (
        _spec(
            CLUSTER_QUEUE, "training",
            admissionChecksStrategy={"admissionChecks": [{"name": FENCE, "onFlavors": ["ondemand"]}]},
        ),
        "queue training", "fail", "not fenced on flavor spot", "\nsingularityctl fence training",
    ),
    "queue inactive": (
        _status(CLUSTER_QUEUE, "training", **_inactive("FlavorNotFound", "no flavor spot")),
        "queue training", "fail", "FlavorNotFound: no flavor spot", "what the message says",
    ),
    "kueue is silent": (
        _status(LOCAL_QUEUE, "training", "default", conditions=[]),
        "queue training", "fail", "has not reported on LocalQueue training", "Kueue's controller",
    ),
    "queue stopped": (
        _spec(CLUSTER_QUEUE, "training", stopPolicy="Hold"), "queue training", "fail", "stopPolicy Hold", "None"
    ),
    "keys gone": (
        _gone(SECRET, job_names.KEYS_SECRET, SYSTEM), "keys", "fail", "is gone", "helm upgrade singularity"
    ),
    "keys empty": (
        lambda k: k.put(obj(SECRET, job_names.KEYS_SECRET, SYSTEM)), "keys", "warn", "is empty", "kubectl -n"
    ),
    "helm killed": (
        lambda k: k.put(helm_release("pending-upgrade")), "release", "warn", "singularity is pending-upgrade",
        "delete secret -l owner=helm,name=singularity,status=pending-upgrade",
    ),
    "queue without preemption": (
        _spec(CLUSTER_QUEUE, "training", preemption=None),
        "queue training", "warn", "never preempts", '{"spec":{"preemption":{"withinClusterQueue":"LowerPriority"}}}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", CASES)
def test_each_fault_is_found_with_its_fix(kube: FakeKube, fault: str) -> None:
    do, name, status, message, fix = CASES[fault]
    do(kube)
    (found,) = findings(kube)
    assert (found.name, found.status) == (name, status)
    assert message in found.message and fix in found.fix
    shown = command.render([found]).splitlines()
    copied = found.fix.splitlines()[1:]  # commands are never wrapped
    assert max(map(len, shown[: len(shown) - len(copied)])) <= 100
    assert [line[11:] for line in shown[len(shown) - len(copied) :]] == copied


def test_the_fix_of_a_queue_is_a_patch_that_repairs_it(kube: FakeKube) -> None:
    """The command of the fix, done as kubectl would do it, leaves nothing to find."""
    for change in ({"preemption": None}, {"stopPolicy": "HoldAndDrain"}):
        kube.patch(CLUSTER_QUEUE, None, "training", {"spec": change})
        (found,) = findings(kube)
        body = re.search(r"-p '(.*)'", found.fix)
        assert body is not None
        kube.patch(CLUSTER_QUEUE, None, "training", json.loads(body[1]))
        assert findings(kube) == []


def test_a_queue_whose_jobs_run_in_another_cluster_needs_no_fence_here(kube: FakeKube) -> None:
    far = {"controllerName": "kueue.x-k8s.io/multikueue"}
    kube.put(obj(ADMISSION_CHECK, "far", spec=far))
    _spec(CLUSTER_QUEUE, "training", admissionChecksStrategy={"admissionChecks": [{"name": "far"}]})(kube)
    assert [c for c in findings(kube) if c.name == "queue training"] == []


def test_a_cluster_without_the_chart_is_told_the_helm_command() -> None:
    kube = FakeKube(obj(NAMESPACE, "default"), node("one"))
    kube.paths = {"/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}}
    found = {check.name: check for check in findings(kube)}
    assert list(found) == ["Kueue", "chart"]
    assert "not installed" in found["Kueue"].message and "kueue.sigs.k8s.io" in found["Kueue"].fix
    assert "helm upgrade --install singularity charts/singularity -n singularity-system" in found["chart"].fix
    for value in ("--set images.agent=", "--set images.controller=", "--set store.url="):
        assert value in found["chart"].fix


def test_the_first_queue_without_the_chart_comes_with_its_installation(kube: FakeKube) -> None:
    kube.delete(CONFIG_MAP, SYSTEM, job_names.PLATFORM_CONFIGMAP)
    kube.delete(LOCAL_QUEUE, "default", "training")
    kube.delete(CLUSTER_QUEUE, None, "training")
    fix = {check.name: check for check in findings(kube)}["queue"].fix
    assert "helm upgrade singularity" not in fix, "there is no release to upgrade"
    assert "--set sampleQueues.enabled=true,sampleQueues.namespace=default" in fix


def test_kueue_too_old_or_incomplete(kube: FakeKube) -> None:
    kube.paths["/apis/kueue.x-k8s.io/v1beta2"]["resources"].pop(3)
    (found,) = findings(kube)
    assert "lacks admissionchecks" in found.message
    kube.paths["/apis/kueue.x-k8s.io"] = {"versions": [{"version": "v1beta1"}]}
    (found,) = findings(kube)
    assert found.status == "fail" and "served as v1beta1 only" in found.message and "Upgrade Kueue" in found.fix


def test_only_old_kernels_fail(kube: FakeKube) -> None:
    for name in ("one", "two"):
        kube.put(node(name, kernelVersion="4.18.0-553.el8"))
    (found,) = findings(kube)
    assert found.status == "fail" and "one (linux 4.18.0-553.el8)" in found.message


def test_a_namespace_that_is_not_there(kube: FakeKube) -> None:
    (found,) = findings(kube, "nowhere")
    assert found.fix.endswith("kubectl create namespace nowhere") and found.status == "fail"


def test_what_may_not_be_read_is_a_warning_and_the_rest_is_checked(kube: FakeKube) -> None:
    for kind, verb in ((NODE, "list"), (LEASE, "get"), (CLUSTER_QUEUE, "get"), (NAMESPACE, "get")):
        kube.fail_next(verb, kind, Forbidden(f"may not {verb} {kind.plural}", 403))
    found = findings(kube)
    assert [c.name for c in found] == ["nodes", "lease", "pod security", "queue training"]
    assert all(c.status == "warn" and "may not" in c.message and c.fix for c in found)


def test_an_api_server_that_goes_away_is_a_failure(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    kube.fail_next("list", JOB, KubeError("overloaded", 503))
    (found,) = findings(kube)
    assert (found.name, found.status) == ("jobs", "fail") and "overloaded" in found.message

    def refuse(path: str) -> dict[str, Any]:
        raise Unreachable(f"GET {path}: connection refused")

    monkeypatch.setattr(kube, "get_path", refuse)
    (found,) = doctor.run(kube, "default", NOW)
    assert (found.name, found.status) == ("API server", "fail") and "connection refused" in found.message


def at(seconds: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(NOW + seconds, tz=timezone.utc).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("notes", "evicted", "status", "message", "fix"),
    [
        ({}, False, "ok", "hold armed, not being evicted", ""),
        ({}, True, "ok", "about to be asked", ""),
        ({job_names.ANN_HOLD: "released"}, True, "ok", "about to be suspended", ""),
        ({job_names.ANN_HOLD: "on"}, False, "warn", "'on' is neither", "singularity.dev/hold=armed"),
        ({job_names.ANN_BUDGET: "two"}, False, "warn", "not a whole number", "checkpoint-budget-seconds=120"),
        ({job_names.ANN_BUDGET: "9999"}, False, "warn", "cut to the platform's ceiling of 600", "budget.maxSeconds"),
        ({job_names.ANN_HOLD_DEADLINE: at(50)}, True, "ok", "is being checkpointed, 50 s left", ""),
        ({job_names.ANN_HOLD_DEADLINE: at(-20)}, True, "ok", "0 s left", ""),
        ({job_names.ANN_HOLD_DEADLINE: at(-90)}, True, "fail", "passed its deadline 90 s ago", "hold=released"),
        ({job_names.ANN_HOLD_DEADLINE: at(700)}, True, "fail", "budget is 600 s", "singularity.dev/hold=released"),
        (
            {job_names.ANN_HOLD_DEADLINE: at(200), job_names.ANN_BUDGET: "60"},
            True, "fail", "budget is 60 s", "hold=released",
        ),
        ({job_names.ANN_HOLD_DEADLINE: "soon"}, True, "warn", "'soon' is not a time", "hold-deadline-"),
        ({job_names.ANN_HOLD_DEADLINE: at(50)}, False, "warn", "without an eviction", "hold-deadline-"),
    ],
)  # fmt: skip
def test_holds_of_running_jobs(
    kube: FakeKube, notes: dict[str, str], evicted: bool, status: str, message: str, fix: str
) -> None:
    kube.put(job(annotations=notes))
    kube.put(workload(("Evicted", "True" if evicted else "False", "Preempted", "")))
    found = doctor.run(kube, "default", NOW)[-1]
    assert (found.name, found.status) == ("job digits", status)
    assert message in found.message and fix in found.fix and bool(found.fix) == bool(fix)


def test_jobs_that_do_not_run_have_no_hold_to_check(kube: FakeKube) -> None:
    kube.put(job(suspend=True, annotations={job_names.ANN_HOLD_DEADLINE: "soon"}))
    assert findings(kube) == []
    kube.put(job(("Complete", "True"), annotations={job_names.ANN_HOLD_DEADLINE: "soon"}))
    assert findings(kube) == []


# --- the command --------------------------------------------------------------------------------------------------
def invoke(monkeypatch: pytest.MonkeyPatch, kube: FakeKube, *arguments: str) -> Result:
    monkeypatch.setattr(command, "open_cluster", lambda kubeconfig, context: kube)
    set_clock(monkeypatch, command, time=lambda: NOW)
    return CliRunner().invoke(cli.main, ["doctor", *arguments])


def test_command_table_and_exit_codes(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    good = invoke(monkeypatch, kube)
    assert good.exit_code == 0, good.output
    assert good.output.endswith("25 checks: 0 failed, 0 warnings\n")
    kube.delete(PRIORITY_CLASS, None, "high")
    assert invoke(monkeypatch, kube).exit_code == 0
    kube.delete(CONFIG_MAP, SYSTEM, job_names.PLATFORM_CONFIGMAP)
    bad = invoke(monkeypatch, kube)
    assert bad.exit_code == 3 and "1 failed, 1 warnings" in bad.output
    lines = bad.output.splitlines()
    at_fault = next(number for number, line in enumerate(lines) if line.startswith("FAIL  chart"))
    assert lines[at_fault + 1].startswith("      fix: In a checkout of this project, build and push two images")
    assert sum(line.strip().startswith("docker build -f images/") for line in lines) == 2
    assert any(line.strip().startswith("helm upgrade --install singularity") for line in lines)
    assert max(map(len, lines)) <= 100


def test_the_platform_alone_is_checked_without_any_namespace(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    good = invoke(monkeypatch, kube, "--platform", "-n", "not-there")
    assert good.exit_code == 0, good.output
    assert "controller RBAC" in good.output and "not-there" not in good.output and "queue " not in good.output
    kube.delete(LEASE, SYSTEM, job_names.HOLD_LEASE)
    assert invoke(monkeypatch, kube, "--platform").exit_code == 3
    both = invoke(monkeypatch, kube, "--platform", "--probe")
    assert both.exit_code == 2 and "leave --platform out" in both.output


def test_command_json(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    kube.delete(LEASE, SYSTEM, job_names.HOLD_LEASE)
    shown = invoke(monkeypatch, kube, "-o", "json")
    assert shown.exit_code == 3
    found = [item for item in json.loads(shown.output) if item["status"] != "ok"]
    assert [(item["name"], item["status"], set(item)) for item in found] == [
        ("lease", "fail", {"apiVersion", "kind", "name", "status", "message", "fix"})
    ]
    named = invoke(monkeypatch, kube, "-o", "jsonpath={.items[*].name}")
    assert named.exit_code == 3 and "lease" in named.output.split()


def test_a_long_finding_is_told_in_full_below_its_line(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "could not be used because " + "of a very long list of reasons " * 6 + "THE END"
    kube.set_status(CLUSTER_QUEUE, None, "training", _inactive("Why", message))
    shown = invoke(monkeypatch, kube).output
    assert "THE END" in shown and max(map(len, shown.splitlines())) <= 100


def test_help_fits_and_has_examples(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = invoke(monkeypatch, kube, "--help")
    assert shown.exit_code == 0 and "Examples" in shown.output and "Exit codes" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 100
