"""The trigger against an HTTP server that speaks list and watch: every end of a job, every way to lose sight of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_fakes import ADMITTED, CONN_ID, NAMESPACE, WAITING, ApiServer, make_attempt, make_job, make_workload
from waits import LIMIT_S, eventually

from airflow_provider import compat, informer, triggers
from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try
from airflow_provider.triggers import SingularityJobTrigger
from kueue_integration.kube.resources import JOB, WORKLOAD
from singularity_proxy.protocol.messages import CheckpointRef


def make_trigger(
    name: str = "train", uid: str = "u1", deadline: float | None = None, alert: int | None = None
) -> SingularityJobTrigger:
    trigger = SingularityJobTrigger(CONN_ID, NAMESPACE, name, uid, deadline, alert)
    trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, task=None)
    return trigger


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "BACKOFF_FIRST_S", 0.02)
    monkeypatch.setattr(informer, "BACKOFF_MAX_S", 0.1)
    monkeypatch.setattr(triggers, "SETTLE_S", 1.0)


async def event_of(trigger: SingularityJobTrigger) -> dict[str, Any]:
    events = [event async for event in trigger.run()]
    assert len(events) == 1
    payload: dict[str, Any] = events[0].payload
    return payload


def run(trigger: SingularityJobTrigger) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(asyncio.wait_for(event_of(trigger), LIMIT_S))


async def test_success_tells_the_whole_story_and_brings_the_lineage(api: ApiServer, written: list[str]) -> None:
    job = make_job(suspend=True)
    api.put(JOB, job)
    api.put(WORKLOAD, make_workload(job, *WAITING))
    waiting = run(make_trigger())
    await eventually(lambda: any("waits for quota" in line for line in written))

    first = make_attempt(1, first_step=0, first_step_at=1004.0)
    api.put(JOB, make_job(attempts=[first], step=20))
    api.put(WORKLOAD, make_workload(job, *ADMITTED))
    await eventually(lambda: any("first step is 0" in line for line in written))

    ended = make_attempt(
        1, first_step=0, first_step_at=1004.0, last_step=40, ended_by="Preempted", preempted_by="big",
        evicted_at=1010.0, barrier_at=1010.5, committed_at=1012.0, released_at=1012.4, checkpoint="c1",
    )  # fmt: skip
    second = make_attempt(2, flavor="spot", pods=2, admitted_at=1020.0, queued_at=1012.4, restored_from="c1")
    api.put(JOB, make_job(attempts=[ended, second]))
    await eventually(lambda: any("spot" in line for line in written))

    second = make_attempt(
        2, flavor="spot", pods=2, admitted_at=1020.0, restored_from="c1", first_step=41, first_step_at=1025.0,
        last_step=99, ended_by="Finished", finished_at=1050.0,
    )  # fmt: skip
    api.put(JOB, make_job(attempts=[ended, second], condition="Complete"))
    event = await waiting
    assert event["status"] == "success"
    assert event["job"] == {"namespace": NAMESPACE, "name": "train", "uid": "u1"}
    assert [a["flavor"] for a in event["lineage"]["attempts"]] == ["ondemand", "spot"]
    assert event["lineage"]["steps_lost"] == 0
    assert [line for line in written if line.startswith("Attempt")] == [
        "Attempt 1: admitted on flavor ondemand with 4 pods (4 ranks) after 10.0 s in the queue; "
        "starts from the beginning",
        "Attempt 1: first step is 0, completed 4.0 s after admission",
        "Attempt 1: preempted by big; keeps running until its checkpoint is safe",
        "Attempt 1: all 4 ranks stopped after step 40, 0.5 s later",
        "Attempt 1: checkpoint c1 is committed: steps 0 to 40 are safe, 1.5 s later",
        "Attempt 1: its quota is free for others, 0.4 s later",
        "Attempt 2: admitted on flavor spot with 2 pods (4 ranks) after 7.6 s in the queue; "
        "goes on at step 41 from checkpoint c1",
        "Attempt 2: first step is 41, completed 5.0 s after admission, no step lost",
        "Attempt 2: finished, last step 99",
    ]


@pytest.mark.parametrize(("alert", "warned"), [(None, False), (2, False), (1, True), (0, True)])
async def test_many_preemptions_are_a_warning_told_once_and_no_failure(
    api: ApiServer, written: list[str], alert: int | None, warned: bool
) -> None:
    past = [make_attempt(n, ended_by="Preempted", released_at=1000.0 + n, checkpoint=f"c{n}") for n in (1, 2)]
    job = make_job(attempts=[past[0]])
    api.put(JOB, job)
    api.put(WORKLOAD, make_workload(job, *ADMITTED))
    waiting = run(make_trigger(alert=alert))
    await eventually(lambda: any(line.startswith("Attempt 1") for line in written))
    api.put(JOB, make_job(attempts=[*past, make_attempt(3)]))
    await eventually(lambda: any(line.startswith("Attempt 3") for line in written))
    last = make_attempt(3, ended_by="Finished", finished_at=1050.0)
    api.put(JOB, make_job(attempts=[*past, last], condition="Complete"))
    event = await waiting
    assert event["status"] == "success"
    assert (event["lineage"]["preemptions"], event["lineage"]["preemption_alert"]) == (2, warned)
    assert len([line for line in written if line.startswith("Preempted ")]) == warned


async def test_failure_brings_kubernetes_words(api: ApiServer) -> None:
    api.put(JOB, make_job(condition="Failed", message="container train failed with exit code 3"))
    event = await event_of(make_trigger())
    assert event["status"] == "failed"
    assert "exit code 3" in event["message"]


async def test_the_note_of_a_lost_checkpoint_is_told(api: ApiServer, written: list[str]) -> None:
    note = "no checkpoint within 10 s: no step boundary was reached; restarts from the beginning"
    job = make_job(attempts=[make_attempt(1, ended_by="Preempted", preempted_by="big", evicted_at=1010.0, note=note)])
    api.put(JOB, job)
    waiting = run(make_trigger())
    await eventually(lambda: f"Attempt 1: {note}" in written)
    waiting.cancel()


async def test_a_finished_job_is_given_time_for_its_last_record(api: ApiServer) -> None:
    running = make_attempt(1, first_step=0, first_step_at=1004.0)
    api.put(JOB, make_job(attempts=[running], condition="Complete"))
    waiting = run(make_trigger())
    await eventually(lambda: api.count("watch", "jobs"))
    done = make_attempt(1, first_step=0, first_step_at=1004.0, last_step=9, ended_by="Finished", finished_at=1009.0)
    api.put(JOB, make_job(attempts=[done], condition="Complete"))
    assert (await waiting)["lineage"]["attempts"][0]["last_step"] == 9


async def test_a_finished_job_without_a_last_record_ends_all_the_same(api: ApiServer) -> None:
    api.put(JOB, make_job(attempts=[make_attempt(1)], condition="Complete"))
    started = time.monotonic()
    assert (await event_of(make_trigger()))["status"] == "success"
    assert time.monotonic() - started >= triggers.SETTLE_S


@pytest.mark.parametrize("way", ["deleted", "forgotten", "never there", "another uid", "marked for deletion"])
async def test_a_deleted_job_ends_the_wait(api: ApiServer, way: str) -> None:
    if way != "never there":
        api.put(JOB, make_job())
    waiting = run(make_trigger(uid="u0" if way == "another uid" else "u1"))
    if way in ("deleted", "forgotten", "marked for deletion"):
        await eventually(lambda: api.count("watch", "jobs"))
    if way == "deleted":
        api.delete(JOB, "train")
    elif way == "forgotten":  # while the watch was cut; only the next list can tell
        api.forget(JOB, "train")
        api.compact()
        api.drop()
    elif way == "marked for deletion":
        job = make_job()
        job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        api.put(JOB, job)
    event = await waiting
    assert event["status"] == "deleted"


async def test_the_deadline_is_the_triggers_own(api: ApiServer) -> None:
    api.put(JOB, make_job(suspend=True))
    event = await event_of(make_trigger(deadline=time.time() + 0.3))
    assert event["status"] == "timeout"
    assert event["lineage"]["name"] == "train"


async def test_the_deadline_passes_without_an_api_server_too(api: ApiServer) -> None:
    api.down = True
    event = await event_of(make_trigger(deadline=time.time() + 0.3))
    assert event["status"] == "timeout"
    assert event["lineage"] is None


@pytest.mark.parametrize(("condition", "status"), [("Complete", "success"), ("Failed", "failed")])
async def test_a_job_that_ended_before_a_late_look_is_not_out_of_time(
    api: ApiServer, condition: str, status: str
) -> None:
    """The triggerer was away from before the end of the job until after the deadline."""
    api.put(JOB, make_job(condition=condition))
    event = await event_of(make_trigger(deadline=time.time() - 60))
    assert event["status"] == status


async def test_a_job_that_is_gone_is_not_out_of_time(api: ApiServer) -> None:
    assert (await event_of(make_trigger(deadline=time.time() - 60)))["status"] == "deleted"


@pytest.mark.parametrize("fault", ["410", "cut", "down"])
async def test_no_fault_of_the_api_ends_the_wait_or_hides_the_end(api: ApiServer, fault: str) -> None:
    api.put(JOB, make_job())
    waiting = run(make_trigger())
    await eventually(lambda: api.count("watch", "jobs"))
    lists = api.count("list", "jobs")
    if fault == "down":
        api.down = True
    if fault == "410":
        api.compact()
    else:
        api.drop()
    await eventually(lambda: api.count("list", "jobs") > lists)
    assert not waiting.done()
    api.down = False
    api.put(JOB, make_job(condition="Complete"))
    assert (await waiting)["status"] == "success"


async def test_a_watch_whose_time_is_over_goes_on_without_a_list(api: ApiServer) -> None:
    api.put(JOB, make_job())
    waiting = run(make_trigger())
    await eventually(lambda: api.count("watch", "jobs") == 1)
    api.end_watches()
    api.put(JOB, make_job(condition="Complete"))  # while nobody is connected
    assert (await waiting)["status"] == "success"
    assert (api.count("list", "jobs"), api.count("watch", "jobs")) == (1, 2)


async def test_an_unreachable_api_is_told_once_in_the_task_log(
    api: ApiServer, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "TROUBLE_AFTER_S", 0.1)
    api.down = True
    waiting = run(make_trigger())
    await eventually(lambda: any("does not answer" in line for line in written))
    api.down = False
    api.put(JOB, make_job(condition="Complete"))
    await waiting
    assert sum("does not answer" in line for line in written) == 1
    assert "The Kubernetes API answers again" in written


async def test_one_kind_that_is_refused_is_told_in_the_task_log(
    api: ApiServer, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs can be listed each time, Workloads never: the wait must not be silent."""
    monkeypatch.setattr(triggers, "TROUBLE_AFTER_S", 0.3)
    api.refused.add("workloads")
    api.put(JOB, make_job())
    waiting = run(make_trigger())
    await eventually(lambda: any("workloads" in line for line in written))
    assert not waiting.done()
    api.refused.clear()
    api.put(JOB, make_job(condition="Complete"))
    assert (await waiting)["status"] == "success"


