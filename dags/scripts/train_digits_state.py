"""The network of train_digits.py in a loop of the state engine: any number of workers up to 4 gives the same bits.

    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 2 train_digits_state.py --data digits.npz --steps 3000

Reads the same .npz. Weights are in the checkpoints: `singularityctl checkpoints export --format safetensors`. With
--output DIR each rank also notes its samples there, and rank 0 notes each loss, and writes the weights at the end.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset
from train_digits import REPORT_EVERY, DigitNet, learning_rate

import singularity_train


def main(given: argparse.Namespace) -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    with np.load(given.data) as digits:
        images, labels = torch.from_numpy(digits["x_train"]).unsqueeze(1), torch.from_numpy(digits["y_train"])
    dataset = TensorDataset(images, labels, torch.arange(len(labels)))
    net = DigitNet(given.width, dropout=0.25)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, given.steps))
    job = singularity_train.attach(
        model=net, optimizer=optimizer, scheduler=schedule, data=dataset, batch_size=given.batch_size, virtual_ranks=4,
        steps=given.steps,
    )  # fmt: skip
    seen: list[int] = []

    def compute(batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels, numbers = batch
        seen.extend(numbers.tolist())
        return F.cross_entropy(net(images), labels)

    for step in job:
        seen.clear()
        loss = step.backward(compute)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        time.sleep(given.pause)
        if given.output is not None:
            numbers = ",".join(map(str, seen))
            append(given.output / f"samples-rank{job.rank}.log", f"{step.number} {step.epoch} {numbers}")
            if job.rank == 0:
                append(given.output / "loss-rank0.log", f"{step.number} {loss.item().hex()}")
        if job.rank == 0 and step.number % REPORT_EVERY == 0:
            print(f"step {step.number} loss {loss.item():.6f} world {job.world_size}", flush=True)
    if job.finished and job.rank == 0 and given.output is not None:
        weights = net.state_dict()
        np.savez(given.output / "weights.npz", **{name: tensor.numpy() for name, tensor in weights.items()})
        torch.save(weights, given.output / "weights.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def append(path: Path, line: str) -> None:
    """A file that all attempts of a job write to: each opens it anew."""
    with path.open("a") as log:
        log.write(f"{line}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=".npz with x_train and y_train")
    parser.add_argument("--output", type=Path, help="directory, the same for all ranks, for logs and weights")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in every step: a larger network")
    parser.add_argument("--batch-size", type=int, default=8, help="images per virtual rank and step")
    parser.add_argument("--width", type=int, default=64, help="channels of the first convolution")
    main(parser.parse_args())
