"""What pods may be in a namespace that trains, as a real API server enforces it."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from api_server import ADMIN, CONTROLLER, JOB_CONTROLLER, OTHER, TENANT, TRAINS, Policies
from kueue_samples import PLATFORM
from pod_variants import BAD, GOOD, Make, other, ours
from rendered import HELM, NO_HELM, render

from kueue_integration.contract import job_names
from kueue_integration.controller import agent_images
from kueue_integration.errors import KubeError
from kueue_integration.guard import names as guards
from kueue_integration.kube.resources import (
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    LEASE,
    POD,
    Object,
)
from kueue_integration.spec.platform_config import NODE, USER_NAMESPACE
from singularity_proxy.protocol import names


def said(call) -> str:
    """What the API server refuses it with, "" if it does not."""
    try:
        call()
    except KubeError as error:
        return str(error)
    return ""


def pod(spec: Object, name: str = "pod", namespace: str = TRAINS) -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def job(spec: Object, namespace: str = TRAINS) -> Object:
    meta = {"name": "job", "namespace": namespace}
    spec = {**spec, "restartPolicy": "Never"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": {"spec": spec}}}


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
@pytest.mark.parametrize("policy", [guards.PODS, guards.JOBS])
def test_the_chart_knows_each_variable_that_the_platform_sets(policy: str) -> None:
    """A pod has only some of them: pods of the other tests cannot show it."""
    made = render()["ValidatingAdmissionPolicy", policy]["spec"]["variables"]
    (listed,) = (each["expression"] for each in made if each["name"] == "settingsOfOurs")
    every = {**vars(names), **vars(job_names)}
    ours = sorted(value for name, value in every.items() if name.startswith("ENV_"))
    assert json.loads(listed.removesuffix(" + []")) == [value for value in ours if value.startswith("SINGULARITY_")]


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_pods_and_templates_of_jobs_are_held_to_the_same_rules():
    made = render()
    pods, jobs = (made["ValidatingAdmissionPolicy", name]["spec"] for name in (guards.PODS, guards.JOBS))
    assert pods["validations"] == jobs["validations"]
    assert pods["variables"][2:] == jobs["variables"][2:], "all but where the pod spec is, and who makes it"


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_good_ones_run(policies: Policies, make: Make) -> None:
    spec = make(PLATFORM)
    policies.admin.create(pod(spec), dry_run=True)
    policies.admin.create(job(spec), dry_run=True)


@pytest.mark.parametrize(("make", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_ones_are_refused_with_a_sentence_and_their_jobs_too(policies: Policies, make: Make, sentence: str) -> None:
    spec = make(PLATFORM)
    for user in (ADMIN, TENANT):
        kube = policies.server.kube(user)
        for manifest in (pod(spec), job(spec)):
            refused = said(lambda manifest=manifest, kube=kube: kube.create(manifest, dry_run=True))
            assert "'singularity-guard-" in refused and sentence in refused, refused


@pytest.mark.parametrize(("make", "sentence"), BAD.values(), ids=BAD.keys())
def test_elsewhere_nobody_is_stopped(policies: Policies, make: Make, sentence: str) -> None:
    policies.admin.create(pod(make(PLATFORM), namespace=OTHER), dry_run=True)


def test_an_annotation_switches_apparmor_off_no_more_than_the_field_does(policies: Policies) -> None:
    """API servers that know it make a field of it, which the policy sees; kubelets read the field alone."""
    made = pod(other(PLATFORM))
    made["metadata"]["annotations"] = {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}
    refused = said(lambda: policies.admin.create(made, dry_run=True))
    if not refused:
        stored = policies.admin.create(made, dry_run=True)["spec"]["containers"][0]
        assert "appArmorProfile" not in stored.get("securityContext", {})
    else:
        assert "container main: appArmorProfile" in refused


def test_a_pod_that_runs_cannot_become_another(policies: Policies) -> None:
    tenant = policies.server.kube(TENANT)
    tenant.create(pod(ours(PLATFORM), "runs"))
    image = {"spec": {"initContainers": [{"name": job_names.CONTAINER_INSTALL, "image": "example/mine:1"}]}}
    strategic = {"content_type": "application/strategic-merge-patch+json", "body": image}
    refused = said(lambda: tenant._json("PATCH", POD.path(TRAINS, "runs"), **strategic))
    assert "init container install-agent: the name is the platform's" in refused
    tenant.patch(POD, TRAINS, "runs", {"metadata": {"labels": {"mine": "x"}}})


def test_a_pod_of_before_can_still_be_let_go(policies: Policies) -> None:
    """Controllers take their finalizers off pods that were there before the namespace had the label."""
    spec = {**other(PLATFORM), "hostNetwork": True}
    made = pod(spec, "old", "before")
    made["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    policies.admin.create(made)
    policies.label("before")
    new = pod(spec, "new", "before")
    policies.eventually(lambda: said(lambda: policies.admin.create(new, dry_run=True)), "the pods there are guarded")
    policies.admin.patch(POD, "before", "old", {"metadata": {"finalizers": []}})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, ""),
        ({"targetContainerName": "train"}, ""),
        ({"targetContainerName": "device-proxy"}, "container device-proxy: no shareProcessNamespace beside it"),
        ({"targetContainerName": "install-agent"}, "container install-agent: no shareProcessNamespace beside it"),
        ({"securityContext": {"privileged": True}}, "container debug: privileged"),
        ({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}, "container debug: only the platform's"),
        (
            {"volumeMounts": [{"name": "singularity-agent", "mountPath": "/agent"}]},
            "container debug: volume singularity-agent must be",
        ),
    ],
)
def test_a_debugger_in_a_pod_is_held_to_the_same(policies: Policies, fields: Object, sentence: str) -> None:
    tenant = policies.server.kube(TENANT)
    if tenant.find(POD, TRAINS, "debugged") is None:
        tenant.create(pod(ours(PLATFORM), "debugged"))
    debug = {"name": "debug", "image": "example/debug:1", **copy.deepcopy(fields)}
    body = {"spec": {"ephemeralContainers": [debug]}}
    path = POD.path(TRAINS, "debugged", "ephemeralcontainers")
    patch = {"body": body, "query": {"dryRun": "All"}, "content_type": "application/strategic-merge-patch+json"}
    refused = said(lambda: tenant._json("PATCH", path, **patch))
    assert sentence in refused and bool(refused) == bool(sentence), refused


@pytest.mark.parametrize("how", ["exec", "attach"])
@pytest.mark.parametrize("container", ["train", "node", "", "device-proxy", "install-agent", "store", "criu"])
def test_a_shell_beside_the_launcher_is_for_those_who_may_reach_every_node(
    policies: Policies, container: str, how: str
) -> None:
    tenant, admin = (policies.server.kube(user) for user in (TENANT, ADMIN))
    if tenant.find(POD, TRAINS, "shell") is None:
        tenant.create(pod(ours(PLATFORM), "shell"))

    def run(kube, where: str) -> str:
        query = {"stdout": "true", **({"command": "sh"} if how == "exec" else {})}
        query |= {"container": where} if where else {}
        return said(lambda: kube._request("POST", POD.path(TRAINS, "shell", how), query=query))

    assert "would have the launcher's capabilities" in run(tenant, container)
    for kube, where in ((tenant, "mine"), (admin, container)):
        assert guards.EXEC not in run(kube, where)


def test_the_controller_is_no_exception(policies: Policies) -> None:
    spec = {**other(PLATFORM), "hostPID": True}
    assert "hostPID" in said(lambda: policies.server.kube(CONTROLLER).create(pod(spec), dry_run=True))


def test_the_image_of_a_release_before_is_trusted_until_its_last_job_has_ended(policies: Policies) -> None:
    """As the controller keeps the parameter: a Job of before an upgrade gets its pods, a stranger's image does not."""
    before = "example/agent:before"
    spec = ours(dataclasses.replace(PLATFORM, agent_image=before))
    live = job(spec)
    jobs = [live]
    at = [1000.0]
    of_now = (PLATFORM.agent_image,)
    stranger = pod(ours(dataclasses.replace(PLATFORM, agent_image="example/agent:mine")), "stranger")

    def release(*configured: str) -> None:
        kube = policies.server.kube(ADMIN)
        agent_images.AgentImages(kube, job_names.SYSTEM_NAMESPACE, configured, lambda: jobs, lambda: at[0]).keep()

    def refused(manifest: Object) -> str:
        return said(lambda: policies.admin.create(manifest, dry_run=True))

    assert "init container install-agent: the name is the platform's" in refused(pod(spec))
    release(before)
    release(*of_now)
    policies.eventually(lambda: not refused(pod(spec)) and not refused(live), "the image of before is trusted")
    at[0] += 10 * agent_images.LINGER_S
    release(*of_now)
    assert not refused(pod(spec)) and "the name is the platform's" in refused(stranger)
    jobs.clear()
    release(*of_now)
    at[0] += agent_images.LINGER_S
    release(*of_now)
    policies.eventually(lambda: refused(pod(spec)), "the image of before is trusted no more")
    policies.admin.delete(LEASE, job_names.SYSTEM_NAMESPACE, job_names.TRUSTED_IMAGES_LEASE)
    policies.eventually(lambda: refused(pod(ours(PLATFORM))), "without the parameter there are no pods")
    release(*of_now)
    policies.eventually(lambda: not refused(pod(ours(PLATFORM))), "the controller makes it again")


