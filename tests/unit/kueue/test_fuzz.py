"""Pods, Jobs, annotations and a sidecar's requests at random, near good ones: what an API server admits is harmless.

What is said is read, or refused. Ten minutes together; see `fuzz` for seed and time.
"""

from __future__ import annotations

import copy
from typing import Any

import fuzz
import pytest
from api_server import TENANT, Policies
from controller_scene import NS
from kueue_samples import PLATFORM
from pod_variants import GOOD as GOOD_PODS
from pod_variants import Pod
from sidecar_scene import COMMIT, HELLO
from test_hostile_objects import GOOD, READERS, STATES
from test_policy_mounts import containers, hit
from test_policy_pods import job, pod

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.manifests import criu_probe
from singularity_proxy.protocol.messages import CheckpointFailure, to_json

pytestmark = [pytest.mark.full, pytest.mark.timeout(fuzz.SECONDS + 300)]
DEFAULT = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
"""What a container runtime gives to every container."""
LAUNCHERS = {"SYS_ADMIN", "NET_ADMIN", "SYS_TIME", "SYS_PTRACE"}
SECURITY = {"capabilities": {"add": ["SYS_ADMIN"]}, "runAsUser": 0}
FRAGMENTS: tuple[tuple[str, Any], ...] = (
    ("hostPID", True), ("hostNetwork", True), ("hostIPC", True), ("shareProcessNamespace", True),
    ("securityContext", {"privileged": True}), ("securityContext", SECURITY), ("procMount", "Unmasked"),
    ("securityContext", {"capabilities": {"add": ["ALL"]}}), ("securityContext", {"procMount": "Unmasked"}),
    ("securityContext", {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
    ("securityContext", {"appArmorProfile": {"type": "Unconfined"}}),
    ("add", ["SYS_ADMIN", "SYS_MODULE"]), ("privileged", True), ("hostPath", {"path": "/"}),
    ("volumes", [{"name": "mine", "hostPath": {"path": "/etc"}}]), ("mountPath", "/singularity/agent/launcher"),
    ("volumeMounts", [{"name": "mine", "mountPath": "/singularity/agent"}]), ("mountPath", "/x/../opt/singularity"),
    ("subPath", "nvidia"), ("command", ["sh", "-c", "id"]), ("args", ["--mine"]), ("image", "example/mine:1"),
    ("name", "train"), ("name", "device-proxy"), ("name", "install-agent"), ("name", "criu"),
    ("env", [{"name": "SINGULARITY_ROOT", "value": "/mine"}]), ("env", [{"name": "LD_PRELOAD", "value": "/mine.so"}]),
    ("envFrom", [{"configMapRef": {"name": "mine"}}]), ("workingDir", "/mine"), ("restartPolicy", "Always"),
    ("ports", [{"containerPort": 80, "hostPort": 80}]), ("terminationMessagePath", "/singularity/agent/launcher/start"),
    ("env", [{"name": "OPENSSL_CONF", "value": "/mine"}]), ("seccompProfile", {"type": "Unconfined"}),
    ("lifecycle", {"postStart": {"exec": {"command": ["id"]}}}), ("livenessProbe", {"exec": {"command": ["id"]}}),
)  # fmt: skip


def dangers(spec: Pod) -> list[str]:
    """What an admitted pod of a tenant must not have, by what a node would do with it."""
    found = [name for name in ("hostPID", "hostNetwork", "hostIPC") if spec.get(name)]
    platform = {str(each["hostPath"]["path"]) for each in PLATFORM.volumes if "hostPath" in each}
    paths = [str(each["hostPath"]["path"]) for each in spec.get("volumes") or () if each.get("hostPath")]
    found += [f"hostPath {path}" for path in paths if path not in platform]
    taken = hit(spec)
    named = {each["name"] for each in containers(spec)}
    if spec.get("shareProcessNamespace") and named & {job_names.CONTAINER_INSTALL, job_names.CONTAINER_SIDECAR}:
        found.append("shareProcessNamespace")
    for each in containers(spec):
        name, context = each["name"], each.get("securityContext") or {}
        added = {str(c).upper().removeprefix("CAP_") for c in (context.get("capabilities") or {}).get("add") or ()}
        more = added - DEFAULT
        # An ordinary container may be called as ours is: without a capability it runs what it likes.
        ours = more or name in (job_names.CONTAINER_INSTALL, job_names.CONTAINER_SIDECAR)
        found += [f"another program in {name}"] * bool(ours and name in taken)
        found += [f"{name} {what}" for what in ("privileged",) if context.get(what)]
        found += [f"{name} hostPort" for port in each.get("ports") or () if port.get("hostPort")]
        message = str(each.get("terminationMessagePath") or "")
        found += [f"{name} {message}"] * bool(ours and message.startswith(("/singularity", "/opt/singularity")))
        # A launcher with users of its own mounts a /proc of its own: it shows nothing of the node.
        masked = context.get("procMount") in (None, "Default")
        own = spec.get("hostUsers") is False and name in (job_names.CONTAINER_TRAIN, "node", criu_probe.CRIU)
        found += [f"{name} procMount"] * (not masked and not own)
        found += [f"{name} {more - LAUNCHERS}"] * bool(more - LAUNCHERS)
        if more and name in (job_names.CONTAINER_TRAIN, "node"):
            found += [f"{name} is not started with the launcher"] * (each.get("command", [""])[0] != job_names.LAUNCHER)
            found += [f"{name} {what}" for what in ("lifecycle", "livenessProbe", "readinessProbe") if each.get(what)]
        elif more and (name, each["image"]) != (criu_probe.CRIU, PLATFORM.agent_image):
            found.append(f"{name} {more}")
        if name in (job_names.CONTAINER_INSTALL, job_names.CONTAINER_SIDECAR) and each["image"] != PLATFORM.agent_image:
            found.append(f"{name} has another image")
    return found


def test_what_is_admitted_is_harmless(policies: Policies) -> None:
    tenant, count = policies.server.kube(TENANT), {"admitted": 0, "refused": 0}
    for case, chosen in fuzz.cases("pods"):
        spec = GOOD_PODS[chosen.choice(list(GOOD_PODS))](PLATFORM)
        changed = fuzz.mutated(chosen, spec, FRAGMENTS)
        if not isinstance(changed, dict):
            continue
        as_job = chosen.random() < 0.3
        try:
            made = tenant.create(job(changed) if as_job else pod(changed), dry_run=True)
        except KubeError:
            count["refused"] += 1
            continue
        count["admitted"] += 1
        assert dangers(made["spec"]["template"]["spec"] if as_job else made["spec"]) == [], (case, changed)
    assert min(count.values()) > fuzz.SECONDS / 10, count


def test_the_oracle_sees_what_the_guard_refuses() -> None:
    """Else the test before would hold whatever was admitted."""
    good = GOOD_PODS["a training job"](PLATFORM)
    assert dangers(good) == []
    for change in (
        lambda spec: spec.update(hostPID=True),
        lambda spec: spec.update(shareProcessNamespace=True),
        lambda spec: spec["volumes"].append({"name": "x", "hostPath": {"path": "/etc"}}),
        lambda spec: spec["containers"].append({"name": "x", "image": "x", "securityContext": SECURITY}),
        lambda spec: spec["containers"][0].update(command=["sh"]),
        lambda spec: spec["initContainers"][0].update(image="example/mine:1"),
    ):
        spec: Any = copy.deepcopy(good)
        change(spec)
        assert dangers(spec), spec


def test_whatever_an_annotation_says_it_is_read() -> None:
    tried = 0
    for case, chosen in fuzz.cases("annotations"):
        its_job, workload, pods = copy.deepcopy(STATES[chosen.randrange(len(STATES))])
        notes = dict(GOOD)
        for name in chosen.sample(sorted(notes), chosen.randint(1, 4)):
            notes[name] = fuzz.text(chosen, notes[name])
        its_job["metadata"]["annotations"], its_job["kind"] = notes, "Job"
        for each in pods:
            given = each["metadata"].get("annotations") or {}
            each["metadata"]["annotations"] = {name: fuzz.text(chosen, text) for name, text in given.items()}
        reader = chosen.choice(READERS)
        try:
            reader(its_job, workload, pods)
        except Exception as error:
            raise AssertionError(f"{case}: {reader.__name__} of {notes!r}") from error
        tried += 1
    assert tried > fuzz.SECONDS


async def test_whatever_a_sidecar_sends_it_gets_an_answer_and_others_are_heard(served):
    good = {
        "/v1/hello": HELLO, "/v1/commit": COMMIT, "/v1/failure": CheckpointFailure(NS, "train", 1, "stuck"),
        "/v1/progress": HELLO, "/v1/damage": HELLO, "/v1/trial": HELLO, "/v1/result": HELLO, "/v1/outputs": HELLO,
    }  # fmt: skip
    statuses = set()
    for case, chosen in fuzz.cases("requests"):
        path = chosen.choice(sorted(good))
        body = fuzz.text(chosen, to_json(good[chosen.choice([path, "/v1/commit", "/v1/failure"])]))
        token = chosen.choice(["leader", "leader", "follower", "stranger", "old", ""])
        if chosen.random() < 0.1:
            name = chosen.choice(["attempt", "after", "job", "namespace"])
            query = {"after": "x", name: fuzz.text(chosen, "1").strip("\x00")[:200]}
            status, _ = await served.commands(token, **query)
        else:
            status, _ = await served.post(path, body, token)
        assert status < 500 or status == 503, (case, path, token, body, status)
        statuses.add(status)
    assert {200, 400, 401} <= statuses, statuses
    status, _ = await served.post("/v1/hello", HELLO, "follower")
    assert status in (200, 202)
