"""What ranks of the tests run. They have torch; each function gets rank and world size first, and returns JSON."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pkgutil
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
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
        return nn.Sequential(
            nn.Linear(16, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 4)
        )
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
        return index, self.inputs[index] + noise(), self.words[index, 0] % 4


def noise() -> torch.Tensor:
    """Of all three generators. Each part changes the bits of what it is added to."""
    drawn = torch.tensor(random.random() + np.random.random(), dtype=torch.float32)
    return 0.1 * torch.rand(()) + 0.1 * drawn


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
    stop_by: str = "SIGTERM",
    virtual_ranks: int = 8,
    num_workers: int = 0,
    precision: str = "",
    loader: str = "",
    stream: str = "",
    **options: Any,
) -> dict[str, Any]:
    """A plain loop with the usual company.

    :param stop: the step in whose body one rank gets the signal `stop_by`; SIGINT goes to its children, too
    :param loader: class of a loader around the data, as "module:name"
    :param precision: "scaler"; "bf16" by autocast; "half": the parameters are bf16
    """
    model = model_of(kind).to(torch.bfloat16 if precision == "half" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5) if precision == "scaler" else None
    data: Any = Samples(kind)
    if stream:
        data = lambda v, count: {"stream": Stream, "forgetful": Forgetful}[stream](v, count, kind)  # noqa: E731
    if loader:
        data = pkgutil.resolve_name(loader)(data, 2, shuffle=True, num_workers=num_workers)
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
            scale = 1 + 0.01 * noise()  # the function of each virtual rank draws, too
            given = [batch[0], batch[1].to(model[0].weight.dtype), batch[2]] if kind == "mlp" else batch
            return loss_of(model, given) * scale

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
        drawn = [torch.rand(()).item(), random.random(), np.random.random()]
        losses.append(" ".join(number.hex() for number in (loss.item(), norm.item(), *drawn)))
        if step.number == stop and rank == stop_rank:
            family = multiprocessing.active_children() if stop_by == "SIGINT" else []
            for one in (os.getpid(), *(child.pid for child in family)):
                os.kill(one, signal.Signals[stop_by])
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    job.close()
    return {
        "handlers": [getattr(one, "__name__", str(one)) for one in handlers],
        "losses": losses, "seen": seen, "began": began, "step": job.step, "finished": job.finished,
        "verdict": job.verdict.value,
        "stopped": job.stop_requested, "epoch": job.epoch, "why": job.inexact,
        "state": digest(model.state_dict(), optimizer.state_dict()["state"], scheduler.state_dict()["last_epoch"]),
    }  # fmt: skip


def trajectories(rank: int, world: int, kinds: list[str], **arguments: Any) -> dict[str, Any]:
    """Several trainings without a folder: what must be equal for each number of workers."""
    found = {}
    for kind in kinds:
        made = train(rank, world, kind, **arguments)
        losses = hashlib.sha256(repr(made["losses"]).encode()).hexdigest()[:16]
        found[kind] = [losses, made["state"], made["losses"][-1]]
    return found


class Parts(nn.Module):
    """Parameters that not every batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.once, self.never = nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(16, 4)
        self.frozen = nn.Linear(16, 4).requires_grad_(False)


def partly_used(rank: int, world: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp"), batch_size=2, virtual_ranks=8, shuffle=False, steps=1
    )

    def compute(batch: Any) -> torch.Tensor:
        out = model.always(batch[1]) + model.frozen(batch[1])
        if batch[0][0] == 10:  # Virtual rank 5 of the first step.
            out = out + model.once(batch[1])
        return F.cross_entropy(out, batch[2])

    for step in job:
        step.backward(compute)
    bits = {name: digest(each.grad) if each.grad is not None else None for name, each in model.named_parameters()}
    return {**{name: bits[f"{name}.weight"] for name in ("once", "never", "frozen")}, "always": bits["always.weight"]}


