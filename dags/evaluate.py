"""Train -> look at a checkpoint while the training goes on -> register it if it is good.

The sensor `saved` waits for a checkpoint of `train` that has enough steps. `evaluate` exports it as a safetensors file:
a pod with the job's image and volumes does it, so Airflow needs neither torch nor the store. `register` keeps the
weights with what made them. `train` is at work all the time, and may be preempted and moved meanwhile.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import digits
from airflow.sdk import DAG, Param, get_current_context, task
from digits import POD_SHARED, RUN_FOLDER

from airflow_provider.operators import SingularityTrainOperator
from airflow_provider.sensors import SingularityCheckpointSensor
from airflow_provider.verbs import JobVerbs

NETWORK = Path(__file__).parent / "scripts" / "train_digits.py"

with DAG(
    dag_id="digits_evaluate",
    description="Evaluate and register a checkpoint of a running training",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    tags=["singularity"],
    doc_md=__doc__,
    params={
        "steps": Param(3000, type="integer", minimum=1, description="training steps"),
        "evaluate_from": Param(200, type="integer", minimum=1, description="steps of the checkpoint, at least"),
        "min_accuracy": Param(0.8, type="number", minimum=0, maximum=1, description="what a release must reach"),
    },
) as dag:

    @task
    def prepare(folder: str) -> str:
        """Data for the training, and room for what its pods write: they do not run as root."""
        placed = digits.write_digits(folder)
        for place in (digits.shared_dir() / folder, digits.shared_dir() / folder / "checkpoints"):
            place.mkdir(exist_ok=True)
            place.chmod(0o777)
        return placed

    train = SingularityTrainOperator(
        task_id="train",
        queue_name="training",
        priority_class="low",
        workers=2,
        min_workers=1,
        engine="state",
        checkpoint_every="30s",
        store=f"file://{POD_SHARED}/{RUN_FOLDER}/checkpoints",
        pod_resources={"cpu": "250m"},
        script="scripts/train_digits_state.py",
        script_args=["--data", f"{POD_SHARED}/{RUN_FOLDER}/digits.npz", "--steps", "{{ params.steps }}"],
        files={NETWORK.name: NETWORK.read_text()},
    )

    saved = SingularityCheckpointSensor(
        task_id="saved",
        training_task_id="train",
        min_step="{{ params.evaluate_from }}",
        poke_interval=20,
        timeout=3600,
    )

    @task
    def evaluate(folder: str, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Accuracy of the newest checkpoint by now; the task fails below `min_accuracy`."""
        file = f"{folder}/evaluated.safetensors"
        (digits.shared_dir() / file).unlink(missing_ok=True)  # of an earlier try
        jobs = JobVerbs(namespace=checkpoint["namespace"])
        # A job keeps its newest checkpoints only: the one that the sensor saw may be gone when this task starts.
        done = jobs.export(checkpoint["job"], f"{POD_SHARED}/{file}", "safetensors", only="models")
        tensors = digits.read_safetensors(digits.shared_dir() / file)
        found = digits.accuracy_of(folder, {name.removeprefix("main."): each for name, each in tensors.items()})
        wanted = get_current_context()["params"]["min_accuracy"]
        if found < wanted:
            raise ValueError(f"accuracy {found:.4f} is below min_accuracy = {wanted}")
        return {"file": file, "accuracy": found, "step": done.step, "checkpoint": done.checkpoint}

    @task
    def register(model: dict[str, Any]) -> str:
        """Write the model's card beside the registered weights; returns its path."""
        target = digits.shared_dir() / "registry" / "digits" / model["checkpoint"]
        target.mkdir(parents=True, exist_ok=True)
        (target / "model.safetensors").write_bytes((digits.shared_dir() / model["file"]).read_bytes())
        (target / "card.json").write_text(json.dumps(model, indent=1))
        return str(target / "card.json")

    prepare(RUN_FOLDER) >> [train, saved]
    register(evaluate(RUN_FOLDER, saved.output))
