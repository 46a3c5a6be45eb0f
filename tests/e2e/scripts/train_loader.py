"""An ordinary training script: persistent loader workers for training and for validation, augmentation in the workers.

    train_loader.py --output DIR [--steps N] [--pace SECONDS] [--ballast IGNORED]

Each rank appends a line `step loss-as-hex` to DIR/rank-<r>.log. It ends after N steps, or when DIR/stop exists. Two
undisturbed runs write the same bits.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WIDTH = 64


class Rows(Dataset[torch.Tensor]):
    def __init__(self, length: int) -> None:
        self.rows = torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(length))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index] + 0.1 * torch.randn(WIDTH)  # of the worker's own generator


def loader(length: int) -> DataLoader[torch.Tensor]:
    data = Rows(length)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(data)
    seed = torch.Generator().manual_seed(dist.get_rank())
    return DataLoader(data, 8, sampler=sampler, num_workers=2, persistent_workers=True, generator=seed)


def steps(net: nn.Module) -> Iterator[float]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    training, validation = loader(320), loader(64)
    while True:
        for batch in training:
            optimizer.zero_grad()
            loss = net(batch).sub(batch).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.item()
        with torch.no_grad():
            for batch in validation:
                net(batch)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pace", type=float, default=0.05)
    parser.add_argument("--ballast", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH)))
    args.output.mkdir(parents=True, exist_ok=True)
    log, stop = args.output / f"rank-{dist.get_rank()}.log", args.output / "stop"
    for step, loss in enumerate(steps(net)):
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss:.6f}", flush=True)
        with log.open("a") as lines:
            lines.write(f"{step} {loss.hex()}\n")
        ended = torch.tensor(float(stop.exists() or step + 1 >= args.steps))
        dist.all_reduce(ended)
        if ended:
            break
        time.sleep(args.pace)
    dist.barrier()


if __name__ == "__main__":  # the loader workers import this file again
    assert os.environ["RANK"]
    main()
