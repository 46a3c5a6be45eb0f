"""A small transformer in a loop of torchtitan's kind: FSDP2 over a mesh, and state that is sharded anew at a start.

    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 2 train_titan.py    # kill -TERM one rank
    SINGULARITY_TRAIN_DIR=state torchrun --nproc-per-node 4 train_titan.py    # goes on at the next step and sample

Needs torch only. The workers share the 8 samples of a step, so their number divides 8.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import singularity_train

WORDS, LENGTH, STEPS, GLOBAL_BATCH = 32, 16, 16, 8


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mixed = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mixed(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True))


class Transformer(nn.Module):
    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, width), nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Counting(torch.utils.data.Dataset):
    """Sentences that count on from some number."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return (index + torch.arange(LENGTH)) % WORDS


def parallelize(model: Any, mesh: Any) -> None:
    """Each layer is sharded by itself, as torchtitan does."""
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main() -> tuple[torch.nn.Module, bool]:
    """The model, and whether it is trained."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if not dist.is_initialized():
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    workers = dist.get_world_size()
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(1)
    model = Transformer().to(device)
    parallelize(model, dist.init_device_mesh(kind, (workers,), mesh_dim_names=("dp_shard",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    job = singularity_train.attach(
        model=model, optimizer=optimizer, scheduler=scheduler, data=Counting(), steps=STEPS,
        batch_size=GLOBAL_BATCH // workers,
    )  # fmt: skip

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens.to(device)
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    for step in job:
        step.backward(loss_of)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    job.close()
    return model, job.finished


if __name__ == "__main__":
    main()
