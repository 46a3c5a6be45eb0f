"""Quickstart: prepare data -> train on Kueue -> evaluate.

`train` is an ordinary PyTorch DDP script on a preemptible queue. Whatever happens to its pods (preemption, another
flavor, fewer workers), the task stays deferred and training goes on at the next step.
"""

from __future__ import annotations

from datetime import datetime, timezone

import digits
from airflow.sdk import DAG, Param, get_current_context, task
from digits import POD_SHARED, RUN_FOLDER

from airflow_provider.operators import SingularityTrainOperator

with DAG(
    dag_id="quickstart",
    description="Train a digit classifier that survives preemption",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=4,
    tags=["singularity"],
    doc_md=__doc__,
    params={
        "steps": Param(900, type="integer", minimum=1, description="training steps"),
        "pause": Param(0.0, type="number", minimum=0, description="seconds to wait in every step"),
        "seed": Param(0, type="integer", description="seed of shuffling, initial weights and dropout"),
        "queue": Param("training", type="string", description="Kueue LocalQueue"),
        "namespace": Param("default", type="string", description="namespace of the LocalQueue"),
        "priority_class": Param("low", type="string", description="Kueue WorkloadPriorityClass"),
        "min_accuracy": Param(0.9, type="number", minimum=0, maximum=1, description="evaluate fails below it"),
    },
) as dag:

    @task
    def prepare(folder: str) -> str:
        """Data for the training; returns its folder as the pods see it."""
        return digits.write_digits(folder)

    folder = prepare(RUN_FOLDER)

    train = SingularityTrainOperator(
        task_id="train",
        name="quickstart-train",
        namespace="{{ params.namespace }}",
        queue_name="{{ params.queue }}",
        priority_class="{{ params.priority_class }}",
        workers=4,
        min_workers=2,
        world_size=4,
        pod_resources={"cpu": "250m"},
        script="scripts/train_digits.py",
        script_args=[
            "--data", f"{POD_SHARED}/{RUN_FOLDER}/digits.npz",
            "--output", f"{POD_SHARED}/{RUN_FOLDER}/output",
            "--steps", "{{ params.steps }}",
            "--pause", "{{ params.pause }}",
            "--seed", "{{ params.seed }}",
        ],
    )  # fmt: skip

    @task
    def evaluate(folder: str) -> float:
        """Hold the final weights to `min_accuracy`."""
        found = digits.accuracy(folder)
        threshold = float(get_current_context()["params"]["min_accuracy"])
        if found < threshold:
            raise ValueError(f"accuracy {found:.4f} is below min_accuracy = {threshold}: train for more steps")
        return found

    folder >> train >> evaluate(RUN_FOLDER)
