"""The network of train_digits.py in a loop of the state engine: any number of workers up to 4 gives the same bits.

    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 2 train_digits_state.py --data digits.npz --steps 3000

Reads the same .npz. Weights are in the checkpoints: `singularityctl checkpoints export --format safetensors`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset
from train_digits import REPORT_EVERY, DigitNet, learning_rate

import singularity_train


def main(data: Path, steps: int, width: int) -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    with np.load(data) as digits:
        dataset = TensorDataset(torch.from_numpy(digits["x_train"]).unsqueeze(1), torch.from_numpy(digits["y_train"]))
    net = DigitNet(width, dropout=0.25)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, steps))
    job = singularity_train.attach(
        model=net, optimizer=optimizer, scheduler=schedule, data=dataset, batch_size=8, virtual_ranks=4, steps=steps,
    )  # fmt: skip
    for step in job:
        loss = step.backward(lambda batch: F.cross_entropy(net(batch[0]), batch[1]))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if job.rank == 0 and step.number % REPORT_EVERY == 0:
            print(f"step {step.number} loss {loss.item():.6f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=".npz with x_train and y_train")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--width", type=int, default=64, help="channels of the first convolution")
    given = parser.parse_args()
    main(given.data, given.steps, given.width)
