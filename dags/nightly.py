"""A nightly fine-tune on spot machines that belong to somebody else by day.

Both Dags use one ClusterQueue (`queues/nightly.yaml`: `kubectl apply -f` it once). `nightly_finetune` starts in the
evening with low priority and goes on from the weights of the night before. It saves a checkpoint every ten minutes,
because a spot machine may vanish without warning. When `day_owner` arrives in the morning, it takes the machines at
once: the fine-tune is checkpointed and waits. Nothing fails, no retry is used; when the owner has done, it goes on at
its very next step.
"""

from __future__ import annotations

from datetime import datetime, timezone

import digits
from airflow.sdk import DAG, Param, task
from digits import POD_SHARED, RUN_FOLDER

from airflow_provider.operators import SingularityTrainOperator

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
LATEST = f"{POD_SHARED}/nightly/latest"

with DAG(
    dag_id="nightly_finetune",
    description="Fine-tune by night on machines that others own by day",
    schedule="0 22 * * 1-5",
    start_date=START,
    catchup=False,
    max_active_runs=1,
    tags=["singularity"],
    doc_md=__doc__,
    params={"steps": Param(600, type="integer", minimum=1, description="training steps of one night")},
) as nightly:

    @task
    def prepare(folder: str) -> str:
        """Data for the training; returns its folder as the pods see it."""
        return digits.write_digits(folder)

    train = SingularityTrainOperator(
        task_id="train",
        name="nightly",
        queue_name="spot-by-night",
        priority_class="low",
        workers=2,
        pod_resources={"cpu": "250m"},
        checkpoint_every="10m",
        checkpoint_budget_s=600,  # the longest that the owner waits; seconds as a rule, minutes on a busy machine
        preemption_alert=5,
        script="scripts/train_digits.py",
        script_args=[
            "--data", f"{POD_SHARED}/{RUN_FOLDER}/digits.npz",
            "--weights", f"{LATEST}/weights.pt",
            "--output", f"{POD_SHARED}/{RUN_FOLDER}/output",
            "--steps", "{{ params.steps }}",
        ],
    )  # fmt: skip

    @task
    def publish(folder: str) -> float:
        """Make the result the start of the next night; returns its accuracy."""
        shared = digits.shared_dir()
        latest = shared / "nightly" / "latest"
        latest.mkdir(parents=True, exist_ok=True)
        partial = latest / "weights.partial.pt"
        partial.write_bytes((shared / folder / "output" / "weights.pt").read_bytes())
        partial.replace(latest / "weights.pt")
        return digits.accuracy(folder)

    prepare(RUN_FOLDER) >> train >> publish(RUN_FOLDER)


with DAG(
    dag_id="day_owner",
    description="The owner of the machines wants them by day",
    schedule="0 7 * * 1-5",
    start_date=START,
    catchup=False,
    max_active_runs=1,
    tags=["singularity"],
    doc_md=__doc__,
    params={"seconds": Param(30, type="integer", minimum=1, description="how long the owner works")},
) as day:
    SingularityTrainOperator(
        task_id="work",
        name="day-owner",
        queue_name="owner-by-day",
        priority_class="high",
        workers=2,
        pod_resources={"cpu": "250m"},
        hold=False,  # nobody preempts the owner
        command=["python3", "-c", "import sys, time; time.sleep(float(sys.argv[1]))", "{{ params.seconds }}"],
        deletion_policy="on_success",
    )
