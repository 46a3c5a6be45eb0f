"""What copies keep of an object: all that is read, and no more of a tenant's text than a bound."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import controller_scene as scene
import pytest
from adoption_cases import jobset, plain, trainjob
from controller_scene import T0
from hypothesis import given, settings
from hypothesis import strategies as st
from kueue_samples import PLATFORM

from kueue_integration.adoption.jobset import adopted_jobset
from kueue_integration.adoption.patch import adopted
from kueue_integration.adoption.trainjob import adopted_trainjob
from kueue_integration.contract import job_names, kinds
from kueue_integration.controller import kept
from kueue_integration.controller.planning import usable
from kueue_integration.controller.snapshot import Job, Pod, Workload
from kueue_integration.drain import nodes as drained
from kueue_integration.job import states
from kueue_integration.job.part import Part
from kueue_integration.jobs import status as library
from kueue_integration.kube.resources import POD, Object
from kueue_integration.multikueue import companions
from kueue_integration.planner import quota
from kueue_integration.requests import save_time_estimate

JOBS = [adopted(plain(), PLATFORM), adopted_jobset(jobset(), PLATFORM), adopted_trainjob(trainjob(), PLATFORM)]
KINDS = [str(job["kind"]) for job in JOBS]
LONG = "x" * 200_000
"""One object of the API server may have 1.5 MB."""
MOST = 400_000
"""Characters that may be left of an object, whatever a tenant puts into it."""

_amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "example.com/b"]), st.sampled_from(["1", "250m", "2Gi", "3"])
)
_containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.text("ab", min_size=1, max_size=3), "image": st.just("i")},
        optional={
            "resources": st.fixed_dictionaries({}, optional={"requests": _amounts, "limits": _amounts}),
            "restartPolicy": st.sampled_from(["Always", "Never"]),
            "env": st.just([{"name": "A", "value": LONG}]),
        },
    ),
    max_size=6,
)
_some_containers = st.tuples(_containers, st.sampled_from([1, 7, 40])).map(lambda pair: pair[0] * pair[1])
_specs = st.fixed_dictionaries({"containers": _some_containers}, optional={"initContainers": _some_containers})


def size(obj: Object) -> int:
    return len(json.dumps(obj))


def created(job: Object) -> Object:
    """`job` as an API server shows it."""
    meta = {"uid": scene.JOB_UID, "resourceVersion": "7", "creationTimestamp": scene.at(0), "namespace": scene.NS}
    notes = {**scene.history(scene.record(1, first_step_at=T0 + 20)), job_names.ANN_BUDGET: "120"}
    found = {**job["metadata"], **meta}
    return {**job, "metadata": {**found, "annotations": {**found["annotations"], **notes}}}


def huge(spec: Mapping[str, Any], containers: int = 300) -> Object:
    """`spec` of a pod as somebody writes it who wants to fill our memory."""
    each = {"name": "c", "image": "i", "args": ["y" * 2000], "resources": {"requests": {"cpu": "1"}}}
    term = {"key": "k", "operator": "In", "values": [LONG]}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    return {
        **spec,
        "containers": [*(spec.get("containers") or ()), *([each] * containers)],
        "volumes": [{"name": f"v{n}", "configMap": {"name": f"m{n}"}} for n in range(5000)],
        "affinity": {"nodeAffinity": node},
        "nodeSelector": {f"k{n}": "v" * 60 for n in range(5000)},
        "resourceClaims": [{"name": f"c{n}", "resourceClaimName": "d"} for n in range(2000)],
    }


def everything_of(cls: type[Job] | type[Pod] | type[Workload], raw: Object) -> dict[str, object]:
    """Each part that a reader may ask for."""
    parsed = cls.parse(raw)
    return {name: getattr(parsed, name) for name, part in vars(cls).items() if isinstance(part, Part)}


# --- nothing that is read is missing ----------------------------------------------------------------------------------
@pytest.mark.parametrize("job", JOBS, ids=KINDS)
def test_every_part_of_a_kept_job_is_that_of_the_whole_one(job: Object) -> None:
    whole = created(job)
    small = kept.job(copy.deepcopy(whole))
    assert size(small) < size(whole)
    ours, theirs = kinds.as_job(small), kinds.as_job(whole)
    assert everything_of(Job, ours) == everything_of(Job, theirs)
    assert library.summarise(ours, None, ()) == library.summarise(theirs, None, ())
    assert save_time_estimate.limits_of(ours) == save_time_estimate.limits_of(theirs)
    assert states.our_template(ours) == states.our_template(theirs)
    assert list(companions.needed(ours)) == list(companions.needed(theirs))
    assert kinds.place(ours) == kinds.place(theirs)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed", "Succeeded"])
def test_every_part_of_a_kept_pod_is_that_of_the_whole_one(phase: str) -> None:
    whole = scene.pod(1, phase=phase, tracked=True, deleting=True, ip="10.0.0.7")
    whole["spec"] = {"nodeName": "n1", "containers": [{"name": "c", "env": [{"name": "A", "value": LONG}]}]}
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": scene.at(30), "containerID": LONG}
    state = {"name": "c", "image": LONG, "resources": {"limits": {"memory": "1Gi"}}, "state": {"terminated": ended}}
    running = {"name": "d", "image": LONG, "state": {"running": {"startedAt": scene.at(12)}}}
    whole["status"] |= {"containerStatuses": [running, state], "hostIPs": [LONG]}
    small = kept.pod(copy.deepcopy(whole))
    assert everything_of(Pod, small) == everything_of(Pod, whole)
    assert states.gone_at(small) == states.gone_at(whole) and kinds.key_of_pod(small) == "train"
    assert size(small) < 2000


@given(_specs, _specs, st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_pods_ask_for_is_kept_of_any_number_of_containers(spec: Object, other: Object, ours: bool) -> None:
    labels = {job_names.LABEL_MANAGED: "true"} if ours else {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    pod = {"metadata": {"name": "p", "namespace": "n", "labels": labels}, "spec": {**spec, "nodeName": "n1"}}
    assert quota.of_pod({"template": kept.pod_with_asks(pod)}) == quota.of_pod({"template": pod})
    whole = scene.workload()
    whole["spec"]["podSets"] = [
        {"name": "main", "count": 2, "template": template},
        {"name": "other", "count": 3, "template": {"metadata": {"labels": labels}, "spec": other}},
    ]
    small = kept.workload(copy.deepcopy(whole))
    for before, after in zip(whole["spec"]["podSets"], small["spec"]["podSets"], strict=True):
        assert quota.of_pod(after) == quota.of_pod(before) and after["count"] == before["count"]
    assert quota.devices_of(small) == quota.devices_of(whole)
    assert states.has_our_pods(small) == ours == states.has_our_pods(whole)
    assert {**everything_of(Workload, small), "podset": None} == {**everything_of(Workload, whole), "podset": None}


def a_node(**spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "resourceVersion": "1", "labels": {"flavor": "spot", "zone": "a"}},
        "spec": {**spec, "podCIDRs": ["10.0.0.0/24"]},
        "status": {
            "allocatable": {"cpu": "8", "nvidia.com/gpu": "4"},
            "images": [{"names": ["registry/image@sha256:" + "0" * 64], "sizeBytes": 1}] * 50,
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": scene.at(1), "message": "m" * 99}],
        },
    }


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"unschedulable": True},
        {"taints": [{"key": "spot", "effect": "NoSchedule"}]},
        {"taints": [{"key": job_names.TAINT_UNHEALTHY, "effect": "NoSchedule"}]},
        {"taints": [{"key": "gone", "effect": "NoExecute"}]},
    ],
)
def test_a_kept_node_takes_the_pods_that_the_whole_one_takes(spec: dict[str, Any]) -> None:
    whole = a_node(**spec)
    small = kept.node(copy.deepcopy(whole))
    assert usable.takes_pods(small) == usable.takes_pods(whole)
    assert usable.held_by([small], lambda node: False) == usable.held_by([whole], lambda node: False)
    assert drained.leaving(small, ["Ready"], ["spot"]) == drained.leaving(whole, ["Ready"], ["spot"])
    assert small["metadata"]["labels"] == whole["metadata"]["labels"] and size(small) < size(whole) / 8


# --- what a tenant can make large is bounded --------------------------------------------------------------------------
def hostile() -> dict[str, tuple[Callable[[Object], Object], Object]]:
    made: dict[str, tuple[Callable[[Object], Object], Object]] = {}
    for job in JOBS:
        whole = created(job)
        spec = whole["spec"]
        if "template" in spec:
            spec = {**spec, "template": {**spec["template"], "spec": huge(spec["template"]["spec"])}}
        elif "replicatedJobs" in spec:
            inner = spec["replicatedJobs"][0]["template"]["spec"]["template"]
            replicated = {"name": "r", "template": {"spec": {"template": {**inner, "spec": huge(inner["spec"])}}}}
            spec = {**spec, "replicatedJobs": [replicated]}
        else:
            trainer = {**spec["trainer"], "env": [{"name": f"E{n}", "value": "v" * 100} for n in range(5000)]}
            spec = {**spec, "trainer": trainer, "podTemplateOverrides": [LONG]}
        meta = {
            **whole["metadata"],
            "labels": {**whole["metadata"]["labels"], **{f"e.com/{n}": "v" for n in range(5000)}},
        }
        meta["annotations"] = {**meta["annotations"], "kubectl.kubernetes.io/last-applied-configuration": LONG}
        made[str(job["kind"])] = kept.job, {**whole, "metadata": meta, "spec": spec}
    pod = scene.pod(0)
    pod["spec"], pod["metadata"]["annotations"]["other.example.com/a"] = huge({}), LONG
    made["Pod"], made["PodWithAsks"] = (kept.pod, pod), (kept.pod_with_asks, pod)
    foreign = {**pod, "metadata": {**pod["metadata"], "labels": {"a": "b"}}}
    made["ForeignPod"] = kept.pod_with_asks, foreign
    for name, labels in (("Workload", {job_names.LABEL_MANAGED: "true"}), ("ForeignWorkload", {"app": LONG})):
        workload = scene.workload()
        workload["spec"]["podSets"][0]["template"] = {"metadata": {"labels": labels}, "spec": huge({})}
        made[name] = kept.workload, workload
    return made


HOSTILE = hostile()


@pytest.mark.parametrize("name", HOSTILE)
def test_no_tenant_fills_our_memory(name: str) -> None:
    keep, whole = HOSTILE[name]
    before = copy.deepcopy(whole)
    small = keep(whole)
    assert whole == before, "who keeps a part changes nothing"
    assert size(small) < MOST and size(small) < size(whole) / 3
    assert size(keep(copy.deepcopy(small))) <= size(small)


@pytest.mark.parametrize("name", ["affinity", "nodeSelector"])
def test_a_change_of_what_is_too_long_to_keep_is_seen(name: str) -> None:
    def job(last: str) -> Object:
        whole = created(JOBS[0])
        spec = {**whole["spec"]["template"]["spec"], name: {"a": LONG + last}}
        return kept.job({**whole, "spec": {**whole["spec"], "template": {**whole["spec"]["template"], "spec": spec}}})

    def shown(last: str) -> object:
        return job(last)["spec"]["template"]["spec"][name]

    assert shown("1") != shown("2") and shown("1") == shown("1") and size(shown("1")) < 200


def test_of_pods_of_others_there_is_what_they_take_and_nothing_else() -> None:
    keep, whole = HOSTILE["ForeignPod"]
    small = keep({**whole, "kind": POD.name})
    assert set(small) == {"metadata", "spec", "status"}
    assert set(small["metadata"]) == {"namespace", "name", "resourceVersion"}
    assert quota.of_pod({"template": small}) == quota.of_pod({"template": whole})
