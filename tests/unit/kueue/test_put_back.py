"""When the chart goes, what policies have changed for a while is given back, and what users have asked for stays."""

from __future__ import annotations

from typing import Any

import pytest
from rendered import HELM, NO_HELM, render

from kueue_integration import put_back
from kueue_integration.contract import job_names, priority
from kueue_integration.errors import Conflict, NotFound
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, NODE, WORKLOAD, Object

KUEUE = "kueue.x-k8s.io/v1beta2"
MARK = priority.change("slaTiers", 5, 100, None)["metadata"]["annotations"]


def workload(name: str, notes: dict[str, str] | None = None, **spec: Any) -> Object:
    meta = {"name": name, "namespace": "team", "annotations": notes or {}}
    return {"apiVersion": KUEUE, "kind": "Workload", "metadata": meta, "spec": {"priority": 100, "podSets": [], **spec}}


def job(name: str, finalizers: list[str]) -> Object:
    meta = {"name": name, "namespace": "team", "labels": {job_names.LABEL_MANAGED: "true"}, "finalizers": finalizers}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"suspend": True}}


def node(name: str, *keys: str) -> Object:
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}}


def budget(name: str, labels: dict[str, str]) -> Object:
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"minAvailable": 1},
            "metadata": {"name": name, "namespace": "team", "labels": labels}}  # fmt: skip


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube(
        workload("lowered", MARK, priority=5),
        workload("changed-since", MARK, priority=7),
        workload("parked", {job_names.ANN_PAUSED: "r1 timeSharing"}, active=False),
        workload("paused", {job_names.ANN_PAUSED: "r2"}, active=False),
        workload("reshaped", {job_names.ANN_RESHAPE: "another size"}, active=False),
        workload("foreign"),
        workload("foreign-off", active=False),
        job("copy", ["orphan", job_names.FINALIZER_RECORDS]),
        job("plain", ["orphan"]),
        node("sick", "mine", job_names.TAINT_UNHEALTHY),
        node("well", "mine"),
        budget("ours", dict(job_names.MADE_BY_CONTROLLER)),
        budget("theirs", {"app": "web"}),
    )


def told(kube: FakeKube) -> dict[str, tuple[Any, Any]]:
    found = kube.list(WORKLOAD)
    return {w["metadata"]["name"]: (w["spec"]["priority"], w["spec"].get("active", True)) for w in found}


def test_all_of_it_is_given_back_and_nothing_else_is_touched(kube: FakeKube) -> None:
    kube.requests.clear()
    done, failed = put_back.put_back(kube)
    assert (len(done), failed) == (7, [])
    assert told(kube) == {
        "lowered": (100, True), "changed-since": (7, True), "parked": (100, True), "paused": (100, False),
        "reshaped": (100, True), "foreign": (100, True), "foreign-off": (100, False),
    }  # fmt: skip
    assert kube.get(WORKLOAD, "team", "lowered")["metadata"]["annotations"] == {}
    assert kube.get(JOB, "team", "copy")["metadata"]["finalizers"] == ["orphan"]
    assert [taint["key"] for taint in kube.get(NODE, None, "sick")["spec"]["taints"]] == ["mine"]
    assert [o["metadata"]["name"] for o in kube.objects() if o["kind"] == "PodDisruptionBudget"] == ["theirs"]
    assert put_back.put_back(kube) == ([], []), "a second time there is nothing to do"


def test_an_error_about_one_object_keeps_no_other_from_it(kube: FakeKube) -> None:
    kube.fail_next("patch", WORKLOAD, Conflict("changed", 409, "Conflict"))
    done, failed = put_back.put_back(kube)
    assert len(done) == 6 and len(failed) == 1
    assert put_back.put_back(kube)[1] == [], "the next try of the Job has it"


def test_where_kueue_is_gone_the_rest_is_given_back(kube: FakeKube) -> None:
    kube.fail_next("list", WORKLOAD, NotFound("no such kind", 404))
    done, failed = put_back.put_back(kube)
    assert (len(done), failed) == (3, [])


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_the_chart_runs_it_last_with_just_the_rights_that_it_needs(kube: FakeKube) -> None:
    objects = render()
    name = "singularity-put-back"
    made = [objects[kind, name] for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job")]
    assert all(one["metadata"]["annotations"]["helm.sh/hook"] == "post-delete" for one in made)
    (container,) = made[3]["spec"]["template"]["spec"]["containers"]
    assert container["command"][1:] == ["-m", "kueue_integration.put_back"]
    allowed = {(verb, what) for rule in made[1]["rules"] for what in rule["resources"] for verb in rule["verbs"]}
    kube.requests.clear()
    put_back.put_back(kube)
    kinds = {"Workload": "workloads", "Job": "jobs", "JobSet": "jobsets", "TrainJob": "trainjobs", "Node": "nodes",
             "PodDisruptionBudget": "poddisruptionbudgets"}  # fmt: skip
    used = {(request[0], kinds[request[1]]) for request in kube.requests}
    assert used <= allowed and allowed - used == {("patch", "jobsets"), ("patch", "trainjobs")}
