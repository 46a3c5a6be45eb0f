"""What the controller's account may change of jobs that are not ours: asked of a real API server with Kueue's kinds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from api_server import CONTROLLER, KUEUE, ApiServer
from rendered import HELM, NO_HELM, render
from two_controllers import install
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.guard import names
from kueue_integration.kube.resources import (
    DISRUPTION_BUDGET,
    JOB,
    JOBSET,
    NAMESPACE,
    TRAINJOB,
    WORKLOAD,
    Kind,
    Object,
)
from localcluster.api_server import any_of, api_server

CRDS = os.environ.get("SINGULARITY_KUEUE_CRDS", "")
TEAM = "team"
MANAGED = {job_names.LABEL_MANAGED: "true"}
REFUSED = "singularity-controller changes no Job, JobSet, TrainJob or Workload without the label"
OTHERS_STATUS = "writes nothing else of their status"
RESOURCES = (
    "jobs", "jobsets", "trainjobs", "workloads", "workloads/status", "namespaces", "namespaces/status",
    "poddisruptionbudgets",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    programs = [os.environ.get(f"SINGULARITY_{name}") for name in ("APISERVER", "ETCD")]
    if not all(programs) or not CRDS:
        pytest.skip("no API server, or no kinds of Kueue: `python -m localcluster.prepare --env` says where they are")
    if HELM is None:
        pytest.skip(NO_HELM)
    folder = tmp_path_factory.mktemp("limits")
    with api_server(folder, *map(str, programs), users=(CONTROLLER, KUEUE), allowed=RESOURCES) as started:
        admin = started.kube()
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
        for kind in (JOBSET, TRAINJOB):
            install(admin, any_of(kind))
        for path in Path(CRDS).glob("*_workloads.yaml"):
            definition = yaml.safe_load(path.read_text())
            definition["spec"].pop("conversion", None)  # nobody serves Kueue's webhook here
            install(admin, definition)
        for made in render().values():
            if made["metadata"]["name"] == names.CONTROLLER:
                install(admin, made)
        for served in (JOBSET, TRAINJOB, WORKLOAD):
            until(may(lambda served=served: admin.list(served) == []), f"{served.name} are served")
        probe = job("until-it-holds", {})
        holds = lambda: made_of(started, probe) and refused(started, probe, {"spec": {"suspend": False}})  # noqa: E731
        until(may(holds), "the policies are in force")
        yield started


def may(holds: Callable[[], object]) -> Callable[[], object]:
    """The same; what the API server refuses is not true yet."""

    def asked() -> object:
        try:
            return holds()
        except KubeError:
            return False

    return asked


def made_of(server: ApiServer, obj: Object) -> Object:
    """The object as the API server has it, made if it is not there."""
    kube, kind = server.kube(), kind_of(obj)
    return kube.find(kind, TEAM, obj["metadata"]["name"]) or kube.create(obj)


def kind_of(obj: Object) -> Kind:
    return next(kind for kind in (JOB, JOBSET, TRAINJOB, WORKLOAD) if kind.name == obj["kind"])


def refused(
    server: ApiServer, obj: Object, body: Object, subresource: str | None = None, user: str = CONTROLLER
) -> str:
    """Why the API server refuses a merge patch, "" if it takes it."""
    try:
        server.kube(user).patch(kind_of(obj), TEAM, obj["metadata"]["name"], body, subresource=subresource)
    except KubeError as error:
        return str(error)
    return ""


def pod(labels: dict[str, str]) -> Object:
    container = {"name": "main", "image": "any:1"}
    return {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}


def job(name: str, labels: dict[str, str], pods: dict[str, str] | None = None) -> Object:
    meta = {"name": name, "namespace": TEAM, "labels": labels}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": meta,
        "spec": {"suspend": True, "template": pod(labels if pods is None else pods)},
    }  # fmt: skip


def workload(name: str, labels: dict[str, str]) -> Object:
    podset = {"name": "main", "count": 1, "template": pod(labels)}
    return {
        "apiVersion": WORKLOAD.api_version, "kind": "Workload", "metadata": {"name": name, "namespace": TEAM},
        "spec": {"queueName": "q", "podSets": [podset]},
    }  # fmt: skip


AT = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
CHECKS = [{"name": name, "state": "Pending", "message": "", **AT} for name in ("singularity-fence", "theirs")]
ADMITTED = {"type": "Admitted", "status": "True", "reason": "Admitted", "message": "", **AT}


def waiting(server: ApiServer, name: str, labels: dict[str, str]) -> Object:
    """A Workload that waits for two checks."""
    found = made_of(server, workload(name, labels))
    assert not refused(server, found, {"status": {"admissionChecks": CHECKS}}, "status", KUEUE)
    return found


def answered(at: int, **more: str) -> Object:
    changed = [{**check, **more} if number == at else check for number, check in enumerate(CHECKS)]
    return {"status": {"admissionChecks": changed}}


def test_the_fence_answers_for_everybody(server: ApiServer) -> None:
    other = waiting(server, "answers", {})
    assert not refused(server, other, answered(0, state="Ready", message="another job"), "status")
    found = server.kube().get(WORKLOAD, TEAM, "answers")["status"]["admissionChecks"]
    assert [check["state"] for check in found] == ["Ready", "Pending"]


@pytest.mark.parametrize(
    "body",
    [
        answered(1, state="Ready"),
        {"status": {"admissionChecks": CHECKS[:1]}},
        {"status": {"admissionChecks": [*CHECKS, {**CHECKS[1], "name": "third", "state": "Ready"}]}},
        {"status": {"conditions": [ADMITTED]}},
        {"status": {"requeueState": {"count": 3}}},
        {"status": None},
    ],
    ids=["another check", "a check less", "a check more", "a condition", "another field", "nothing left"],
)
def test_no_other_word_about_a_workload_of_others(server: ApiServer, body: Object) -> None:
    other = waiting(server, "others", {})
    assert OTHERS_STATUS in refused(server, other, body, "status")
    assert not refused(server, other, body, "status", KUEUE), "Kueue may"


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"active": False}},
        {"spec": {"priority": 1000}},
        {"metadata": {"annotations": {"any": "thing"}}},
        {"metadata": {"labels": MANAGED}},
        {"metadata": {"finalizers": ["example.com/any"]}},
    ],
)
def test_a_workload_of_others_is_left_alone(server: ApiServer, body: Object) -> None:
    assert REFUSED in refused(server, waiting(server, "alone", {}), body)


@pytest.mark.parametrize("kind", [JOB, JOBSET, TRAINJOB])
@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"annotations": {job_names.ANN_ATTEMPT: "1"}}},
        {"metadata": {"labels": MANAGED}},
        {"spec": {"suspend": False}},
    ],
)
def test_jobs_of_others_are_left_alone(server: ApiServer, kind: Kind, body: Object) -> None:
    meta = {"name": "alone", "namespace": TEAM}
    other = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": {"suspend": True}}
    found = made_of(server, job("alone", {}) if kind is JOB else other)
    assert REFUSED in refused(server, found, body)


def test_budgets_of_others_are_neither_changed_nor_removed(server: ApiServer) -> None:
    def answers(name: str, labels: dict[str, str]) -> list[str]:
        meta = {"name": name, "namespace": TEAM, "labels": labels}
        kind = DISRUPTION_BUDGET
        server.kube().create({"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": {}})
        kube, found = server.kube(CONTROLLER), []
        for act in (
            lambda: kube.patch(kind, TEAM, name, {"spec": {"minAvailable": 2}}),
            lambda: kube.delete(kind, TEAM, name),
        ):
            try:
                act()
            except KubeError as error:
                found.append(str(error))
        return found

    assert answers("ours", dict(job_names.MADE_BY_CONTROLLER)) == []
    said = answers("theirs", {})
    assert len(said) == 2 and all("no PodDisruptionBudget but its own" in each for each in said), said


def test_what_is_ours_is_written_as_before(server: ApiServer) -> None:
    ours = made_of(server, job("ours", MANAGED))
    assert not refused(server, ours, {"metadata": {"annotations": {job_names.ANN_ATTEMPT: "1"}}})
    assert not refused(server, ours, {"spec": {"parallelism": 2}})
    of_a_jobset = made_of(server, job("of-a-jobset", {}, MANAGED))
    assert not refused(server, of_a_jobset, {"spec": {"backoffLimit": 0}})
    kept = waiting(server, "ours", MANAGED)
    assert not refused(server, kept, {"spec": {"active": False}})
    assert not refused(server, kept, {"status": {"conditions": [ADMITTED]}}, "status")
    meta = {"name": "ours", "namespace": TEAM, "labels": MANAGED}
    for kind in (JOBSET, TRAINJOB):
        found = made_of(server, {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": {}})
        assert not refused(server, found, {"metadata": {"annotations": {job_names.ANN_ATTEMPT: "1"}}})


GUARDED = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
OTHER_LEVEL = {"pod-security.kubernetes.io/enforce": "privileged"}


@pytest.mark.parametrize(
    ("before", "body", "subresource", "good"),
    [
        ({}, {"metadata": {"labels": GUARDED}}, None, True),
        ({}, {"metadata": {"labels": {job_names.LABEL_TRAINING: "disabled"}}}, None, False),
        ({}, {"metadata": {"labels": {**GUARDED, **OTHER_LEVEL}}}, None, False),
        ({}, {"metadata": {"labels": OTHER_LEVEL}}, None, False),
        ({}, {"metadata": {"labels": GUARDED}}, "status", False),
        ({}, {"metadata": {"labels": {**GUARDED, "kubernetes.io/metadata.name": None}}}, None, True),
        ({}, {"metadata": {"annotations": {"any": "thing"}}}, None, False),
        ({}, {"metadata": {"labels": GUARDED, "finalizers": ["example.com/any"]}}, None, False),
        (GUARDED, {"metadata": {"labels": {job_names.LABEL_TRAINING: None}}}, None, False),
        (GUARDED, {"metadata": {"labels": {job_names.LABEL_TRAINING: "x"}}}, None, False),
        ({job_names.LABEL_TRAINING: "disabled"}, {"metadata": {"labels": GUARDED}}, None, False),
        ({"theirs": "x"}, {"metadata": {"labels": {**GUARDED, "theirs": None}}}, None, False),
        ({**MANAGED}, {"metadata": {"labels": OTHER_LEVEL}}, None, False),
    ],
)
def test_of_a_namespace_it_adds_the_label_of_the_guard_alone(
    server: ApiServer, before: dict[str, str], body: Object, subresource: str | None, good: bool
) -> None:
    made = server.kube().create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "guarded-", "labels": before}}
    )
    name = made["metadata"]["name"]

    def said(user: str) -> str:
        try:
            server.kube(user).patch(NAMESPACE, None, name, body, subresource=subresource)
        except KubeError as error:
            return str(error)
        return ""

    answer = said(CONTROLLER)
    assert bool(answer) is not good, answer
    assert good or "and changes nothing else of it" in answer
    assert not said(KUEUE), "nobody else is concerned"


def test_others_are_not_concerned(server: ApiServer) -> None:
    other = made_of(server, job("kueues", {}))
    assert not refused(server, other, {"spec": {"suspend": False}}, user=KUEUE)
    assert server.kube().get(NAMESPACE, None, TEAM)
