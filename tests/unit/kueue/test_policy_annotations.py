"""Whose an annotation is, as a real API server enforces it."""

from __future__ import annotations

import itertools
import json

import pytest
from api_server import ADMIN, CONTROLLER, JOB_CONTROLLER, KUEUE, MULTIKUEUE, TEAM, TENANT, Policies
from kueue_samples import PLATFORM, spec
from rendered import HELM, NO_HELM, render

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.guard import ownership
from kueue_integration.guard.ownership import CONTROLLER as CONTROLLERS
from kueue_integration.guard.ownership import CREATION, TABLE, USER, Annotation
from kueue_integration.kube.resources import JOB, JOBSET, TRAINJOB, WORKLOAD, Kind, Object
from kueue_integration.manifests import job_manifests
from singularity_proxy.protocol import names

OURS = " is the platform's: "
"""Between the annotation and what to do instead."""


def said(call) -> str:
    """What the API server refuses it with, "" if it does not."""
    try:
        call()
    except KubeError as error:
        return str(error)
    return ""


def test_every_annotation_belongs_to_somebody_and_says_what_to_do_instead():
    known = {value for name, value in {**vars(names), **vars(job_names)}.items() if name.startswith("ANN_")}
    assert {entry.name for entry in TABLE} == known and len(TABLE) == len(known)
    for entry in ownership.reserved(CONTROLLERS, CREATION):
        assert entry.instead, entry.name


def test_what_a_submission_writes_may_be_written_at_the_creation():
    job = job_manifests.job(spec(checkpoint_every="10m", infrastructure_retries=2, min_workers=2), PLATFORM)
    ours = {name for name in job["metadata"]["annotations"] if name.startswith(names.DOMAIN)}
    assert ours <= {entry.name for entry in TABLE if entry.whose in (CREATION, USER)}


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_the_chart_and_the_table_say_the_same():
    """Else: charts/singularity/templates/guard-annotations.yaml."""
    made = render()["ValidatingAdmissionPolicy", "singularity-guard-annotations"]["spec"]["variables"]
    chart = {each["name"]: json.loads(each["expression"]) for each in made[:6]}
    ours = ownership.reserved(CONTROLLERS, CREATION)
    assert chart["instead"] == {entry.name: entry.instead for entry in ours}
    assert chart["free"] == {e.name: texts for e in ours if (texts := [text for text in e.free if text is not None])}
    assert chart["removable"] == [entry.name for entry in ours if ownership.REMOVED in entry.free]
    assert chart["creators"] == [entry.name for entry in ours if entry.whose == CREATION]
    assert chart["choices"] == {entry.name: [*entry.values] for entry in TABLE if entry.values}
    assert chart["fixed"] == [*ownership.LABELS]


@pytest.mark.parametrize("entry", TABLE, ids=[entry.name for entry in TABLE])
def test_a_tenant_writes_what_is_a_tenants(policies: Policies, entry: Annotation) -> None:
    number = TABLE.index(entry)
    value = entry.values[0] if entry.values else "9"
    at_creation = said(lambda: policies.create(f"at-creation-{number}", {entry.name: value}, TENANT))
    assert bool(at_creation) == (entry.whose == CONTROLLERS), at_creation
    job = policies.job(f"later-{number}")
    added = said(lambda: policies.annotate(job, TENANT, {entry.name: value}))
    policies.annotate(job, CONTROLLER, {entry.name: "8" if not entry.values else entry.values[1]})
    changed = said(lambda: policies.annotate(job, TENANT, {entry.name: value}))
    removed = said(lambda: policies.annotate(job, TENANT, {entry.name: None}))
    if entry.whose == USER:
        assert (added, changed, removed) == ("", "", "")
    else:
        for text in (added, changed):
            assert f"annotation {entry.name}{OURS}{entry.instead}" in text
        assert (removed == "") == (ownership.REMOVED in entry.free)
    policies.annotate(job, CONTROLLER, {entry.name: None})
    for text in entry.free:
        assert said(lambda text=text: policies.annotate(job, TENANT, {entry.name: text})) == "", text


@pytest.mark.parametrize("user", [TENANT, ADMIN, KUEUE, JOB_CONTROLLER])
def test_only_the_controllers_accounts_write_them(policies: Policies, user: str) -> None:
    job = policies.job("accounts")
    assert OURS in said(lambda: policies.annotate(job, user, {job_names.ANN_HISTORY: "[]"}))


