"""Seconds per step of virtual ranks and of DDP with accumulation, in turns, in the same processes."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import singularity_train

VIRTUAL_RANKS = 8
SAMPLES = 4096


def made(kind: str) -> tuple[nn.Module, TensorDataset, int]:
    """Model, data, samples of a micro-batch."""
    torch.manual_seed(1)
    if kind == "mlp":
        widths = (256, 2048, 2048)
        model = nn.Sequential(
            nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Dropout(0.1), nn.Linear(widths[1], widths[2]), nn.GELU(),
            nn.Linear(widths[2], 10),
        )  # fmt: skip
        return model, TensorDataset(torch.randn(SAMPLES, widths[0]), torch.randint(0, 10, (SAMPLES,))), 16
    words, width = 256, 128
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(words, width), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, words)
    )
    text = torch.randint(0, words, (SAMPLES, 33))
    return model, TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous()), 4


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), batch[1].reshape(-1))


def turns(rank: int, world: int, kind: str, count: int, steps: int) -> list[list[list[float]]]:
    """`count` pairs of mean seconds per step and of CPU seconds of them: virtual ranks, DDP."""
    ours, data, size = made(kind)
    optimizer = torch.optim.AdamW(ours.parameters())
    job = singularity_train.attach(
        model=ours, optimizer=optimizer, data=data, batch_size=size, virtual_ranks=VIRTUAL_RANKS, threads=1
    )
    mine = iter(job)
    plain, data, size = made(kind)
    theirs = nn.parallel.DistributedDataParallel(plain) if world > 1 else plain
    other = torch.optim.AdamW(theirs.parameters())
    batches = endless(DataLoader(data, size, sampler=DistributedSampler(data, world, rank)))
    share = VIRTUAL_RANKS // world

    def virtual() -> None:
        step = next(mine)
        step.backward(lambda batch: loss_of(ours, batch))
        optimizer.step()

    def accumulated() -> None:
        for turn in range(share):
            last = turn + 1 == share
            with nullcontext() if last or world == 1 else theirs.no_sync():
                (loss_of(theirs, next(batches)) / share).backward()
        other.step()
        other.zero_grad()

    def timed(step: Any) -> list[float]:
        began, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        return [(time.perf_counter() - began) / steps, (time.process_time() - used) / steps]

    pairs = []
    for turn in range(count + 1):
        # Who goes first changes.
        taken = [timed(step) for step in ((virtual, accumulated) if turn % 2 else (accumulated, virtual))]
        pairs.append(taken if turn % 2 else taken[::-1])
    return pairs[1:]  # The first one warms up.


def endless(batches: DataLoader) -> Any:
    while True:
        yield from batches