def test_pods_are_let_in_after_a_rollback_and_the_upgrade_again(policies: Policies) -> None:
    """The release before has these policies without a parameter: then none of this kind but the hold's is left."""
    both = (ADMISSION_POLICY_BINDING, ADMISSION_POLICY)
    parts = [(kind, name) for name in (guards.PODS, guards.JOBS) for kind in both]
    kept = {part: policies.admin.get(part[0], None, part[1]) for part in parts}
    for kind, name in parts:
        policies.admin.delete(kind, None, name)
    stranger = pod({**other(PLATFORM), "hostPID": True}, "stranger")
    policies.eventually(lambda: not said(lambda: policies.admin.create(stranger, dry_run=True)), "nothing is guarded")
    for (_, name), made in reversed(kept.items()):
        policies.admin.create({**made, "metadata": {"name": name, "labels": made["metadata"].get("labels", {})}})
    policies.eventually(lambda: said(lambda: policies.admin.create(stranger, dry_run=True)), "pods are guarded again")
    policies.admin.create(pod(ours(PLATFORM), "good"), dry_run=True)


def chart_says(policies: Policies, **variables: object) -> None:
    """Change variables of the policies of pods that the chart renders from its values."""
    for name in (guards.PODS, guards.JOBS):
        held = policies.admin.get(ADMISSION_POLICY, None, name)
        made = [
            v | {"expression": json.dumps(variables[v["name"]])} if v["name"] in variables else v
            for v in held["spec"]["variables"]
        ]
        policies.admin.patch(ADMISSION_POLICY, None, name, {"spec": {"variables": made}})