def test_the_account_of_a_multikueue_manager_may_bring_a_job_with_its_records(policies: Policies) -> None:
    records = {
        job_names.ANN_HISTORY: "[]",
        job_names.ANN_ATTEMPT: "3",
        names.ANN_CHECKPOINT: "{}",
        job_names.ANN_HOLD: "armed",
    }
    policies.create("copy", records, MULTIKUEUE)


@pytest.mark.parametrize("text", ["", "on", "Armed", "armed "])
def test_a_hold_is_one_of_its_words(policies: Policies, text: str) -> None:
    job = policies.job("words")
    refused = said(lambda: policies.annotate(job, TENANT, {job_names.ANN_HOLD: text}))
    assert f"annotation {job_names.ANN_HOLD} must be one of armed, released, off" in refused


def test_what_does_not_touch_them_goes_through(policies: Policies) -> None:
    """Kubernetes' controllers, Kueue, `kubectl apply` and the user's own annotations."""
    job = policies.job("busy")
    full = {entry.name: "9" for entry in ownership.reserved(CONTROLLERS, CREATION)}
    policies.annotate(job, CONTROLLER, full)
    tenant = policies.server.kube(TENANT)
    policies.annotate(job, TENANT, {"team.example/note": "x", "kueue.x-k8s.io/stopping": "true"})
    tenant.patch(JOB, TEAM, "busy", {"metadata": {"labels": {"mine": "x"}}, "spec": {"parallelism": 0}})
    whole = tenant.get(JOB, TEAM, "busy")
    tenant.replace(whole)
    policies.server.kube(JOB_CONTROLLER).patch(JOB, TEAM, "busy", {"status": {"active": 0}}, subresource="status")
    policies.server.kube(JOB_CONTROLLER).patch(JOB, TEAM, "busy", {"metadata": {"finalizers": ["a.example/b"]}})
    policies.server.kube(JOB_CONTROLLER).patch(JOB, TEAM, "busy", {"metadata": {"finalizers": []}})
    meta = {"name": "busy", "annotations": {"x.example/y": "z"}}
    policies.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta}, TENANT)
    kept = tenant.get(JOB, TEAM, "busy")["metadata"]["annotations"]
    assert kept.items() >= full.items()
    tenant.delete(JOB, TEAM, "busy")


def test_the_status_subresource_is_no_way_around(policies: Policies) -> None:
    job = policies.job("status")
    body = {"metadata": {"annotations": {job_names.ANN_HISTORY: "[]"}}}
    tenant = policies.server.kube(TENANT)
    assert OURS in said(lambda: tenant.patch(JOB, TEAM, job["metadata"]["name"], body, subresource="status"))


@pytest.mark.parametrize("kind", [JOBSET, TRAINJOB, WORKLOAD], ids=lambda kind: kind.name)
def test_other_kinds_are_held_to_the_same(policies: Policies, kind: Kind) -> None:
    def made(name: str, **notes: str) -> Object:
        meta = {"name": name, "namespace": TEAM, "annotations": notes}
        manifest = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta}
        return policies.server.kube(TENANT).create(manifest)

    made("plain", **{job_names.ANN_HOLD: "armed", job_names.ANN_WORKERS: "2"})
    for entry in ownership.reserved(CONTROLLERS):
        assert OURS in said(lambda entry=entry: made("bad", **{entry.name: "1"})), entry.name
    body = {"metadata": {"annotations": {job_names.ANN_WORKERS: "3"}}}
    assert OURS in said(lambda: policies.server.kube(TENANT).patch(kind, TEAM, "plain", body))


def test_labels_that_name_a_job_stay(policies: Policies) -> None:
    job = policies.job("labels")
    policies.server.kube(CONTROLLER).patch(
        JOB, TEAM, "labels", {"metadata": {"labels": {job_names.LABEL_JOB: "labels"}}}
    )
    for name, value in itertools.product(ownership.LABELS, ("other", None)):
        body = {"metadata": {"labels": {name: value}}}
        refused = said(lambda body=body: policies.server.kube(TENANT).patch(JOB, TEAM, "labels", body))
        absent = value is None and name == job_names.LABEL_IDENTITY
        assert absent or f"label {name} stays" in refused
    policies.server.kube(TENANT).patch(
        JOB, TEAM, "labels", {"metadata": {"labels": {job_names.LABEL_MANAGED: "false"}}}
    )
    assert job
