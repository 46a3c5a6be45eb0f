"""A training whose number of workers changes, for the state engine and the process engine. argv: folder, width, pace.

Eight virtual ranks. Each rank appends `STEP EPOCH SAMPLE,...` to FOLDER/samples-rank<r>.log.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import singularity_train

VIRTUAL_RANKS, MICRO_BATCH, SAMPLES = 8, 2, 4096


def main():
    folder, width, pace = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(SAMPLES, 64), torch.arange(SAMPLES))
    job = singularity_train.attach(
        model=net, optimizer=optimizer, data=data, batch_size=MICRO_BATCH, virtual_ranks=VIRTUAL_RANKS, threads=1
    )
    seen = []

    def compute(batch):
        rows, numbers = batch
        seen.extend(numbers.tolist())
        return net(rows).square().mean()

    for step in job:
        seen.clear()
        loss = step.backward(compute)
        optimizer.step()
        optimizer.zero_grad()
        with (folder / f"samples-rank{job.rank}.log").open("a") as log:
            log.write(f"{step.number} {step.epoch} {','.join(map(str, seen))}\n")
        if job.rank == 0:
            print(f"step {step.number} loss {loss.item():.6f} world {job.world_size}", flush=True)
        time.sleep(pace)


if __name__ == "__main__":
    main()
