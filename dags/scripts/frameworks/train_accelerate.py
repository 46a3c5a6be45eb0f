"""A small network in a loop with an Accelerator, which goes on with any number of workers that divides 8.

    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 2 train_accelerate.py    # kill -TERM one rank
    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 1 train_accelerate.py    # goes on at the next step and sample

Needs accelerate.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from singularity_train.frameworks.accelerate import attach


def main() -> tuple[torch.nn.Module, bool]:
    """The model, and whether it is trained."""
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    inputs = torch.randn(64, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(inputs, inputs.argmax(1) % 4), batch_size=1, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    moving = attach(accelerator, model, optimizer, loader, global_batch_size=8)
    for _ in moving.epochs(2):
        for batch, targets in moving.batches():
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(batch), targets))
                optimizer.step()
                optimizer.zero_grad()
    return accelerator.unwrap_model(model), moving.finished


if __name__ == "__main__":
    main()
