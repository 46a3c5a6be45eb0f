"""What `status` says of a job in each of its states."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import pytest
from adoption_cases import trainjob
from kueue_samples import PLATFORM, attempt, job, saved, spec, workload

from kueue_integration.adoption import trainjob as rules_of_trainjob
from kueue_integration.adoption.trainjob import adopted_trainjob
from kueue_integration.cli import tables
from kueue_integration.contract import attempt_records, job_names, kinds
from kueue_integration.contract.record_types import JobRequest, RequestStatus
from kueue_integration.errors import Forbidden, JobNotFoundError, Unreachable
from kueue_integration.jobs.status import describe, follow, summarise, timings, to_json
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.platform_config import NODE, USER_NAMESPACE
from singularity_proxy.protocol.messages import GpuFault, Gpus
from singularity_proxy.protocol.messages import to_json as message_json

RESERVED = ("QuotaReserved", "True", "QuotaReserved", "")
ADMITTED = ("Admitted", "True", "Admitted", "")

FIRST = attempt(
    1, queued_at=90.0, first_step=0, first_step_at=103.5, last_step=60, ended_by="Preempted", preempted_by="job-big-1",
    evicted_at=140.0, barrier_at=140.25, committed_at=142.0, released_at=142.5, checkpoint="digits-a1-g1",
)  # fmt: skip
SECOND = attempt(
    2, flavor="spot", pods=2, restored_from="digits-a1-g1", first_step=61, first_step_at=203.0, last_step=99
)


def running() -> dict[str, Any]:
    progress = {job_names.ANN_PROGRESS: json.dumps({"attempt": 2, "step": 100, "phase": "running", "at": 1.0})}
    return job(history=[FIRST, SECOND], checkpoint=saved(), annotations=progress, ready=2)


def test_a_job_in_its_second_attempt() -> None:
    found = summarise(running(), workload(RESERVED, ADMITTED), [])
    assert (found.phase, found.attempt, found.pods, found.flavor, found.step) == ("Running", 2, 2, "spot", 100)
    assert (found.workers, found.min_workers, found.world_size, found.hold) == (4, 2, 4, "armed")
    assert found.attempts == [FIRST, SECOND]
    assert found.checkpoints == [
        {
            "id": "digits-a1-g1", "attempt": 1, "step": 61, "committed_at": 142.0, "bytes": 4_000_000,
            "bytes_stored": 1_500_000, "url": "file:///shared/checkpoints",
        }
    ]  # fmt: skip
    assert found.timings_s == {
        "queued_to_admitted": [10.0],
        "admitted_to_running": [],
        "admitted_to_first_step": [3.5, 3.0],
        "evicted_to_barrier": [0.25],
        "barrier_to_committed": [1.75],
        "committed_to_quota_released": [0.5],
    }
    assert found.steps_lost == 0 and not found.final


@pytest.mark.parametrize(
    ("engine", "level", "said"),
    [
        ("process", NODE, "capabilities on the node"),
        ("process", USER_NAMESPACE, "capabilities in a user namespace of the pod only"),
        ("both", USER_NAMESPACE, "capabilities in a user namespace of the pod only"),
        ("state", USER_NAMESPACE, ""),
    ],
)
def test_where_the_launchers_capabilities_count(engine: str, level: str, said: str) -> None:
    platform = dataclasses.replace(PLATFORM, privileges=level)
    (rendered,) = (o for o in render(spec(engine=engine), platform) if o["kind"] == "Job")
    status = summarise({**rendered, "metadata": {**rendered["metadata"], "uid": "u-1"}}, None, [])
    assert status.privileges == (level if said else "")
    assert json.loads(to_json(status))["privileges"] == status.privileges
    assert [line for line in tables.detail(status).splitlines() if "Privileges:" in line] == (
        [f"Privileges:  {said}"] if said else []
    )


@pytest.mark.parametrize("level", [NODE, USER_NAMESPACE])
def test_where_those_of_a_trainjob_count_is_known_by_its_workload(level: str) -> None:
    """Its pods are those of its runtime, of which it says nothing itself."""
    platform = dataclasses.replace(PLATFORM, privileges=level)
    job = adopted_trainjob(trainjob(), platform)
    job = kinds.as_job({**job, "metadata": {**job["metadata"], "uid": "u-1"}})
    assert summarise(job, None, []).privileges == ""
    (made,) = rules_of_trainjob.runtime(platform)["spec"]["template"]["spec"]["replicatedJobs"]
    found = workload()
    found["spec"]["podSets"] = [{"name": "node", "template": made["template"]["spec"]["template"]}]
    status = summarise(job, found, [])
    assert (status.privileges, bool(status.privileges_why)) == (level, True)


def test_how_much_of_a_checkpoint_is_saved_is_told_while_it_is_being_saved() -> None:
    note = {"attempt": 2, "step": 100, "phase": "uploading", "at": 1.0, "bytes_done": 1 << 20, "bytes_total": 4 << 20}
    now = job(history=[FIRST, SECOND], annotations={job_names.ANN_PROGRESS: json.dumps(note)}, active=2)
    evicted = workload(RESERVED, ("Evicted", "True", "Preempted", ""))
    found = summarise(now, evicted, [])
    assert (found.phase, found.saving) == ("Checkpointing", {"bytes_done": 1 << 20, "bytes_total": 4 << 20})
    assert "1 of 4 MiB are saved" in found.message and "1 of 4 MiB are saved" in tables.detail(found)
    over = job(suspend=True, history=[FIRST, SECOND], annotations={job_names.ANN_PROGRESS: json.dumps(note)})
    assert summarise(over, workload(("QuotaReserved", "False", "Pending", "")), []).saving == {}


def test_between_attempts_there_are_no_pods() -> None:
    evicted = workload(("Evicted", "True", "Preempted", ""), ("QuotaReserved", "False", "Pending", ""))
    found = summarise(job(suspend=True, history=[FIRST], checkpoint=saved()), evicted, [])
    assert (found.phase, found.pods, found.flavor, found.step) == ("Preempted", 0, "", 61)


def test_json_has_what_outside_tests_read() -> None:
    shown = json.loads(to_json(summarise(running(), workload(RESERVED, ADMITTED), [])))
    first = shown["attempts"][0]
    wanted = {
        "attempt": 1, "flavor": "ondemand", "pods": 4, "ranks": 4, "first_step": 0, "last_step": 60,
        "ended_by": "Preempted", "preempted_by": "job-big-1",
    }  # fmt: skip
    assert wanted.items() <= first.items()
    assert {"phase", "checkpoints", "timings_s", "uid", "message"} <= set(shown)


@pytest.mark.parametrize(
    ("last", "first", "lost"), [(60, 61, 0), (60, 51, 10), (60, 0, 61), (None, 0, 0), (60, None, 0)]
)
def test_steps_that_were_run_twice(last: int | None, first: int | None, lost: int) -> None:
    attempts = [attempt(1, first_step=0, last_step=last), attempt(2, first_step=first)]
    assert attempt_records.all_steps_lost(attempts) == lost


def test_no_timing_without_both_ends() -> None:
    assert timings([attempt(1, evicted_at=5.0)])["evicted_to_barrier"] == []


def test_a_plain_job_of_somebody_is_not_described() -> None:
    kube = FakeKube({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "digits", "namespace": "default"}})
    for name in ("digits", "nobody"):
        with pytest.raises(JobNotFoundError, match=name):
            describe(kube, "default", name)


def test_describe_finds_the_workload_by_the_jobs_uid() -> None:
    kube = FakeKube(running(), workload(RESERVED, ADMITTED))
    found = describe(kube, "default", "digits")
    assert (found.phase, found.workload) == ("Running", "job-digits-1a2b3")


def test_follow_shows_every_change_until_the_end() -> None:
    kube = FakeKube(running(), workload(RESERVED, ADMITTED))
    seen = []
    for status in follow(kube, "default", "digits", timeout_s=30):
        seen.append(status.phase)
        if status.phase == "Running":
            kube.set_status(JOB, "default", "digits", {"conditions": [{"type": "Complete", "status": "True"}]})
    assert seen == ["Running", "Succeeded"]


def test_follow_is_woken_by_a_change() -> None:
    kube = FakeKube(running(), workload(RESERVED, ADMITTED))
    statuses = follow(kube, "default", "digits", timeout_s=30)
    assert next(statuses).phase == "Running"
    done = {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit 1"}]}
    timer = threading.Timer(0.2, kube.set_status, (JOB, "default", "digits", done))
    timer.start()
    found = next(statuses)
    timer.join(timeout=120)
    assert (found.phase, found.reason, found.message) == ("Failed", "PodFailurePolicy", "exit 1")


def test_follow_ends_when_the_job_is_deleted() -> None:
    kube = FakeKube(running(), workload(RESERVED, ADMITTED))
    statuses = follow(kube, "default", "digits", timeout_s=30)
    next(statuses)
    kube.delete(JOB, "default", "digits")
    assert [s.phase for s in statuses] == ["Deleted"]


def test_follow_rides_out_a_lost_api_server() -> None:
    kube = FakeKube(running(), workload(RESERVED, ADMITTED))
    statuses = follow(kube, "default", "digits", timeout_s=30)
    next(statuses)
    kube.fail_next("get", JOB, Unreachable("restarting"))
    kube.set_status(JOB, "default", "digits", {"conditions": [{"type": "Complete", "status": "True"}]})
    assert next(statuses).phase == "Succeeded"


def test_follow_does_not_ride_out_a_lost_permission() -> None:
    kube = FakeKube(running(), workload(RESERVED, ADMITTED))
    statuses = follow(kube, "default", "digits", timeout_s=30)
    next(statuses)
    kube.fail_next("get", JOB, Forbidden("no", 403))
    kube.patch_job("default", "digits", {"metadata": {"annotations": {"x": "y"}}})
    with pytest.raises(Forbidden):
        next(statuses)


def test_follow_gives_up_at_its_timeout() -> None:
    kube = FakeKube(running(), workload(RESERVED, ADMITTED))
    with pytest.raises(TimeoutError, match="still Running after 0 s"):
        list(follow(kube, "default", "digits", timeout_s=0.0))


def test_checkpoints_on_the_side_and_requests_are_shown() -> None:
    aside = [saved(1, step) for step in (20, 40)]
    aside = [dataclasses.replace(ref, id=f"digits-a1-g{n}") for n, ref in enumerate(aside, 1)]
    request = JobRequest("r-1", "checkpoint", 1.0)
    answer = RequestStatus("r-1", "checkpoint", "done", "checkpoint digits-a1-g2 at step 40", 2.0)
    stale = RequestStatus("r-0", "pause", "running", "of a request that was replaced", 2.0)
    its_job = job(
        history=[attempt(1)],
        checkpoint=aside[-1],
        annotations={
            job_names.ANN_CHECKPOINTS: message_json(aside),
            job_names.ANN_CHECKPOINT_REQUEST: message_json(request),
            job_names.ANN_CHECKPOINT_STATUS: message_json(answer),
            job_names.ANN_REQUEST: message_json(JobRequest("r-2", "pause", 1.0)),
            job_names.ANN_REQUEST_STATUS: message_json(stale),
        },
    )
    status = summarise(its_job, None, [])
    assert [(c["id"], c["step"], "bytes" in c) for c in status.checkpoints] == [
        ("digits-a1-g1", 20, False),
        ("digits-a1-g2", 40, True),
    ]
    assert status.requests == [answer]
    assert "Request:     checkpoint done: checkpoint digits-a1-g2 at step 40" in tables.detail(status)


def test_what_was_wrong_with_gpus_is_shown_and_what_they_did_to_who_asks_for_more() -> None:
    bad = Gpus(8, 93.4, 70 << 30, 80 << 30, 0, 2, [GpuFault("GPU-1", 79, 2), GpuFault("GPU-1", 13, 1)], 3)
    attempts = [attempt(1, gpus=bad), attempt(2, gpus=Gpus(1, None, 1 << 30, 80 << 30)), attempt(3)]
    status = summarise(job(history=attempts), None, [])
    short, wide = " ".join(tables.detail(status).split()), tables.detail(status, True)
    trouble = (
        "attempt 1: Xid 79 (the GPU has fallen off the bus) on GPU-1, 2 times; Xid 13 (an error of the program) on "
        "GPU-1; 3 further Xids; 2 memory errors that could not be corrected"
    )
    assert trouble in short and "busy" not in short and "attempt 2:" not in short
    assert trouble.replace("1: ", "1: 8 GPUs: 93 % busy, 70.0 of 80.0 GiB at most; ", 1) in wide
    assert "attempt 2: 1 GPU: 1.0 of 80.0 GiB at most\n" in wide + "\n" and "attempt 3:" not in wide


def test_the_next_periodic_checkpoint_is_shown() -> None:
    trains = attempt(1, first_step=0, first_step_at=120.0)

    def shown(wish: str, end: Any = None) -> Any:
        its_job = job(*([end] if end else []), history=[trains], annotations={job_names.ANN_CHECKPOINT_EVERY: wish})
        return summarise(its_job, workload(RESERVED, ADMITTED), [])

    timed = shown("600s")
    assert (timed.phase, timed.checkpoint_every, timed.next_checkpoint.at) == ("Running", "600s", 720.0)
    assert f"Periodic:    a checkpoint every 600s; next at {tables.clock(720.0)}" in tables.detail(timed)
    assert shown("600s") == timed  # without a clock: watching does not show it again and again
    assert "every 500 steps; next at step 500" in tables.detail(shown("500 steps"))
    assert "a program without steps needs a time" not in tables.detail(shown("500 steps"))
    free = {"attempt": 1, "step": 0, "at": 120.0, "phase": "running", "free": True}
    notes = {job_names.ANN_CHECKPOINT_EVERY: "500 steps", job_names.ANN_PROGRESS: json.dumps(free)}
    stepless = job(history=[attempt(1, first_step=0, running_at=120.0)], annotations=notes)
    told = tables.detail(summarise(stepless, workload(RESERVED, ADMITTED), []), wide=True)
    assert "no step was counted yet: a program without steps needs a time instead" in told
    assert "from cost and failures, now 300 s; next at" in tables.detail(shown("auto"))
    assert shown("600s", end=("Complete", "True")).next_checkpoint is None
    assert "Periodic:    none: 'daily' is not an interval; use '300s'" in tables.detail(shown("daily"))
    assert "Periodic" not in tables.detail(shown(""))
    assert json.loads(to_json(timed))["next_checkpoint"]["at"] == 720.0


def test_a_barrier_before_the_eviction_is_no_duration():
    record = attempt(1, evicted_at=9.0, barrier_at=5.0, committed_at=7.0)
    assert timings([record])["evicted_to_barrier"] == []
    assert timings([record])["barrier_to_committed"] == [2.0]
