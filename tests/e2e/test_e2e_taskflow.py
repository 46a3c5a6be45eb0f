"""The example `sweep`: `@task.singularity_train`, mapped: one Job per value, and what the functions return arrives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dag_run import Run

from localcluster.demo.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.timeout(1200)]


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
