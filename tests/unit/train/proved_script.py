"""An ordinary script for `singularity_train.prove`: HOW says what it forgets."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import singularity_train

HOW = sys.argv[1]
if HOW == "raises":
    raise ValueError("the data set is not there")
if HOW == "other":
    sys.exit(0)
if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(5)))
noise = torch.Generator().manual_seed(7)
with singularity_train.attach(
    model=model, optimizer=optimizer, data=data, batch_size=2, virtual_ranks=4, steps=3 if HOW == "short" else None
) as job:
    for step in job:
        step.backward(lambda batch: (model(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean())
        optimizer.step()
        if HOW == "noise":
            with torch.no_grad():
                model[0].bias.add_(torch.randn(16, generator=noise), alpha=0.01)
