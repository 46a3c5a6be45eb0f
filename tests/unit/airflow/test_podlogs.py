"""Rank 0's output in the task log: against an API server that serves pods and their logs over HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_fakes import ADMITTED, CONN_ID, NAMESPACE, ApiServer, connection, make_attempt, make_job, make_workload
from waits import eventually

from airflow_provider import compat, informer, logplace, podlogs
from airflow_provider.triggers import SingularityJobTrigger
from kueue_integration.contract import job_names
from kueue_integration.kube.resources import JOB, POD, WORKLOAD


def pod(api: ApiServer, attempt: int, index: int = 0) -> str:
    name = f"train-{index}-a{attempt}"
    labels = {job_names.LABEL_JOB: "train", podlogs.INDEX_LABEL: str(index)}
    meta = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": labels,
        "annotations": {job_names.ANN_ATTEMPT: str(attempt)},
    }
    api.put(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "creationTimestamp": f"2026-01-0{attempt}"}})
    return name


def lines(*words: str, start: int = 0, rank: int = 0) -> list[str]:
    return [
        f"2026-01-01T00:00:{number:02d}.000000000Z [rank {rank}] {text}" for number, text in enumerate(words, start)
    ]


def running(api: ApiServer, *attempts: Any, **changes: Any) -> dict[str, Any]:
    job = make_job(attempts=list(attempts), **changes)
    api.put(JOB, job)
    api.put(WORKLOAD, make_workload(job, *ADMITTED))
    return job


def told(written: list[str]) -> list[str]:
    """What of it is output of the ranks, or says what of that is missing."""
    return [text for text in written if text.startswith(("[rank", "---")) or "cannot be shown" in text]


def trigger(**changes: Any) -> SingularityJobTrigger:
    values = {"get_logs": True, "logging_interval": 0.05, "conn_id": CONN_ID, "namespace": NAMESPACE}
    return SingularityJobTrigger(**{**values, "name": "train", "uid": "u1", **changes})


def of_task(**changes: Any) -> SingularityJobTrigger:
    """A trigger as a triggerer has it, with its task instance."""
    made = trigger(**changes)
    made.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, task=None)
    return made


async def event_of(watched: SingularityJobTrigger) -> dict[str, Any]:
    async for event in watched.run():
        payload: dict[str, Any] = event.payload
        return payload
    raise AssertionError("no event")


def started(watched: SingularityJobTrigger) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(event_of(watched))


async def test_output_is_copied_once_through_a_preemption_to_the_end(api: ApiServer, written: list[str]) -> None:
    first = make_attempt(1, first_step=0, first_step_at=1001.0)
    running(api, first, step=1)
    name = pod(api, 1)
    pod(api, 1, index=1)
    api.logs[name] = [*lines("step 0"), *lines("other", start=1, rank=1)]
    task = started(trigger())
    await eventually(lambda: "[rank 0] step 0" in told(written))
    api.logs[name] += lines("step 1", "step 2", start=3)
    await eventually(lambda: "[rank 0] step 2" in told(written))
    ended = make_attempt(1, first_step=0, first_step_at=1001.0, last_step=2, ended_by="Preempted", evicted_at=1010.0)
    api.delete(POD, name)
    running(api, ended, make_attempt(2, first_step=3, first_step_at=1021.0), step=4)
    api.logs[pod(api, 2)] = lines("step 3")
    await eventually(lambda: "[rank 0] step 3" in told(written))
    api.logs["train-0-a2"] += lines("step 4", start=1)  # comes with the end, not with a poll
    done = make_attempt(2, first_step=3, first_step_at=1021.0, ended_by="Finished", finished_at=1030.0)
    running(api, ended, done, condition="Complete", step=5)
    event = await task
    assert told(written) == [f"[rank 0] step {n}" for n in range(5)]
    assert event["output_shown"] is True


async def test_a_triggerer_that_takes_over_goes_on_where_the_first_one_stopped(
    api: ApiServer, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    xcoms: dict[str, Any] = {}

    async def set_xcom(ti: object, key: str, value: Any) -> None:
        xcoms[key] = value

    async def get_xcom(ti: object, key: str) -> Any:
        return xcoms.get(key)

    monkeypatch.setattr(compat, "set_xcom", set_xcom)
    monkeypatch.setattr(compat, "get_xcom", get_xcom)
    monkeypatch.setattr(podlogs, "PLACE_EVERY_S", 0)
    attempt = make_attempt(1, first_step=0, first_step_at=1001.0)
    running(api, attempt, step=1)
    name = pod(api, 1)
    api.logs[name] = lines("step 0", "step 1")
    task = started(of_task(log_max_lines=3))
    await eventually(lambda: logplace.PLACE_KEY in xcoms)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    api.logs[name] += lines("step 2", "step 3", start=2)
    task = started(of_task(log_max_lines=3))
    await eventually(lambda: any(text.startswith("--- log_max_lines") for text in told(written)))
    assert told(written)[:3] == [f"[rank 0] step {n}" for n in range(3)], "each once, and counted over both"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("broken", [None, "text", {"attempt": 1}, {"attempt": 1, "newest": "", "left": "x"}])
async def test_a_place_that_cannot_be_read_shows_lines_again(
    api: ApiServer, written: list[str], monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    async def get_xcom(ti: object, key: str) -> Any:
        if broken is None:
            raise ConnectionError("no answer")
        return broken

    monkeypatch.setattr(compat, "get_xcom", get_xcom)
    running(api, make_attempt(1, first_step=0, first_step_at=1001.0), step=1)
    api.logs[pod(api, 1)] = lines("step 0")
    task = started(of_task())
    await eventually(lambda: told(written) == ["[rank 0] step 0"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_long_line_and_too_many_lines_are_cut_and_said(
    api: ApiServer, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podlogs, "LINES_PER_POLL", 5)
    running(api, make_attempt(1, first_step=0, first_step_at=1001.0), step=1)
    api.logs[pod(api, 1)] = lines(*(f"step {n}" for n in range(8)), "x" * 3000)
    task = started(trigger(log_max_lines=6))
    await eventually(lambda: len(told(written)) == 6)
    shown = told(written)
    assert shown[0] == "--- more than 5 lines at the beginning of attempt 1: the older ones are left out here"
    assert shown[1:5] == [f"[rank 0] step {n}" for n in range(4, 8)]
    assert shown[5].endswith(f"[... {3000 + len(podlogs.RANK) - podlogs.LONGEST_LINE} more characters]")
    api.logs["train-0-a1"] += lines("one", "two", start=20)
    await eventually(lambda: len(told(written)) == 8)
    assert told(written)[6:] == [
        "[rank 0] one",
        f"--- log_max_lines = 6 lines of output are shown, what follows is not copied here: singularityctl logs train "
        f"--namespace {NAMESPACE}",
    ]
    polls = api.count("log", "pods")
    running(api, make_attempt(1, ended_by="Finished", finished_at=1030.0), condition="Complete")
    assert (await task)["output_shown"] is False
    assert api.count("log", "pods") == polls


async def test_who_may_not_read_pods_is_told_once_and_the_job_is_waited_for(api: ApiServer, written: list[str]) -> None:
    api.refused.add("pods")
    running(api, make_attempt(1, first_step=0, first_step_at=1001.0), step=1)
    task = started(trigger())
    await eventually(lambda: told(written))
    running(api, make_attempt(1, ended_by="Finished", finished_at=1030.0), condition="Complete")
    assert (await task)["status"] == "success"
    (said,) = told(written)
    assert "get pods/log, or set get_logs=False" in said


async def test_without_logs_no_pod_is_asked_for(api: ApiServer) -> None:
    running(api, make_attempt(1, ended_by="Finished", finished_at=1030.0), condition="Complete")
    pod(api, 1)
    event = await event_of(trigger(get_logs=False))
    assert event["output_shown"] is False
    assert api.count("list", "pods") == 0


async def test_a_thousand_tasks_read_a_few_pods_at_a_time(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "LOG_READERS", 2)
    running(api, make_attempt(1, first_step=0, first_step_at=1001.0), step=1)
    api.logs[pod(api, 1)] = lines("step 0")
    api.slow_logs = True
    tasks = [started(trigger()) for _ in range(6)]
    await eventually(lambda: api.count("log", "pods") >= 6)
    assert api.most_logs_at_once == 2
    running(api, make_attempt(1, ended_by="Finished", finished_at=1030.0), condition="Complete")
    await asyncio.gather(*tasks)


async def test_more_preemptions_than_allowed_end_the_wait(api: ApiServer) -> None:
    attempts = [make_attempt(n, ended_by="Preempted", evicted_at=1000.0 + n) for n in (1, 2)]
    running(api, *attempts, make_attempt(3))
    event = await event_of(trigger(max_preemptions=1))
    assert (event["status"], event["message"]) == ("preempted", "was preempted 2 times, max_preemptions is 1")


async def test_two_clusters_of_one_dag_have_a_watch_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiohttp.test_utils import TestServer

    servers = {name: ApiServer() for name in ("east", "west")}
    done = make_attempt(1, ended_by="Finished", finished_at=1030.0)
    for number, server in enumerate(servers.values()):
        running(server, done, condition="Complete", uid=f"u{number}")
    async with TestServer(servers["east"].app()) as east, TestServer(servers["west"].app()) as west:
        # One kubeconfig, two contexts: the connection says which.
        extra = connection(str(east.make_url("")), west=str(west.make_url("")))
        monkeypatch.setenv("AIRFLOW_CONN_EAST", extra.replace("CONTEXT", "x"))
        monkeypatch.setenv("AIRFLOW_CONN_WEST", extra.replace("CONTEXT", "west"))
        events = await asyncio.gather(
            event_of(trigger(conn_id="east", uid="u0")), event_of(trigger(conn_id="west", uid="u1"))
        )
        assert [event["status"] for event in events] == ["success", "success"]
        assert all(server.count("list", "jobs") == 1 for server in servers.values())
        for server in servers.values():
            server.drop()
