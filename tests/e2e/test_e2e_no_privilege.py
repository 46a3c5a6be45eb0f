"""CRIU in pods without any privilege: what Pod Security and the chart's seccomp profile let it do, and what not.

Each row of docs/project/decisions/0021-no-privilege.md. No launcher of ours runs so yet.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kueue_integration.errors import KubeError
from kueue_integration.jobs.preflight import POD_SECURITY
from kueue_integration.kube.resources import NAMESPACE, POD, Object
from localcluster import registry
from localcluster.demo.stage import CHECKOUT, Stage
from localcluster.demo.wait import wait_for
from localcluster.errors import CommandError
from localcluster.nodes.node import KUBELET_ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(900)]
SCRIPT = Path(__file__).parent / "scripts" / "no_privilege.py"
PROFILE = CHECKOUT / "charts/singularity/seccomp/no-privilege.json"
BASELINE, RESTRICTED = "no-privilege", "no-privilege-restricted"
USER, TIMEOUT_S = 1000, 240
NODES = ("spot-0", "ondemand-1")
"""The family leaves the first one."""


def profiles() -> dict[str, Any]:
    """The chart's, and one without each call that it adds to the runtime's default."""
    found = json.loads(PROFILE.read_text())
    *default, added = found["syscalls"]
    without = {name: [other for other in added["names"] if other != name] for name in added["names"]}
    less = {
        f"no-{name}.json": {**found, "syscalls": [*default, {**added, "names": rest}]} for name, rest in without.items()
    }
    return {PROFILE.name: found, **less}


@pytest.fixture(scope="module", autouse=True)
def _prepared(stage: Stage) -> Iterator[None]:
    """Profiles on the nodes, as a DaemonSet would put them there; a namespace at each level of Pod Security."""
    folders = [folder(stage, node) / "seccomp" for node in NODES]
    for each in folders:
        each.mkdir(exist_ok=True)
        for name, content in profiles().items():
            (each / name).write_text(json.dumps(content))
    for name, level in ((BASELINE, "baseline"), (RESTRICTED, "restricted")):
        meta = {"name": name, "labels": {POD_SECURITY: level}}
        stage.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        script = {"metadata": {"name": "script", "namespace": name}, "data": {SCRIPT.name: SCRIPT.read_text()}}
        stage.kube.create({"apiVersion": "v1", "kind": "ConfigMap", **script})
    try:
        yield
    finally:
        for name in (BASELINE, RESTRICTED):
            stage.kube.delete(NAMESPACE, None, name)
        for each in folders:
            shutil.rmtree(each)


def folder(stage: Stage, node: str) -> Path:
    """The kubelet's."""
    config = registry.find(stage.name)
    assert config is not None
    return config.root / "nodes" / node / KUBELET_ROOT


