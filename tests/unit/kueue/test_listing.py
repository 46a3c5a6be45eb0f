"""A list of jobs asks for pods of those jobs only of which pods say more."""

from __future__ import annotations

from typing import Any

import pytest
from kueue_samples import attempt, job, workload

from kueue_integration.contract import job_names
from kueue_integration.jobs import lines, listing, status
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import KUEUE_JOB_UID_LABEL, Object

ADMITTED = (("QuotaReserved", "True"), ("Admitted", "True"))
RUNS: dict[str, Any] = {"running_at": 110.0, "first_step": 0, "first_step_at": 111.0}


def named(obj: Object, name: str) -> Object:
    """`obj` as that of a job of this name."""
    meta = obj["metadata"]
    labels = {**meta["labels"], **({job_names.LABEL_JOB: name} if obj["kind"] != "Workload" else {})}
    labels |= {KUEUE_JOB_UID_LABEL: f"u-{name}"} if obj["kind"] == "Workload" else {}
    return {**obj, "metadata": {**meta, "name": name, "uid": f"u-{name}", "labels": labels}}


def of_job(name: str, **record: Any) -> tuple[Object, Object, Object]:
    """Job, Workload, and a pod whose image is not there."""
    waiting = {"name": "train", "state": {"waiting": {"reason": "ImagePullBackOff", "message": f"none for {name}"}}}
    labels = {job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: name}
    meta = {"name": f"{name}-0", "namespace": "default", "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"containerStatuses": [waiting]}}
    return named(job(history=[attempt(**record)]), name), named(workload(*ADMITTED), name), pod


def lists_of_pods(kube: FakeKube) -> int:
    return sum(1 for verb, kind, _ in kube.requests if (verb, kind) == ("list", "Pod"))


@pytest.mark.parametrize("how", [lines.of_job, status.summarise])
def test_pods_say_why_a_job_does_not_start(how: Any) -> None:
    kube = FakeKube(*of_job("runs", **RUNS), *of_job("starts"))
    found = {line.name: line for line in listing.all_jobs(kube, None, None, how)}
    assert (found["runs"].phase, found["starts"].phase) == ("Running", "Starting")
    assert found["starts"].reason == "ImagePullBackOff" and "none for starts" in found["starts"].message
    assert lists_of_pods(kube) == 1


def test_no_pod_is_read_while_all_jobs_run() -> None:
    kube = FakeKube(*of_job("runs", **RUNS), *of_job("too", **RUNS))
    assert [line.phase for line in listing.all_jobs(kube, "default", None, lines.of_job)] == ["Running"] * 2
    assert lists_of_pods(kube) == 0


def test_names_of_many_jobs_do_not_make_a_long_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "NAMED", 1)
    kube = FakeKube(*of_job("one"), *of_job("two"))
    found = listing.all_jobs(kube, "default", None, lines.of_job)
    assert [line.reason for line in found] == ["ImagePullBackOff"] * 2 and lists_of_pods(kube) == 1
