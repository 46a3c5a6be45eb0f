"""Quickstart: prepare data -> train on Kueue -> evaluate.

`train` is an ordinary PyTorch DDP script on a preemptible queue. Whatever happens to its pods (preemption, another
flavor, fewer workers), the task stays deferred and training goes on at the next step.

Where things are: every node of the cluster mounts one shared directory at POD_SHARED; on the machine that runs Airflow
it is SINGULARITY_SHARED_DIR (environment) or the Airflow Variable `singularity_shared_dir`.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, Variable, get_current_context, task

from airflow_provider.operators import SingularityTrainOperator

POD_SHARED = os.environ.get("SINGULARITY_POD_SHARED_DIR", "/shared")
RUN_FOLDER = "runs/{{ dag.dag_id }}/{{ run_id | replace(':', '-') | replace('+', '-') }}"


def shared_dir() -> Path:
    """The shared directory as this machine sees it."""
    path = os.environ.get("SINGULARITY_SHARED_DIR") or Variable.get("singularity_shared_dir", default=None)
    if not path:
        raise ValueError(
            "SINGULARITY_SHARED_DIR is not set: give the directory that the cluster's nodes mount at "
            f"{POD_SHARED} (environment, or Airflow Variable singularity_shared_dir)"
        )
    return Path(path)


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
        "seed": Param(0, type="integer", description="seed of shuffling, initial weights and dropout"),
        "queue": Param("training", type="string", description="Kueue LocalQueue"),
        "namespace": Param("default", type="string", description="namespace of the LocalQueue"),
        "priority_class": Param("low", type="string", description="Kueue WorkloadPriorityClass"),
        "min_accuracy": Param(0.9, type="number", minimum=0, maximum=1, description="evaluate fails below it"),
    },
) as dag:

    @task
    def prepare(folder: str) -> str:
        """Write scikit-learn's handwritten digits as .npz into the run's folder; returns the path in the pods."""
        import numpy as np
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = (digits.images / 16.0).astype(np.float32)
        labels = digits.target.astype(np.int64)
        order = np.random.default_rng(0).permutation(len(labels))
        held_out, rest = order[: len(order) // 5], order[len(order) // 5 :]
        target = shared_dir() / folder
        target.mkdir(parents=True, exist_ok=True)
        partial = target / "digits.partial.npz"
        np.savez(partial, x_train=images[rest], y_train=labels[rest], x_test=images[held_out], y_test=labels[held_out])
        partial.replace(target / "digits.npz")
        print(f"{len(rest)} images to train on, {len(held_out)} held out, in {target}")
        return f"{POD_SHARED}/{folder}"

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
            "--seed", "{{ params.seed }}",
        ],
    )  # fmt: skip

    @task
    def evaluate(folder: str) -> float:
        """Accuracy of the final weights on the held-out images, computed with numpy alone."""
        import numpy as np

        here = shared_dir() / folder
        with np.load(here / "digits.npz") as data:
            images, labels = data["x_test"], data["y_test"]
        with np.load(here / "output" / "weights.npz") as weights:
            accuracy = float((predict(dict(weights), images) == labels).mean())
        threshold = float(get_current_context()["params"]["min_accuracy"])
        print(f"accuracy on {len(labels)} held-out images: {accuracy:.4f} (at least {threshold} is asked for)")
        if accuracy < threshold:
            raise ValueError(f"accuracy {accuracy:.4f} is below min_accuracy = {threshold}: train for more steps")
        return accuracy

    folder >> train >> evaluate(RUN_FOLDER)


def predict(weights: dict[str, Any], images: Any) -> Any:
    """Digits that the network of `scripts/train_digits.py` sees in `images` (n x 8 x 8)."""
    import numpy as np

    def convolve(x: Any, name: str) -> Any:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        sums = np.einsum("nchwij,ocij->nohw", windows, weights[f"{name}.weight"], optimize=True)
        return np.maximum(sums + weights[f"{name}.bias"][:, None, None], 0.0)

    x = convolve(convolve(images[:, None].astype(np.float64), "conv1"), "conv2")
    count, channels, height, width = x.shape
    x = x.reshape(count, channels, height // 2, 2, width // 2, 2).max(axis=(3, 5)).reshape(count, -1)
    x = np.maximum(x @ weights["fc1.weight"].T + weights["fc1.bias"], 0.0)
    return (x @ weights["fc2.weight"].T + weights["fc2.bias"]).argmax(axis=1)