async def test_one_watch_serves_all_tasks_of_a_namespace(api: ApiServer) -> None:
    names = [f"train-{number}" for number in range(50)]
    for number, name in enumerate(names):
        api.put(JOB, make_job(name, uid=f"u{number}"))
    waiting = [run(make_trigger(name, uid=f"u{number}")) for number, name in enumerate(names)]
    await eventually(lambda: api.count("watch", "jobs"))
    for number, name in enumerate(names):
        api.put(JOB, make_job(name, uid=f"u{number}", condition="Complete"))
    events = await asyncio.gather(*waiting)
    assert {event["job"]["name"] for event in events} == set(names)
    assert len(api.requests) == 4, api.requests  # list and watch of Jobs, list and watch of Workloads
    assert not informer._informers


async def test_an_unknown_connection_is_waited_for(written: list[str]) -> None:
    """Somebody may be about to repair it; the task must not fail for it."""
    trigger = SingularityJobTrigger("no_such_connection", NAMESPACE, "train", "u1", time.time() + 0.5)
    assert (await event_of(trigger))["status"] == "timeout"


async def test_serialised_and_made_anew() -> None:
    trigger = make_trigger(deadline=12.5)
    path, kwargs = trigger.serialize()
    assert path == "airflow_provider.triggers.SingularityJobTrigger"
    assert SingularityJobTrigger(**kwargs).serialize() == (path, kwargs)


