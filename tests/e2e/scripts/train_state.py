"""Training with singularity_train, whose losses have the same bits for 1 to 4 workers. Slow until OUTPUT/stop is there.

train_state.py --output OUTPUT --pace SECONDS --ballast 0 --steps STEPS [--by-job] [--learning-rate RATE --since STEP]

Each start of the program is a line of OUTPUT/starts: world and features of the processor. A rank that goes on as a
process makes none.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import singularity_train

RATE = 1e-3


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return sample + 0.1 * torch.rand(16)  # augmentation


def features() -> int:
    """How many features of the processor /proc/cpuinfo shows here."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((len(line.split()) for line in lines if line.startswith(("flags", "Features"))), 0)


def main(output: Path, pace: float, steps: int, rate: float, since: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    job = singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples(), batch_size=2, virtual_ranks=4, steps=steps, num_workers=1
    )
    if job.rank == 0:
        with (output / "starts").open("a") as starts:
            starts.write(f"{job.world_size} {features()}\n")
    for step in job:
        if step.number >= since:  # the checkpoint brings back the rate that the optimizer had
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss = step.backward(lambda batch: (model(batch) - batch.sum(1, keepdim=True)).square().mean())
        optimizer.step()
        if job.rank == 0:
            with (output / "rank-0.log").open("a") as log:
                log.write(f"{step.number} {loss.item().hex()}\n")
            print(f"step {step.number + 1}/{steps} loss {loss.item():.4f} world {job.world_size}", flush=True)
        if not (output / "stop").exists():
            time.sleep(pace)
    assert job.verdict == "unchecked", job.inexact
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pace", type=float, required=True)
    parser.add_argument("--ballast", type=int)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--by-job", action="store_true")
    parser.add_argument("--learning-rate", type=float, default=RATE)
    parser.add_argument("--since", type=int, default=0)
    given = parser.parse_args()
    place = given.output / os.environ["SINGULARITY_JOB"] if given.by_job else given.output
    place.mkdir(exist_ok=True)
    main(place, given.pace, given.steps, given.learning_rate, given.since)
