"""`@task.singularity_train`: the example `sweep`, mapped: one Job per value; what the functions return arrives, also
when the Job was preempted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dag_run import Run

from kueue_integration.jobs.status import describe
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.follow import running_pods
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import QUEUE, remove
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(2400)]


def test_a_sweep_of_functions_returns_its_values(stage: Stage, start_run: Callable[[str], Run]) -> None:
    run = start_run("sweep")
    assert run.until_run_ends() == "success"
    found = stage.airflow.api.xcom(run.dag_id, run.run_id, "best", "return_value")
    assert found["rate"] == 0.2
    assert found["loss"] < 0.01
    diverging = stage.airflow.api.xcom(run.dag_id, run.run_id, "fit", "return_value", map_index=2)
    assert diverging["rate"] == 2.0 and diverging["steps"] < 20  # stopped early
    # A returned dict is several XComs, as with Airflow's own decorators.
    assert stage.airflow.api.xcom(run.dag_id, run.run_id, "fit", "loss", map_index=2) == diverging["loss"]
    made = [job["metadata"]["name"] for kind, job in run.job_events() if kind == "ADDED"]
    assert len(made) == len(set(made)) == 3


def test_a_function_that_is_preempted_returns_its_value(stage: Stage, start_run: Callable[[str], Run]) -> None:
    run = start_run("returned")
    job, kube = run.job(), stage.kube
    wait_for(lambda: describe(kube, NAMESPACE, job).step >= 20, "20 steps", 600)
    kube.create(intruder("urgent-return", NAMESPACE, QUEUE, stage.platform.train_image, 4, "250m"))
    try:
        wait_for(lambda: running_pods(kube, NAMESPACE, "job-name=urgent-return") == 4, "the high-priority job", 600)
    finally:
        remove(kube, NAMESPACE, "urgent-return")
    assert run.until_run_ends() == "success", run.log()
    # On the other flavor first, and back when there is room again, if it is early enough for that.
    assert describe(kube, NAMESPACE, job).attempts[0].ended_by == "Preempted"
    value = run.api.xcom(run.dag_id, run.run_id, "train", "return_value")
    assert value["made"] == list(range(600))  # one call of the function: it was moved, not called again
    assert len(value["losses"]) == 600 and value["losses"][-1] < 0.01 * value["losses"][0]
    assert run.api.task(run.dag_id, run.run_id, "train")["try_number"] == 1