def test_where_the_platform_gives_user_namespaces_no_pod_has_capabilities_on_the_node(policies: Policies) -> None:
    """As the chart renders the policies with `pods.privileges=userns`."""
    on_node, own = ours(PLATFORM), ours(dataclasses.replace(PLATFORM, privileges=USER_NAMESPACE))
    def refused(manifest: Object, user: str = ADMIN) -> str:
        return said(lambda: policies.server.kube(user).create(manifest, dry_run=True))

    def owned(spec: Object, **owner: object) -> Object:
        made = pod(spec)
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "before", "uid": "u", "controller": True}
        made["metadata"]["ownerReferences"] = [reference | owner]
        return made

    chart_says(policies, privileges=USER_NAMESPACE)
    try:
        for made in (pod, job):
            policies.eventually(lambda made=made: refused(made(on_node)), "capabilities on the node are refused")
            assert "container train: only a pod with hostUsers: false may add capabilities here" in refused(
                made(on_node)
            )
            assert not refused(made(own)) and not refused(made(other(PLATFORM)))
        # A Job of before the switch goes on to its end: its template was let in, and cannot be changed.
        assert not refused(owned(on_node), JOB_CONTROLLER)
        assert "a hostPath must be" in refused(owned(BAD["the node's files"][0](PLATFORM)), JOB_CONTROLLER)
        strangers = ({"kind": "ReplicaSet"}, {"apiVersion": "mine/v1"}, {"controller": False})
        for user, changed in ((TENANT, {}), (ADMIN, {}), *((JOB_CONTROLLER, each) for each in strangers)):
            assert "only a pod with hostUsers: false" in refused(owned(on_node, **changed), user), (user, changed)
        assert "only a pod with hostUsers: false" in refused(job(on_node), JOB_CONTROLLER)
        assert "--set pods.privileges=auto" in refused(job(on_node)), "what lets a JobSet of before go on"
    finally:
        chart_says(policies, privileges=NODE)
    policies.eventually(lambda: not refused(pod(on_node)) and not refused(job(on_node)), "the node's are given again")


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_the_chart_writes_the_images_of_the_node_into_the_policies() -> None:
    made = render("pods.nodeImages={r/a,r/b/}")
    for name in (guards.PODS, guards.JOBS):
        variables = {v["name"]: v["expression"] for v in made["ValidatingAdmissionPolicy", name]["spec"]["variables"]}
        assert json.loads(variables["nodeImages"]) == ["r/a", "r/b/"]