# --- the lineage XCom -------------------------------------------------------------------------------------------------
async def test_the_xcom_follows_the_attempts_but_not_every_step(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[str, Any]] = []

    async def record(ti: Any, key: str, value: dict[str, Any]) -> None:
        assert (ti.task_id, key) == ("t", "lineage")
        written.append(value)

    monkeypatch.setattr(compat, "set_xcom", record)
    job = make_job(attempts=[make_attempt(1, first_step=0, first_step_at=1004.0)], step=1)
    api.put(WORKLOAD, make_workload(job, *ADMITTED))
    api.put(JOB, job)
    trigger = make_trigger()
    waiting = run(trigger)
    await eventually(lambda: written)
    for step in (2, 3, 4):
        api.put(JOB, make_job(attempts=[make_attempt(1, first_step=0, first_step_at=1004.0)], step=step))
    await eventually(lambda: trigger._shown is not None and trigger._shown.step == 4)
    assert len(written) == 1
    done = make_attempt(1, first_step=0, first_step_at=1004.0, last_step=9, ended_by="Finished", finished_at=1009.0)
    api.put(JOB, make_job(attempts=[done], condition="Complete"))
    await waiting
    assert [doc["phase"] for doc in written] == ["Running", "Succeeded"]


async def test_an_xcom_that_cannot_be_written_does_no_harm(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(ti: Any, key: str, value: object) -> None:
        raise AttributeError("'InProcessSupervisor' has no attribute 'asend'")

    monkeypatch.setattr(compat, "set_xcom", fail)
    api.put(JOB, make_job(condition="Complete"))
    assert (await event_of(make_trigger()))["status"] == "success"


# --- on_kill ----------------------------------------------------------------------------------------------------------
def state_is(answer: str | Exception | None) -> Callable[[Any], Awaitable[str | None]]:
    async def ask(ti: Any) -> str | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


@pytest.mark.parametrize(
    ("state", "deleted"),
    [
        ("failed", True),
        ("success", True),
        ("skipped", True),
        (compat.GONE, True),  # its Dag was deleted
        ("deferred", False),  # handed to another triggerer
        ("running", False),  # resumed, or the next try after a clear: it decides itself
        ("queued", True),  # cleared, and waits for a worker
        (None, True),
        (LookupError("no such task instance"), False),
    ],
)
async def test_on_kill_deletes_only_for_a_user(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, state: str | Exception | None, deleted: bool
) -> None:
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is(state))
    api.put(JOB, make_job())
    await make_trigger().on_kill()
    assert bool(api.deletions) is deleted
    assert api.deletions in ([], [("train", "u1")])


