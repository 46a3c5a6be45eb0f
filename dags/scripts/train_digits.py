"""Train a small convolutional network on handwritten digits with PyTorch DistributedDataParallel.

An ordinary training script: it knows nothing about checkpoints, queues or preemption.

    torchrun --nproc-per-node 4 train_digits.py --data digits.npz --output out --steps 900
    python3 train_digits.py --data digits.npz --output out --steps 900                       (one process)

Reads an .npz with `x_train` (float32, n x 8 x 8, values 0..1) and `y_train` (int64, n). Without --data the images are
made up, which is enough to see a job move. Writes to --output:
`loss-rank<r>.log`, and `weights.npz` and `weights.pt` from rank 0. The log has one line `step loss` per step, the loss
as a hexadecimal float, so that two runs can be compared bit by bit. Equal arguments and an equal number of ranks give
equal bytes.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

REPORT_EVERY = 20


class DigitNet(nn.Module):
    """8 x 8 grey image -> 10 logits."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(2 * width * 16, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        x = self.pool(torch.relu(self.conv2(x)))
        x = self.dropout(torch.flatten(x, 1))
        x = self.dropout(torch.relu(self.fc1(x)))
        return self.fc2(x)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a digit classifier with DDP on CPUs.")
    parser.add_argument("--data", type=Path, help=".npz with x_train and y_train; without it images are made up")
    parser.add_argument("--output", type=Path, default=Path("out"), help="directory for loss logs and weights")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--width", type=int, default=64, help="channels of the first convolution")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--loader-workers", type=int, default=0, help="DataLoader worker processes per rank")
    parser.add_argument("--weights", type=Path, help="weights.pt to start from, if the file is there")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in every step: a larger network")
    parser.add_argument("--scratch", type=Path, default=Path(), help="where the loss log is written until the end")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: must be at least 1")
    if args.pause < 0:
        parser.error(f"--pause {args.pause}: must be 0 or more")
    return args


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up over the first 5 %, then a cosine down to zero; a factor of the base rate."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def data_of(path: Path | None) -> TensorDataset:
    """Images and labels of the file; without one, ten patterns under noise, the same in every process."""
    if path is not None:
        with np.load(path) as data:
            return TensorDataset(torch.from_numpy(data["x_train"]).unsqueeze(1), torch.from_numpy(data["y_train"]))
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (1797,), generator=generator)
    patterns, noise = (torch.rand(n, 1, 8, 8, generator=generator) for n in (10, 1797))
    return TensorDataset((patterns[labels] + noise) / 2, labels)


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)  # several ranks share few cores; and sums must not depend on the machine's core count
    torch.use_deterministic_algorithms(True)
    rank, world = 0, 1
    if "RANK" in os.environ:  # torchrun's: this process is one of several
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
    args.output.mkdir(parents=True, exist_ok=True)

    dataset = data_of(args.data)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        dataset, world, rank, shuffle=True, seed=args.seed
    )
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.loader_workers,
        persistent_workers=args.loader_workers > 0,
    )

    torch.manual_seed(args.seed)
    net = DigitNet(args.width, dropout=0.25)
    if args.weights is not None and args.weights.exists():
        net.load_state_dict(torch.load(args.weights, weights_only=True))
    model: nn.Module = DistributedDataParallel(net) if dist.is_initialized() else net
    torch.manual_seed(1000 * (args.seed + 1) + rank)  # every rank drops other neurons
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args.steps))
    loss_function = nn.CrossEntropyLoss()

    log_path = args.scratch / f"loss-rank{rank}.log"
    step = epoch = 0
    with open(log_path, "w", buffering=1) as log:
        while step < args.steps:
            sampler.set_epoch(epoch)
            for x, y in loader:
                if step >= args.steps:
                    break
                optimizer.zero_grad(set_to_none=True)
                loss = loss_function(model(x), y)
                loss.backward()
                optimizer.step()
                schedule.step()
                value = loss.item()
                time.sleep(args.pause)
                log.write(f"{step} {value.hex()}\n")
                if rank == 0 and step % REPORT_EVERY == 0:
                    print(f"step {step} loss {value:.6f}", flush=True)
                step += 1
            epoch += 1

    target = args.output / log_path.name
    if log_path.resolve() != target.resolve():
        shutil.copyfile(log_path, target)
    if rank == 0:
        weights = net.state_dict()
        np.savez(args.output / "weights.npz", **{name: tensor.numpy() for name, tensor in weights.items()})
        torch.save(weights, args.output / "weights.pt")
        print(f"done after {step} steps, weights in {args.output}", flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
