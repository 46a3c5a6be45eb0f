"""A small network in a plain loop under torchrun. Its weights have the same bits on 1 to 8 workers.

    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 2 train_torchrun.py    # kill -TERM one rank
    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 3 train_torchrun.py    # goes on at the next step and sample

Needs torch only.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import singularity_train


def main() -> tuple[torch.nn.Module, bool]:
    """The model, and whether it is trained."""
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu", int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)).to(device)
    inputs = torch.randn(64, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job = singularity_train.attach(
        model=model, optimizer=optimizer, data=TensorDataset(inputs, inputs.argmax(1) % 4), batch_size=1,
        virtual_ranks=8, epochs=2,
    )  # fmt: skip
    for step in job:
        loss = step.backward(lambda batch: F.cross_entropy(model(batch[0].to(device)), batch[1].to(device)))
        optimizer.step()
        if job.rank == 0:
            print(f"step {step.number} loss {loss.item():.4f}")
    job.close()
    return model, job.finished


if __name__ == "__main__":
    main()
