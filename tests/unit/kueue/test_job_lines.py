"""A line of the list says what the whole status says, whatever stands on the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import running_objects
from kueue_integration.contract import job_names
from kueue_integration.jobs import lines, status
from kueue_integration.kube.resources import Object
from singularity_proxy.protocol import names

ATTEMPTS = running_objects.ATTEMPTS


def running(**notes: str | None) -> tuple[Object, Object, list[Object]]:
    """Job, Workload, pods of a job in its twentieth attempt; `notes` are added to its annotations, None: taken away."""
    job = running_objects.job(1)
    job["metadata"] |= {"uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job["status"] = running_objects.job_status()
    found = job["metadata"]["annotations"]
    job["metadata"]["annotations"] = {k: v for k, v in {**found, **notes}.items() if v is not None}
    workload = running_objects.workload(1, "u-1")
    pod = running_objects.pod(1, job)
    pod["metadata"] |= {"uid": "p-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    pod["status"] = running_objects.pod_status()
    return job, workload, [pod]


def evicted(job: Object, workload: Object) -> None:
    said = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization in the ClusterQueue"
    workload["status"]["conditions"] += [
        {"type": "Evicted", "status": "True", "reason": "Preempted", "message": said, "lastTransitionTime": "x"}
    ]


def ended(job: Object, workload: Object) -> None:
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}


def waits(job: Object, workload: Object) -> None:
    workload["status"] = {}


def same(job: Object, workload: Object | None, pods: list[Object]) -> lines.JobLine:
    line, whole = lines.of_job(job, workload, pods), status.summarise(job, workload, pods)
    fields = [field.name for field in dataclasses.fields(line)]
    assert {name: getattr(line, name) for name in fields} == {name: getattr(whole, name) for name in fields}
    assert line.final == whole.final
    return line


def test_a_running_job() -> None:
    line = same(*running())
    assert (line.phase, line.attempt, line.flavor) == ("Running", ATTEMPTS, "a3-highgpu") and line.step > 0


@pytest.mark.parametrize("change", [evicted, ended, waits], ids=lambda change: str(change.__name__))
def test_a_job_in_another_phase(change: Callable[[Object, Object], None]) -> None:
    job, workload, pods = running()
    change(job, workload)
    same(job, workload, pods)
    same(job, None, pods)


@pytest.mark.parametrize(
    "name",
    [job_names.ANN_HISTORY, job_names.ANN_PROGRESS, job_names.ANN_ATTEMPT, job_names.ANN_REWINDS, names.ANN_CHECKPOINT],
)
@pytest.mark.parametrize("text", [None, "", "[]", "{}", "[1]", "x", "[" * 100_000], ids=lambda text: str(text)[:6])
def test_whatever_stands_there(name: str, text: str | None) -> None:
    same(*running(**{name: text}))


def test_a_record_that_cannot_be_read_hides_no_later_one() -> None:
    """The one difference: the whole status shows no history then."""
    job, workload, pods = running()
    notes: dict[str, Any] = job["metadata"]["annotations"]
    notes[job_names.ANN_HISTORY] = "[1," + notes[job_names.ANN_HISTORY].removeprefix("[")
    assert lines.of_job(job, workload, pods).flavor == "a3-highgpu"
    assert status.summarise(job, workload, pods).attempts == []
