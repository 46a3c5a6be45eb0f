"""What ranks of the tests run. They have torch; each function gets rank and world size first, and returns JSON."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import singularity_train

SAMPLES = 160


class Transformer(nn.Module):
    def __init__(self, words: int = 32, width: int = 16) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(words, width), nn.Parameter(torch.randn(1, 8, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.words(x) + self.place[:, : x.shape[1]]))


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 4))
    if kind == "transformer":
        return Transformer()
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 4),
    )  # fmt: skip


class Samples(torch.utils.data.Dataset):
    """(index, input with random augmentation by all three generators, target)"""

    def __init__(self, kind: str, samples: int = SAMPLES) -> None:
        self.kind, made = kind, torch.Generator().manual_seed(5)
        shape = {"mlp": (16,), "conv": (3, 8, 8)}.get(kind)
        self.inputs = torch.randn(samples, *shape, generator=made) if shape else None
        self.words = torch.randint(0, 32, (samples, 9), generator=made)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Any:
        if self.inputs is None:
            return index, self.words[index, :8], self.words[index, 1:]
        return index, self.inputs[index] + 0.1 * torch.rand(()) + 0.1 * random.random(), self.words[index, 0] % 4


class Stream(torch.utils.data.IterableDataset):
    """The samples of one virtual rank, shuffled anew in each pass; it can say where it is."""

    def __init__(self, virtual_rank: int, virtual_ranks: int, kind: str) -> None:
        self.samples = Samples(kind)
        self.mine = list(range(virtual_rank, SAMPLES, virtual_ranks))
        self.passes = self.done = 0

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.mine), generator=torch.Generator().manual_seed(self.passes)).tolist()
        while self.done < len(self.mine):
            self.done += 1
            yield self.samples[self.mine[order[self.done - 1]]]
        self.passes, self.done = self.passes + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.done = state["passes"], state["done"]


class Forgetful:
    """A stream that cannot say where it is."""

    def __init__(self, virtual_rank: int, virtual_ranks: int, kind: str) -> None:
        self._stream = Stream(virtual_rank, virtual_ranks, kind)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    _, inputs, targets = batch
    out = model(inputs)
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), targets.reshape(-1))


def digest(*parts: Any) -> str:
    state = hashlib.sha256()
    for part in parts:
        for name, value in sorted(flat(part)):
            data = value.detach().contiguous().reshape(-1) if isinstance(value, torch.Tensor) else value
            state.update(f"{name} {data.tolist() if isinstance(data, torch.Tensor) else data!r}".encode())
    return state.hexdigest()[:16]


def flat(tree: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from flat(value, f"{at}.{name}")
    elif isinstance(tree, (list, tuple)):
        for place, value in enumerate(tree):
            yield from flat(value, f"{at}.{place}")
    else:
        yield at, tree


def train(
    rank: int,
    world: int,
    kind: str,
    steps: int,
    directory: str | None = None,
    stop: int | None = None,
    stop_rank: int = 0,
    virtual_ranks: int = 8,
    num_workers: int = 0,
    precision: str = "",
    loader: bool = False,
    stream: str = "",
    **options: Any,
) -> dict[str, Any]:
    """A plain loop with the usual company.

    :param stop: the step in whose body one rank gets SIGTERM
    :param precision: "scaler" or "bf16"
    """
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5) if precision == "scaler" else None
    data: Any = Samples(kind)
    if stream:
        data = lambda v, count: {"stream": Stream, "forgetful": Forgetful}[stream](v, count, kind)  # noqa: E731
    if loader:
        data = torch.utils.data.DataLoader(data, 2, shuffle=True, num_workers=num_workers)
    seen: list[list[int]] = []
    job = singularity_train.attach(
        model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, data=data,
        batch_size=None if loader else 2, virtual_ranks=virtual_ranks, seed=3, steps=steps, directory=directory,
        num_workers=None if loader else num_workers, **options,
    )  # fmt: skip
    began = job.step

    def compute(batch: Any) -> torch.Tensor:
        seen[-1].extend(batch[0].tolist())
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            return loss_of(model, batch)

    losses = []
    for step in job:
        seen.append([])
        loss = step.backward(compute)
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(f"{loss.item().hex()} {norm.item().hex()} {torch.rand(()).item()} {random.random()}")
        if step.number == stop and rank == stop_rank:
            os.kill(os.getpid(), signal.SIGTERM)
    job.close()
    return {
        "losses": losses, "seen": seen, "began": began, "step": job.step, "finished": job.finished, "exact": job.exact,
        "stopped": job.stop_requested, "epoch": job.epoch, "why": job.inexact,
        "state": digest(model.state_dict(), optimizer.state_dict()["state"], scheduler.state_dict()["last_epoch"]),
    }  # fmt: skip


def trajectories(rank: int, world: int, kinds: list[str], **arguments: Any) -> dict[str, Any]:
    """Several trainings without a folder: what must be equal for each number of workers."""
    found = {}
    for kind in kinds:
        made = train(rank, world, kind, **arguments)
        found[kind] = [hashlib.sha256(repr(made["losses"]).encode()).hexdigest()[:16], made["state"], made["losses"][-1]]
    return found
