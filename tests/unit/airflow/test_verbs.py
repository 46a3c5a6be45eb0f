"""The verbs behind an Airflow connection."""

from __future__ import annotations

import pytest

from airflow_provider import cluster
from airflow_provider.verbs import JobVerbs
from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import RequestStatus
from kueue_integration.errors import JobNotFoundError, RequestRefusedError
from kueue_integration.kube.fake import FakeKube
from kueue_integration.requests import user_requests

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "digits",
        "namespace": "team",
        "labels": {job_names.LABEL_MANAGED: "true"},
        "annotations": {
            job_names.ANN_WORLD_SIZE: "4",
            "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
        },
    },
    "spec": {"suspend": False, "parallelism": 4, "completions": 4},
}


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    fake = FakeKube(JOB)
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (fake, {"prod": "team"}[conn_id]))
    return fake


def test_a_dag_or_a_button_asks_and_waits(kube: FakeKube) -> None:
    verbs = JobVerbs("prod")
    asked = verbs.resize("digits", workers=2)
    job = kube.get_job("team", "digits")
    request = user_requests.asked(job, user_requests.CHANGE)
    assert request is not None
    assert (request.id, request.workers, request.by) == (asked.id, 2, "airflow")
    assert verbs.look(asked).state == "asked"
    status = RequestStatus(asked.id, "resize", "done", "attempt 2 runs with 2 workers on spot", 1.0)
    kube.patch_job("team", "digits", {"metadata": {"annotations": user_requests.stored(status)}})
    assert verbs.wait(asked).ok
    assert (verbs.pause("digits").op, verbs.resume("digits").op) == ("pause", "resume")
    for asks in (verbs.pause, lambda job, lose_work: verbs.resize(job, 2, lose_work=lose_work)):
        asks("digits", lose_work=True)
        request = user_requests.asked(kube.get_job("team", "digits"), user_requests.CHANGE)
        assert request is not None and request.lose_work is True


def test_what_cannot_be_is_raised_as_the_librarys_own_error(kube: FakeKube) -> None:
    verbs = JobVerbs("prod", by="ann")
    with pytest.raises(RequestRefusedError, match="more than its world size"):
        verbs.resize("digits", workers=8)
    with pytest.raises(RequestRefusedError, match="does not run now"):
        verbs.checkpoint("digits")
    with pytest.raises(RequestRefusedError, match="say where to"):
        verbs.migrate("digits")
    with pytest.raises(JobNotFoundError):
        JobVerbs("prod", namespace="other").pause("digits")
