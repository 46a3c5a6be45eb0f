"""A loop with an Accelerator. Each function gets rank and world size first, and returns JSON."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DistributedType
from job_programs import digest
from lightning_programs import SAMPLES, Numbered
from torch import nn
from torch.utils.data import DataLoader
from trainer_programs import raised

from singularity_train.frameworks import accelerate as adapter


def parts_of(loader: Any = None, width: int = 24, **options: Any) -> tuple[Any, ...]:
    """Accelerator, model, optimizer, loader and scheduler as `prepare` returns them."""
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, **{"gradient_accumulation_steps": 2, **options})
    model = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
    loader = DataLoader(Numbered(), 2, shuffle=True) if loader is None else loader
    return accelerator, *accelerator.prepare(model, optimizer, loader, scheduler)


def train(
    rank: int, world: int, directory: str | None, stop: int | None = None, stop_rank: int = 0, workers: int = 0,
    rate_steps: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A whole attempt, in which one rank gets SIGTERM in the step before `stop` is done.

    :param rate_steps: of the scheduler per update, for a run of one rank that is compared
    """
    made = parts_of(DataLoader(Numbered(), 2, shuffle=True, num_workers=workers))
    accelerator, model, optimizer, _, scheduler = made
    moving = adapter.attach(*made, directory=directory, global_batch_size=8, seed=3)
    if rate_steps is not None:
        scheduler.scheduler._times = rate_steps
    began, seen, losses, rates, evaluated = moving.step, {}, {}, [], []
    for epoch in moving.epochs(2):
        for number, inputs, targets in moving.batches():
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen.setdefault(moving.step, []).extend(number.tolist())
            losses.setdefault(moving.step, []).append(loss.item())
            rates.append(scheduler.get_last_lr()[0])
            if stop is not None and moving.step + 1 == stop and rank == stop_rank and accelerator.sync_gradients:
                os.kill(os.getpid(), signal.SIGTERM)
        if not moving.stop_requested:
            evaluated.append([epoch, moving.step])
    return {
        "began": began, "step": moving.step, "seen": list(seen.values()), "losses": list(losses.values()),
        "finished": moving.finished, "stopped": moving.stop_requested, "verdict": moving.verdict.value,
        "evaluated": evaluated,
        "accumulation": accelerator.gradient_accumulation_steps, "rate": rates[-1:],
        "state": digest(model.state_dict(), optimizer.optimizer.state_dict()["state"]),
        "weights": [each.tolist() for each in model.state_dict().values()],
    }  # fmt: skip


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(Numbered())


def wrong(rank: int, world: int, directory: str) -> dict[str, list[str]]:
    """After one attempt of one rank, whose checkpoint is whole in the end."""
    train(0, 1, directory, stop=4)

    def attempt(given: Any = None, change: Any = None, body: Any = None, **options: Any) -> list[str]:
        def call() -> None:
            made = list(parts_of(**options))
            if change is not None:
                change(made)
            moving = adapter.attach(*made, **{"directory": directory, "seed": 3, **(given or {})})
            for _ in moving.epochs(2):
                body(moving)

        return raised(call)

    def deepspeed(made: list[Any]) -> None:
        made[0].state.distributed_type = DistributedType.DEEPSPEED

    def early(moving: Any) -> None:
        next(moving.batches())

    def trained(made: list[Any]) -> None:
        made[0].backward(made[1](torch.zeros(1, 12)).sum())
        made[2].optimizer.step()

    def attached(made: list[Any]) -> None:
        adapter.attach(*made, directory=directory, seed=3)

    def plain(moving: Any) -> None:
        moving._accelerator.gradient_state._set_sync_gradients(False)
        list(moving.batches())

    found = {
        "plain optimizer": attempt(change=lambda made: made.__setitem__(2, made[2].optimizer)),
        "plain loader": attempt(change=lambda made: made.__setitem__(3, DataLoader(Numbered(), 2))),
        "stream": attempt(loader=DataLoader(Stream(), 2)), "samples": attempt(loader=DataLoader(Numbered(60), 2)),
        "micro": attempt(loader=DataLoader(Numbered(), 4, shuffle=True)), "seed": attempt({"seed": 4}),
        "batch": attempt({"global_batch_size": 16}), "model": attempt(width=25),
        "scheduler": attempt(change=lambda made: made.pop()),
        "extra": attempt({"extra": {"mean": nn.Linear(1, 1)}}), "early": attempt(body=early),
        "no accumulate": attempt(body=plain), "deepspeed": attempt(change=deepspeed),
        "late": attempt(change=trained), "twice": attempt(change=attached),
    }  # fmt: skip
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    found["unchanged"] = [str(train(0, 1, directory)["step"]), str(SAMPLES)]
    return found
