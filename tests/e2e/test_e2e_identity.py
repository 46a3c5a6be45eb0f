"""A killed worker or a cleared task never makes a second Job that is alive beside the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dag_run import Run

from airflow_provider.identity import DEPLOYMENT, Claim
from kueue_integration.kube.resources import is_true
from localcluster.demo.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(2400)]


def most_alive(events: list[tuple[str, dict[str, Any]]]) -> int:
    """The largest number of Jobs that were neither finished nor on their way out at one moment."""
    alive: set[str] = set()
    most = 0
    for kind, job in events:
        uid = job["metadata"]["uid"]
        over = is_true(job, "Complete") or is_true(job, "Failed") or job["metadata"].get("deletionTimestamp")
        if kind == "DELETED" or over:
            alive.discard(uid)
        else:
            alive.add(uid)
        most = max(most, len(alive))
    return most


def test_worker_killed_between_submit_and_defer(stage: Stage, start_run: Callable[[str], Run]) -> None:
    run = start_run("killed_worker")
    assert run.until_run_ends() == "success"
    assert (stage.airflow.home / "worker-was-killed").exists(), "the fault did not fire"
    assert run.api.task(run.dag_id, run.run_id, "train")["try_number"] == 2
    made = {job["metadata"]["uid"]: job for kind, job in run.job_events() if kind == "ADDED"}
    assert len(made) == 1
    assert "adopted" in run.log(2)
    # Which Airflow it is of: the Variable that the scheduler has made.
    claims = [Claim.of_job(job) for job in made.values()]
    own = run.api.call("GET", f"variables/{DEPLOYMENT}")["value"]
    assert own and [claim and claim.deployment for claim in claims] == [own]


def test_triggerer_killed_while_deferred(stage: Stage, start_run: Callable[[str], Run]) -> None:
    run = start_run("cleared")
    run.until_state("deferred")
    run.job()
    stage.airflow.kill_part("triggerer")
    stage.airflow.start_part("triggerer")
    assert run.until_run_ends() == "success"
    assert run.api.task(run.dag_id, run.run_id, "train")["try_number"] == 1
    assert len({job["metadata"]["uid"] for kind, job in run.job_events() if kind == "ADDED"}) == 1


def test_task_cleared_while_deferred(start_run: Callable[[str], Run]) -> None:
    run = start_run("cleared")
    run.until_state("deferred")
    first = run.job()
    run.api.clear(run.dag_id, run.run_id, "train")
    assert run.until_run_ends() == "success"
    events = run.job_events()
    assert most_alive(events) == 1
    assert {job["metadata"]["name"] for kind, job in events if kind == "ADDED"} >= {first}


def test_finished_task_cleared_runs_again_and_alone(start_run: Callable[[str], Run]) -> None:
    run = start_run("cleared")
    assert run.until_run_ends() == "success"
    first = run.job()
    run.api.clear(run.dag_id, run.run_id, "train")
    run.until_state("deferred")
    assert run.until_run_ends() == "success"
    events = run.job_events()
    added = [job["metadata"]["name"] for kind, job in events if kind == "ADDED"]
    assert most_alive(events) == 1
    assert added[0] == first
    assert len(added) == len(set(added)) == 2