@pytest.mark.parametrize(
    ("state", "told", "deleted"),
    [("failed", False, True), (None, False, True), ("deferred", False, False), ("failed", True, False)],
)
async def test_where_airflow_does_not_tell_of_kills_the_end_of_the_trigger_asks(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, state: str | None, told: bool, deleted: bool
) -> None:
    """Before 3.3 `cleanup` is all that is called, and it is called for every end: of a triggerer that stops, too."""
    monkeypatch.setattr(compat, "TELLS_OF_KILLS", told)
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is(state))
    api.put(JOB, make_job())
    await make_trigger().cleanup()
    assert api.deletions == ([("train", "u1")] if deleted else [])


async def test_the_end_of_a_trigger_that_has_fired_asks_nothing(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "TELLS_OF_KILLS", False)
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is("failed"))
    api.put(JOB, make_job())
    trigger = make_trigger()
    trigger._fired = True
    await trigger.cleanup()
    assert not api.deletions


@pytest.mark.parametrize("job", [make_job(uid="u2"), make_job(condition="Complete"), None])
async def test_on_kill_never_touches_another_or_an_ended_job(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is("failed"))
    if job is not None:
        api.put(JOB, job)
    await make_trigger().on_kill()
    assert not api.deletions


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("state", ["failed", None])
async def test_on_kill_ends_a_job_whose_checkpoints_may_be_begun_with(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, written: list[str], state: str | None, keeps: bool
) -> None:
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is(state))
    job = make_job(checkpoint=CheckpointRef("train-a1-g1", 1_000_001, 1, 5, 1, "file:///s", 1, 1, 1.0, "0" * 64))
    claim = Claim(TaskKey("dag", "run", "train"), 0, Try(1, 0, 0), job["metadata"]["namespace"], "train", keeps=keeps)
    job["metadata"]["annotations"][ANN_TASK] = json.dumps(claim.to_dict())
    api.put(JOB, job)
    await make_trigger().on_kill()
    assert bool(api.deletions) is not keeps
    assert ("spec" in job and job["spec"].get("activeDeadlineSeconds") == 1) is keeps
    assert any("ended: its checkpoints stay" in line for line in written) is keeps