def test_with_a_list_of_images_no_other_one_has_capabilities_on_the_node(policies: Policies) -> None:
    """An image's links lead volumes over the launcher, and no policy sees an image: as with `pods.nodeImages`."""
    known = ["registry.example.com/ml/", "r/train", "r/one:7"]

    def said_of(image: str, path: str = "/data", privileges: str = NODE) -> str:
        spec = ours(dataclasses.replace(PLATFORM, privileges=privileges))
        (train,) = spec["containers"]
        train["image"] = image
        spec["volumes"].append({"name": "mine", "emptyDir": {}})
        train["volumeMounts"].append({"name": "mine", "mountPath": path})
        told = {said(lambda made=made: policies.admin.create(made, dry_run=True)) for made in (pod(spec), job(spec))}
        assert len({bool(text) for text in told}) == 1, told
        return max(told)

    chart_says(policies, nodeImages=known)
    try:
        policies.eventually(lambda: said(lambda: policies.admin.create(pod(ours(PLATFORM)), dry_run=True)), "a list")
        policies.eventually(lambda: said(lambda: policies.admin.create(job(ours(PLATFORM)), dry_run=True)), "a list")
        for image in ("registry.example.com/ml/a:1", "r/train", "r/train:2", "r/train@sha256:00", "r/one:7"):
            assert said_of(image) == "", image
        for image in ("registry.example.com/mlx/a", "r/trained:2", "r/train/a:1", "r/one:70", "r/one", "x/r/train"):
            assert f"its image {image} may not have capabilities on the node" in said_of(image), image
            assert said_of(image, privileges=USER_NAMESPACE) == "", "there they count in the pod alone"
        for path in ("/var/run/singularity", "/run/x", "/bin", "/lib64/x", "/etc/x", "/dev/fd", "/sys"):
            assert "nothing is mounted below /bin" in said_of("r/train", path), path
            assert said_of("r/train", path, USER_NAMESPACE) == "", path
        for path in ("/mnt/x", "/home/me/.cache", "/library", "/opt/x", "/var/run/secrets/x", "/variables"):
            assert said_of("r/train", path) == "", path
    finally:
        chart_says(policies, nodeImages=[])
    for made in (pod, job):
        taken = lambda made=made: not said(lambda: policies.admin.create(made(ours(PLATFORM)), dry_run=True))  # noqa: E731
        policies.eventually(taken, "every image again")
