"""Ways of waiting: in the worker, not at all, and not for ever in the queue. What an ended Job keeps of its task."""

from __future__ import annotations

import asyncio
import datetime
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_fakes import ADMITTED, CONN_ID, NAMESPACE, WAITING, ApiServer, make_attempt, make_job, make_workload
from test_train_operator import Airflow, airflow, end, job_of, kube, operator, submit  # noqa: F401 (fixtures)

from airflow_provider import compat, operators, waiting
from airflow_provider.compat import AirflowTaskTimeout, TaskDeferred
from airflow_provider.exceptions import KilledError, TrainingFailedError, TrainingTimeoutError
from airflow_provider.identity import Claim
from airflow_provider.triggers import SingularityJobTrigger
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, WORKLOAD

TI = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1)


@pytest.fixture(autouse=True)
def xcoms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    keys: list[str] = []

    async def put(ti: Any, key: str, value: Any) -> None:
        keys.append(key)

    monkeypatch.setattr(compat, "set_xcom", put)
    return keys


@pytest.fixture(autouse=True)
def _task_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "task_state", lambda ti: "running")


# --- in the worker ----------------------------------------------------------------------------------------------------
async def test_a_worker_waits_as_a_triggerer_does(api: ApiServer, xcoms: list[str]) -> None:
    job = make_job(attempts=[make_attempt()], step=3)
    api.put(JOB, job)
    api.put(WORKLOAD, make_workload(job, *ADMITTED))
    looks: list[int] = []
    trigger = SingularityJobTrigger(CONN_ID, NAMESPACE, "train", "u1")
    wait = asyncio.create_task(asyncio.to_thread(waiting.here, trigger, TI, lambda: looks.append(1)))
    while len(looks) < 2:
        assert not wait.done()
        await asyncio.sleep(0.05)
    api.put(JOB, make_job(condition="Complete", attempts=[make_attempt(finished_at=2000.0)]))
    event = await asyncio.wait_for(wait, 120)
    assert event["status"] == "success" and event["lineage"]["attempts"]
    assert "lineage" in xcoms, "kept current meanwhile"


async def test_a_user_ends_the_wait(api: ApiServer) -> None:
    def look() -> None:
        raise KilledError("ended by a user")

    api.put(JOB, make_job())
    trigger = SingularityJobTrigger(CONN_ID, NAMESPACE, "train", "u1")
    with pytest.raises(KilledError):
        await asyncio.wait_for(asyncio.to_thread(waiting.here, trigger, TI, look), 120)


async def test_airflows_timeout_ends_the_job(api: ApiServer) -> None:
    def look() -> None:
        raise AirflowTaskTimeout("execution_timeout")

    api.put(JOB, make_job())
    trigger = SingularityJobTrigger(CONN_ID, NAMESPACE, "train", "u1")
    event = await asyncio.wait_for(asyncio.to_thread(waiting.here, trigger, TI, look), 120)
    assert event["status"] == "timeout"


@pytest.mark.parametrize("status", ["success", "failed"])
def test_the_operator_does_not_defer(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, status: str  # noqa: F811
) -> None:
    def here(trigger: SingularityJobTrigger, ti: Any, look: Any) -> dict[str, Any]:
        look()
        end(kube, job_of(kube), "Complete" if status == "success" else "Failed")
        job = {"namespace": trigger.namespace, "name": trigger.name, "uid": trigger.uid}
        return {"status": status, "message": "over", "job": job, "lineage": None, "output_shown": True}

    monkeypatch.setattr(operators.waiting, "here", here)
    op = operator(deferrable=False)
    if status == "success":
        assert op.execute(airflow.context()) is None
    else:
        with pytest.raises(TrainingFailedError):
            op.execute(airflow.context())