async def test_on_kill_rides_out_a_short_outage(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is("failed"))
    api.put(JOB, make_job())
    api.down = True
    killing = asyncio.create_task(make_trigger().on_kill())
    await eventually(lambda: api.count("get", "jobs"))
    api.down = False
    await asyncio.wait_for(killing, LIMIT_S)
    assert api.deletions == [("train", "u1")]


async def test_on_kill_is_not_ended_by_airflow_that_cancels_again(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runner cancels a trigger that has not ended yet every second, on_kill with it."""
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is("failed"))
    api.put(JOB, make_job())
    api.down = True
    killing = asyncio.create_task(asyncio.wait_for(make_trigger().on_kill(), LIMIT_S))
    await eventually(lambda: api.count("get", "jobs"))
    for _ in range(3):
        killing.cancel("__airflow_user_action__")
        await asyncio.sleep(0.01)
    api.down = False
    await eventually(lambda: bool(api.deletions))
    assert api.deletions == [("train", "u1")]
    await asyncio.gather(killing, return_exceptions=True)
    await eventually(lambda: not triggers._killing)


async def test_on_kill_gives_up_in_time_and_says_what_is_left(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, written: list[str]
) -> None:
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is("failed"))
    monkeypatch.setattr(triggers, "KILL_TIMEOUT_S", 0.3)
    api.put(JOB, make_job())
    api.down = True
    await make_trigger().on_kill()
    assert any("singularityctl delete train" in line for line in written)


async def test_on_kill_after_the_event_does_nothing(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "task_state_from_trigger", state_is("failed"))
    api.put(JOB, make_job(condition="Complete"))
    trigger = make_trigger()
    await event_of(trigger)
    api.put(JOB, make_job())
    await trigger.on_kill()
    assert not api.deletions


async def test_a_cancelled_trigger_leaves_no_watch_behind(api: ApiServer) -> None:
    api.put(JOB, make_job())
    waiting = run(make_trigger())
    await eventually(lambda: api.count("watch", "jobs"))
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert not informer._informers
    assert not api.deletions
