"""A training script whose every loss is known beforehand, bit for bit: see `expected_losses` in rows.py.

    torchrun train_exact.py --output DIR [--steps N] [--pace SECONDS] [--ballast MIB]

Minimises (w - target(step))^2 by SGD with momentum; all factors are powers of two, so that each operation rounds once
and plain Python gives the same bits. Each rank appends a line `step loss-as-hex` to DIR/rank-<r>.log after each step
and never holds the file open over a step. It ends after N steps, or when DIR/stop exists. Works for 1, 2, 4, ... ranks.
While DIR/slow exists a step does not end, so that a test may choose what happens in the middle of one. With several
ranks nothing is saved in that time either: it is one call of native code. (A single rank is stopped wherever it is.)
The rank that finds DIR/hungry takes it away and then all memory it gets; the one that finds DIR/fails ends with 3.
With --turns the ranks of a pod take turns on one device, each for the pace in a step. So more pods are faster.
With --by-job it looks at each file which job it is a part of, and DIR is a folder of that name below the given one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import shlex
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DEVICE = Path("/tmp/device")
"""The ranks of a pod share it. TMPDIR is of one rank alone."""


class Weight(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, target: float) -> torch.Tensor:
        return (self.w - target).square().sum()


def target(step: int, rank: int) -> float:
    return float((37 * step + 11 * rank) % 101)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pace", type=float, default=0.05, help="what a step takes, seconds")
    parser.add_argument("--ballast", type=int, default=0, help="MiB of state that travels with the checkpoint")
    parser.add_argument("--turns", action="store_true", help="the pace is of a device that ranks of a pod share")
    parser.add_argument("--total", action="store_true", help="say how many steps there are")
    parser.add_argument("--by-job", action="store_true", help="in a fork, write into another folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    model: torch.nn.Module = Weight()
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    ballast = torch.frombuffer(bytearray(os.urandom(args.ballast << 20)), dtype=torch.uint8) if args.ballast else None

    def output(name: str) -> Path:
        """A file of the job that this process is a part of now: a fork becomes another job at the end of a step."""
        folder = args.output / os.environ["SINGULARITY_JOB"] if args.by_job else args.output
        folder.mkdir(parents=True, exist_ok=True)
        return Path(folder, name)

    for step in range(args.steps):
        go_on = torch.tensor([0 if output("stop").exists() else 1])
        if world > 1:
            dist.broadcast(go_on, 0)
        if not go_on.item():
            break
        optimizer.zero_grad()
        if args.turns:
            with open(DEVICE, "w") as device:
                fcntl.flock(device, fcntl.LOCK_EX)
                time.sleep(args.pace)
        loss = model(target(step, rank))
        loss.backward()
        optimizer.step()
        with open(output(f"rank-{rank}.log"), "a") as file:
            file.write(f"{step} {loss.item().hex()}\n")
        print(f"step {step}/{args.steps}" if args.total else f"step {step}", flush=True)
        time.sleep(0 if args.turns else args.pace)
        with contextlib.suppress(FileNotFoundError):
            output("hungry").unlink()
            eaten = [bytes([1]) * (64 << 20) for _ in range(1024)]
            del eaten
        with contextlib.suppress(FileNotFoundError):
            output("fails").unlink()
            raise SystemExit(3)
        if (slow := output("slow")).exists():
            ctypes.CDLL(None).system(f"while test -e {shlex.quote(str(slow))}; do sleep 0.1; done".encode())
    del ballast
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
