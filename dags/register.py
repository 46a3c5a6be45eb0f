"""Prepare -> train -> evaluate -> register, tied together by assets instead of by a schedule.

`digits_train` makes the asset `digits-model`: its event tells in `extra["training"]` how the model was made (steps,
preemptions, last checkpoint). `digits_register` starts when that asset is updated: it evaluates the model that the
event names. If the model is good enough, it registers it with how it was made; that makes the asset `digits-release`.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import digits
from airflow.sdk import DAG, Asset, Param, get_current_context, task
from digits import POD_SHARED, RUN_FOLDER

from airflow_provider.operators import SingularityTrainOperator

MODEL = Asset("digits-model")
RELEASE = Asset("digits-release")
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

with DAG(
    dag_id="digits_train",
    description="Train a digit classifier; the result is an asset",
    schedule=None,
    start_date=START,
    catchup=False,
    tags=["singularity"],
    doc_md=__doc__,
    params={"steps": Param(300, type="integer", minimum=1, description="training steps")},
) as train_dag:

    @task
    def prepare(folder: str) -> str:
        """Data for the training; returns its folder as the pods see it."""
        return digits.write_digits(folder)

    train = SingularityTrainOperator(
        task_id="train",
        queue_name="training",
        priority_class="low",
        workers=2,
        min_workers=1,
        outlets=[MODEL],
        pod_resources={"cpu": "250m"},
        script="scripts/train_digits.py",
        script_args=[
            "--data", f"{POD_SHARED}/{RUN_FOLDER}/digits.npz",
            "--output", f"{POD_SHARED}/{RUN_FOLDER}/output",
            "--steps", "{{ params.steps }}",
        ],
    )  # fmt: skip

    prepare(RUN_FOLDER) >> train


with DAG(
    dag_id="digits_register",
    description="Evaluate and register every new digits-model",
    schedule=MODEL,
    start_date=START,
    catchup=False,
    tags=["singularity"],
    doc_md=__doc__,
    params={"min_accuracy": Param(0.8, type="number", minimum=0, maximum=1, description="what a release must reach")},
) as register_dag:

    @task
    def evaluate() -> dict[str, Any]:
        """Accuracy of the model that the asset's event names; the task fails below `min_accuracy`."""
        context = get_current_context()
        event = context["triggering_asset_events"][MODEL][-1]
        folder = digits.run_folder(event.source_dag_id, event.source_run_id)
        found = digits.accuracy(folder)
        if found < context["params"]["min_accuracy"]:
            raise ValueError(f"accuracy {found:.4f} is below min_accuracy = {context['params']['min_accuracy']}")
        return {"folder": folder, "accuracy": found, "training": event.extra["training"]}

    @task(outlets=[RELEASE])
    def register(model: dict[str, Any], *, outlet_events: Any = None) -> str:
        """Write the model's card beside the registered weights; returns its path."""
        source = digits.shared_dir() / model["folder"] / "output" / "weights.npz"
        target = digits.shared_dir() / "registry" / "digits" / model["folder"].replace("/", "_")
        target.mkdir(parents=True, exist_ok=True)
        (target / "weights.npz").write_bytes(source.read_bytes())
        (target / "card.json").write_text(json.dumps(model, indent=1))
        outlet_events[RELEASE].extra = model
        return str(target / "card.json")

    register(evaluate())