def test_a_signal_asks_airflow_once(
    kube: FakeKube, airflow: Airflow, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    submit(airflow, op := operator(deferrable=True))
    claim = Claim.of_job(job_of(kube))
    assert claim is not None
    op.on_kill()
    op._look(airflow.context(), claim)
    assert job_of(kube) and not op._kill_requested, "a worker that is drained: the next try goes on with the Job"
    op.on_kill()
    monkeypatch.setattr(compat, "task_state", lambda ti: "failed")
    with pytest.raises(KilledError):
        op._look(airflow.context(), claim)
    assert kube.list(JOB, NAMESPACE) == []


# --- not at all -------------------------------------------------------------------------------------------------------
def test_without_waiting_the_task_ends_with_the_submission(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    found = operator(wait=False).execute(airflow.context())
    job = job_of(kube)
    assert found == {key: job["metadata"][key] for key in ("namespace", "name", "uid")}
    claim = Claim.of_job(job)
    assert claim is not None and claim.detached
    airflow.retry()
    assert operator(wait=False).execute(airflow.context()) == found, "a try more makes no second Job"
    airflow.clear()
    operator(wait=False).execute(airflow.context())
    assert job_of(kube)["metadata"]["uid"] != found["uid"], "a clear replaces it"


# --- the queue --------------------------------------------------------------------------------------------------------
async def test_a_queue_that_takes_too_long_ends_the_try(api: ApiServer) -> None:
    job = make_job(suspend=True)
    api.put(JOB, job)
    api.put(WORKLOAD, make_workload(job, *WAITING))
    trigger = SingularityJobTrigger(CONN_ID, NAMESPACE, "train", "u1", queue_deadline=time.time() + 0.3)
    async for event in trigger.run():
        assert event.payload["status"] == "timeout"
        assert event.payload["message"].startswith("queue_timeout has passed, and the job was never admitted")


async def test_an_admitted_job_may_wait_again(api: ApiServer) -> None:
    job = make_job(suspend=True, attempts=[make_attempt(evicted_at=1500.0, ended_by="Preempted")])
    api.put(JOB, job)
    api.put(WORKLOAD, make_workload(job, *WAITING))
    trigger = SingularityJobTrigger(CONN_ID, NAMESPACE, "train", "u1", queue_deadline=time.time() + 0.1)
    first = asyncio.ensure_future(anext(aiter(trigger.run())))
    await asyncio.sleep(0.5)
    assert not first.done()
    api.put(JOB, make_job(condition="Complete", attempts=[make_attempt(finished_at=2000.0)]))
    assert (await asyncio.wait_for(first, 120)).payload["status"] == "success"


def test_limits_are_the_operators_own(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    deferred = submit(airflow, operator(queue_timeout=datetime.timedelta(hours=1)))
    trigger = deferred.trigger
    assert isinstance(trigger, SingularityJobTrigger) and trigger.deadline is None
    assert trigger.queue_deadline is not None and 3590 < trigger.queue_deadline - time.time() < 3601
    kwargs = trigger.serialize()[1]
    assert SingularityJobTrigger(**kwargs).queue_deadline == trigger.queue_deadline
    job = job_of(kube)
    reference = {key: job["metadata"][key] for key in ("namespace", "name", "uid")}
    event = {"status": "timeout", "message": "queue_timeout has passed", "job": reference, "lineage": None}
    with pytest.raises(TrainingTimeoutError):
        operator().execute_complete(airflow.context(), event)
    assert kube.list(JOB, NAMESPACE) == []


# --- what stays on the Job --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 7 * 86400), ({"ttl": "never"}, None), ({"ttl": datetime.timedelta(hours=1)}, 3600),
        ({"start_from": "earlier run"}, None), ({"ttl_seconds_after_finished": 60}, 60),
        ({"start_from": "earlier run", "ttl": datetime.timedelta(days=30)}, 30 * 86400),
    ],
)  # fmt: skip
def test_how_long_an_ended_job_stays(
    kube: FakeKube, airflow: Airflow, changes: dict[str, Any], seconds: int | None  # noqa: F811
) -> None:
    submit(airflow, operator(**changes))
    assert job_of(kube)["spec"].get("ttlSecondsAfterFinished") == seconds


def test_labels_of_the_task_on_job_and_pods(kube: FakeKube, airflow: Airflow) -> None:  # noqa: F811
    context = airflow.context()
    context["ti"].run_id, context["ti"].map_index = "scheduled__2026-01-01T00:00:00+00:00", 3
    op = operator(labels={"run": "{{ run_id }}", "team": "vision"})
    op.render_template_fields({"run_id": context["ti"].run_id})
    with pytest.raises(TaskDeferred):
        op.execute(context)
    job = job_of(kube)
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert labels["run_id"] == labels["run"] and labels["run"].startswith("scheduled__2026-01-01T000000")
        assert (labels["dag_id"], labels["task_id"], labels["try_number"]) == ("dag", "train", "1")
        assert (labels["map_index"], labels["team"]) == ("3", "vision")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wait": "no"}, "wait = 'no': must be True or False"),
        ({"deferrable": 1}, "deferrable = 1: must be True or False"),
        ({"queue_timeout": 5}, "queue_timeout = 5: must be a datetime.timedelta"),
        ({"ttl": 5}, "ttl = 5: must be a datetime.timedelta"),
        ({"ttl_seconds_after_finished": "x"}, "ttl_seconds_after_finished = 'x': must be a number of seconds"),
    ],
)
def test_bad_limits_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        operator(**changes)
