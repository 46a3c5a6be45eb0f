"""Two ranks train a few steps together. Then rank 1 ends well; rank 0 has other work to do, without step boundaries,
until it is told to stop. Every start of every rank is written down."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path, required=True)
output: Path = parser.parse_args().output
dist.init_process_group("gloo")
rank = dist.get_rank()
with (output / f"starts-{rank}").open("a") as file:
    file.write(f"{os.environ.get('HOSTNAME', '')}\n")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _step in range(5):
    loss = model(torch.ones(1)).sum()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
dist.barrier()
with (output / f"trained-{rank}").open("a") as file:
    file.write("5\n")
while rank == 0 and not (output / "stop").exists():
    time.sleep(0.1)
print(f"rank {rank} ends", flush=True)