def weighted(rank: int, world: int) -> dict[str, Any]:
    """Every sample counts as often as its number says; against one batch of all of them."""
    torch.manual_seed(1)
    model, data = nn.Linear(16, 4), Samples("mlp")
    data.inputs = data.inputs.round(decimals=1)
    job = singularity_train.attach(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data=data, batch_size=2, virtual_ranks=8,
        shuffle=False, steps=1,
    )  # fmt: skip
    read = []

    def compute(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        read.append(batch)
        weight = batch[0] % 5
        return (F.cross_entropy(model(batch[1]), batch[2], reduction="none") * weight).sum(), weight.sum()

    for step in job:
        loss = step.backward(compute)
    bits = digest(model.weight.grad, model.bias.grad, loss)
    if world > 1:
        return {"bits": bits}
    every = [torch.cat([batch[place] for batch in read]) for place in range(3)]
    weight = every[0] % 5
    whole = (F.cross_entropy(model(every[1]), every[2], reduction="none") * weight).sum() / weight.sum()
    expected = torch.autograd.grad(whole, model.weight)[0]
    difference = max((expected - model.weight.grad).abs().max().item(), abs(whole.item() - loss.item()))
    return {"bits": bits, "difference": difference}


def plain_sum(rank: int, world: int) -> str:
    """Eight micro-batches, added as `.grad` and all_reduce add them."""
    model, data = model_of("mlp"), Samples("mlp")
    for virtual_rank in range(rank * 8 // world, (rank + 1) * 8 // world):
        torch.manual_seed(virtual_rank)
        batch = torch.utils.data.default_collate([data[2 * virtual_rank + each] for each in range(2)])
        F.cross_entropy(model(data.inputs[2 * virtual_rank : 2 * virtual_rank + 2]), batch[2]).backward()
    gradients = [each.grad for each in model.parameters()]
    for gradient in gradients:
        if world > 1:
            torch.distributed.all_reduce(gradient)
    return digest(gradients)


def killed(rank: int, world: int, directory: str, at: int, save_every: int) -> None:
    model = model_of("mlp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    job = singularity_train.attach(
        model=model, optimizer=optimizer, scheduler=scheduler, data=Samples("mlp"), batch_size=2, virtual_ranks=8,
        seed=3, steps=10, directory=directory, save_every=save_every,
    )  # fmt: skip

    def compute(batch: Any) -> torch.Tensor:
        scale = 1 + 0.01 * noise()  # as `train` does
        return loss_of(model, batch) * scale

    for step in job:
        step.backward(compute)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if step.number == at:
            assert job._pending is not None
            job._pending.result(120)  # It is committed; what comes now is lost.
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)


def framework(rank: int, world: int, framework: str, steps: int, directory: str) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model = model_of("mlp")
    if framework == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        mesh = torch.distributed.init_device_mesh("cpu", (world,))
        torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job = singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp"), batch_size=2, seed=3, steps=steps, directory=directory
    )

    def whole() -> str:
        if not optimizer.state:
            return "new"
        state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        parts = [digest(state[0], state[1]["state"]) if state[0] else ""]
        torch.distributed.broadcast_object_list(parts, 0)
        return parts[0]

    loaded, began, losses, seen = whole(), job.step, [], []

    def compute(batch: Any) -> torch.Tensor:
        seen.append(batch[0].tolist())
        return loss_of(model, batch)

    for step in job:
        losses.append(step.backward(compute).item())
        optimizer.step()
    return {
        "began": began, "verdict": job.verdict.value, "losses": losses, "seen": seen, "loaded": loaded,
        "state": whole(),
    }  # fmt: skip


def asked(rank: int, world: int, directory: str) -> list[int]:
    """Rank 1 asks in step 1, before the agreement of step 2: saved when 3 steps are done."""
    model = model_of("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp"), batch_size=2, virtual_ranks=8, directory=directory
    )
    for step in job:
        step.backward(lambda batch: loss_of(model, batch))
        optimizer.step()
        if step.number == 1 and rank == 1:
            job.save()
        if step.number == 4:
            break
    job.close()
    saved = job._checkpoints.latest()
    return [saved.step, job._saved_step]
