"""DAGs of the end-to-end tests: tasks that the tests interrupt in known ways."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider.assets import SingularityCheckpointTrigger
from airflow_provider.operators import SingularityTrainOperator
from airflow_provider.sensors import SingularityCheckpointSensor

SCRIPT = str(Path(__file__).parent / "scripts" / "no_boundary.py")
COMMON: dict[str, Any] = {"queue_name": "training", "priority_class": "low", "script": SCRIPT}


class KilledAfterSubmitOperator(SingularityTrainOperator):
    """Its worker is killed by SIGKILL once, after the Job was made and before the task is deferred."""

    def defer(self, **kwargs: Any) -> NoReturn:
        marker = Path(os.environ["AIRFLOW_HOME"], "worker-was-killed")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().defer(**kwargs)
        raise AssertionError("defer raises")


with DAG("deadline", schedule=None, catchup=False):
    # Four pods fill flavor ondemand and do not fit on spot: after the eviction the job waits until the quota is free.
    SingularityTrainOperator(
        task_id="train",
        workers=4,
        pod_resources={"cpu": "250m"},
        checkpoint_budget_s=10,
        **{**COMMON, "script": str(Path(__file__).parent / "scripts" / "stuck_once.py")},
    )

with DAG("killed_worker", schedule=None, catchup=False):
    KilledAfterSubmitOperator(
        task_id="train",
        workers=1,
        pod_resources={"cpu": "250m"},
        retries=1,
        retry_delay=timedelta(seconds=1),
        script_args=["--seconds", "15"],
        **COMMON,
    )

with DAG("cleared", schedule=None, catchup=False):
    SingularityTrainOperator(
        task_id="train", workers=1, pod_resources={"cpu": "250m"}, script_args=["--seconds", "20"], **COMMON
    )

with DAG("ui", schedule=None, catchup=False):
    SingularityTrainOperator(
        task_id="train",
        workers=2,
        world_size=2,
        pod_resources={"cpu": "250m"},
        queue_name="training",
        script=str(Path(__file__).parent / "scripts" / "train_digits.py"),
        script_args=["--data", "/shared/e2e/digits.npz", "--output", "/shared/e2e/ui", "--steps", "600"],
    )
    # Airflow 3.3 fails a task that is queued again before its scheduler has read the end of the look before.
    SingularityCheckpointSensor(task_id="saved", training_task_id="train", min_step=20, poke_interval=30)

with DAG("unrelated", schedule=None, catchup=False):
    EmptyOperator(task_id="train")

NIGHTLY_CHECKPOINTS = Asset(
    "nightly-checkpoints",
    watchers=[AssetWatcher(name="nightly", trigger=SingularityCheckpointTrigger(dag_id="nightly_finetune"))],
)

with DAG("on_checkpoint", schedule=NIGHTLY_CHECKPOINTS, catchup=False):

    @task
    def seen(*, triggering_asset_events: Any = None) -> Any:
        """What the event of the checkpoint says."""
        return triggering_asset_events[NIGHTLY_CHECKPOINTS][-1].extra["payload"]

    seen()

with DAG("streamed", schedule=None, catchup=False):
    SingularityTrainOperator(
        task_id="train",
        workers=4,
        world_size=4,
        pod_resources={"cpu": "250m"},
        queue_name="training",
        priority_class="low",
        script=str(Path(__file__).parent / "scripts" / "train_exact.py"),
        script_args=["--output", "/shared/e2e/streamed", "--steps", "600", "--pace", "0.05"],
        logging_interval=2,
        checkpoint_budget_s=600,
        preemption_alert=0,
        pod_override={
            "metadata": {"labels": {"team": "vision"}},
            "spec": {"containers": [{"name": "base", "env": [{"name": "FROM_OVERRIDE", "value": "yes"}]}]},
        },
    )

with DAG("returned", schedule=None, catchup=False):

    @task.singularity_train(
        queue_name="training",
        priority_class="low",
        workers=2,
        pod_resources={"cpu": "250m"},
        checkpoint_budget_s=600,
    )
    def train(steps: int) -> dict[str, Any]:
        """Returns what each step has left in rank 0's memory: a value of several log lines."""
        import time

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        inputs = torch.randn(64, 8)
        made, losses = [], []
        for step in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            made.append(step)
            losses.append(loss.item())
            time.sleep(0.05)
        dist.destroy_process_group()
        return {"made": made, "losses": losses}

    train(600)

with DAG("lost", schedule=None, catchup=False):
    SingularityTrainOperator(
        task_id="train",
        workers=1,
        pod_resources={"cpu": "250m"},
        infrastructure_retries=0,
        script_args=["--seconds", "120"],
        **COMMON,
    )
