"""An ordinary training script of one process, for comparisons: it saves nothing and knows nothing of who runs it.

    python3 train_paced.py --output FOLDER --steps 60 --pace 0.5

Prints `step N/TOTAL loss X` after every step (N from 1) and appends `unix-seconds N` to FOLDER/steps.log. That file
shows two runs into one folder, and steps that are made twice. With `--made-by WHO` it first prints `training of WHO`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to wait after each step")
    parser.add_argument("--made-by", default="", metavar="WHO")
    args = parser.parse_args()
    if args.made_by:
        print(f"training of {args.made_by}", flush=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        x = torch.randn(64, 64)
        loss = nn.functional.cross_entropy(net(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}/{args.steps} loss {loss.item():.4f}", flush=True)
        with open(args.output / "steps.log", "a") as log:
            log.write(f"{time.time():.3f} {step}\n")
        time.sleep(args.pace)


if __name__ == "__main__":
    main()