def pod(name: str, verb: str, namespace: str = BASELINE, node: str = NODES[0], **changed: Any) -> Object:
    security = {
        "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": True, "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]}, "procMount": "Unmasked", "seccompProfile": localhost(PROFILE.name),
    } | changed  # fmt: skip
    container = {
        "name": "main", "image": "localhost/singularity-agent:dev", "imagePullPolicy": "IfNotPresent",
        "command": ["python3", f"/script/{SCRIPT.name}", verb],
        "securityContext": {key: value for key, value in security.items() if value is not None},
        "volumeMounts": [{"name": "work", "mountPath": "/work"}, {"name": "script", "mountPath": "/script"}],
    }  # fmt: skip
    volumes = [{"name": "work", "emptyDir": {}}, {"name": "script", "configMap": {"name": "script"}}]
    spec = {
        "hostUsers": False, "restartPolicy": "Never", "nodeName": node, "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def localhost(name: str) -> dict[str, str]:
    return {"type": "Localhost", "localhostProfile": name}


def said(stage: Stage, made: Object) -> str:
    meta = made["metadata"]
    try:
        return str(stage.kubectl("logs", "-n", meta["namespace"], meta["name"]))
    except CommandError:  # it has not started
        return ""


def ended(stage: Stage, made: Object, phases: Sequence[str] = ("Succeeded", "Failed")) -> str:
    """What the pod's program has printed by its end."""
    meta = made["metadata"]
    wait_for(
        lambda: stage.kube.get(POD, meta["namespace"], meta["name"])["status"].get("phase") in phases,
        f"pod {meta['name']} has ended", TIMEOUT_S,
    )  # fmt: skip
    return said(stage, made)


def work(stage: Stage, made: Object) -> Path:
    meta, spec = made["metadata"], made["spec"]
    uid = stage.kube.get(POD, meta["namespace"], meta["name"])["metadata"]["uid"]
    return folder(stage, spec["nodeName"]) / "pods" / uid / "volumes/kubernetes.io~empty-dir/work"


def come(stage: Stage, old: Object, name: str, profile: str) -> str:
    """What a pod on another node says that restores what `old` has saved."""
    new = pod(name, "restore", node=NODES[1], seccompProfile=localhost(profile))
    stage.kube.create(new)
    wait_for(lambda: "CapEff" in said(stage, new), f"pod {name} runs", TIMEOUT_S)
    sent = ["tar", "-C", str(work(stage, old)), "-cf", "-", "images", "steps", "log", "program.py"]
    content = subprocess.run(sent, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-C", str(work(stage, new)), "-xpf", "-"], check=True, input=content)
    (work(stage, new) / "ready").touch()
    return ended(stage, new)


def test_a_family_goes_on_in_another_pod_on_another_node(stage: Stage) -> None:
    old = pod("old", "save")
    stage.kube.create(old)
    wait_for(lambda: "saved after" in said(stage, old), "saved", TIMEOUT_S)
    text = said(stage, old)
    assert f"Uid: {USER} {USER}" in text and "CapEff: 0000000000000000 CapBnd: 0000000000000000" in text, text
    assert "NoNewPrivs: 1" in text and "filters: 2\n" in text, text
    text = come(stage, old, "without-setns", "no-setns.json")
    assert "refused: restore: " in text and "Can't setns" in text, text
    text = come(stage, old, "new", PROFILE.name)
    assert "filters: 2\n" in text and "no gap: True" in text, text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unshare", "refused: unshare: Operation not permitted"),
        ("mount", "refused: mount: Operation not permitted"),
        ("kcmp", "refused: dump: "),
    ],
)
def test_each_call_of_the_profile_is_needed(stage: Stage, name: str, expected: str) -> None:
    made = pod(f"without-{name}", "save", seccompProfile=localhost(f"no-{name}.json"))
    stage.kube.create(made)
    assert expected in ended(stage, made)


@pytest.mark.parametrize(
    ("name", "namespace", "changed", "expected"),
    [
        ("unmasked", RESTRICTED, {}, 'must not set securityContext.procMount to "Unmasked"'),
        ("unconfined", BASELINE, {"seccompProfile": {"type": "Unconfined"}}, "must not set securityContext.seccomp"),
    ],
)
def test_what_pod_security_refuses(
    stage: Stage, name: str, namespace: str, changed: dict[str, Any], expected: str
) -> None:
    with pytest.raises(KubeError, match=expected):
        stage.kube.create(pod(name, "save", namespace, **changed), dry_run=True)


def test_what_a_user_namespace_of_the_pod_is_for(stage: Stage) -> None:
    made = pod("host-users", "save")
    del made["spec"]["hostUsers"]
    with pytest.raises(KubeError, match="`hostUsers` must be false to use `Unmasked`"):
        stage.kube.create(made, dry_run=True)


@pytest.mark.parametrize(
    ("name", "namespace", "changed", "expected"),
    [
        ("masked", RESTRICTED, {"procMount": None}, "refused: mount of /proc: Operation not permitted"),
        ("default", BASELINE, {"seccompProfile": {"type": "RuntimeDefault"}}, "refused: unshare: Operation not perm"),
    ],
)
def test_what_the_kernel_refuses(
    stage: Stage, name: str, namespace: str, changed: dict[str, Any], expected: str
) -> None:
    made = pod(name, "save", namespace, **changed)
    stage.kube.create(made)
    assert expected in ended(stage, made)
