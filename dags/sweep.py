"""A sweep: one training job per learning rate, each preemptible, the best one wins.

The training is a Python function in the DAG file. It is shipped as source and runs once per rank; the return value of
rank 0 is the task's XCom. Kueue decides how many of the jobs run at a time. A job whose loss falls no more stops early.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG, Param, task

with DAG(
    dag_id="sweep",
    description="Learning rates side by side on a preemptible queue",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    tags=["singularity"],
    doc_md=__doc__,
    params={"steps": Param(60, type="integer", minimum=1, description="training steps of each job")},
) as dag:

    @task.singularity_train(
        queue_name="training", priority_class="low", workers=1, world_size=2, pod_resources={"cpu": "250m"}
    )
    def fit(rate: float, steps: int | str) -> dict[str, float]:
        """Fit a line to noise with DDP on two ranks; returns the last loss and after how many steps it stopped."""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        inputs = torch.randn(64, 8)
        targets = inputs.sum(dim=1, keepdim=True)
        loss, best, since = torch.zeros(()), float("inf"), 0
        for step in range(1, int(steps) + 1):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if step % 10 == 0 and dist.get_rank() == 0:
                print(f"step {step}/{steps} loss {loss.item():.6f}", flush=True)
            mean = loss.detach().clone()
            dist.all_reduce(mean)  # all ranks decide alike
            best, since = (mean.item(), 0) if mean.item() < 0.99 * best else (best, since + 1)
            if since >= 5:
                print(f"step {step}/{steps}: not one percent better for 5 steps, stopping", flush=True)
                break
        dist.destroy_process_group()
        return {"rate": rate, "loss": loss.item(), "steps": step}

    @task
    def best(results: list[dict[str, Any]]) -> dict[str, Any]:
        """The job with the smallest loss."""
        found = min(results, key=lambda result: result["loss"])
        print(f"best of {len(results)}: rate {found['rate']}, loss {found['loss']:.6f} after {found['steps']} steps")
        return found

    best(fit.partial(steps="{{ params.steps }}").expand(rate=[0.2, 0.05, 2.0]))
