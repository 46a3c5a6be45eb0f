"""Trainings that are wrong or were changed. What is raised is the answer."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from job_programs import Samples, Stream, loss_of, model_of
from torch import nn

import singularity_train


def tried(call: Any) -> list[Any]:
    try:
        return ["step", call()]
    except Exception as error:
        return [type(error).__name__, str(error)]


def small(*more: nn.Module, width: int = 16) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4), nn.ReLU(), *(more or (nn.Linear(4, 4),)))


def run(model: nn.Module, optimizer: Any = None, body: Any = None, **options: Any) -> int:
    """Steps that are done."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    given = {"data": Samples("mlp"), "batch_size": 2, "virtual_ranks": 8, "steps": 3, **options}
    with singularity_train.attach(model=model, optimizer=optimizer, **given) as job:
        for step in job:
            if body is not None:
                body(step)
            else:
                step.backward(lambda batch: loss_of(model, batch))
            optimizer.step()
        return job.step


def changed(rank: int, world: int, directory: str, cases: list[str]) -> dict[str, Any]:
    def scheduled(model: nn.Module, optimizer: Any = None, scheduler: bool = True, **options: Any) -> int:
        optimizer = optimizer or torch.optim.AdamW(model.parameters())
        if scheduler:
            options["scheduler"] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        return run(model, optimizer, directory=directory, **options)

    def groups() -> int:
        model = small()
        parts = [{"params": model[0].parameters()}, {"params": [*model[2].parameters(), *model[4].parameters()]}]
        return scheduled(model, torch.optim.AdamW(parts))

    def optimizer() -> int:
        model = small()
        return scheduled(model, torch.optim.SGD(model.parameters(), lr=0.1))

    calls = {
        "missing": lambda: scheduled(small(nn.Linear(4, 4, bias=False))),
        "extra": lambda: scheduled(small(nn.Linear(4, 4), nn.Linear(4, 4))),
        "reshaped": lambda: scheduled(small(width=17)),
        "optimizer": optimizer,
        "groups": groups,
        "scheduler": lambda: scheduled(small(), scheduler=False),
        "samples": lambda: scheduled(small(), data=Samples("mlp", 150)),
        "streams": lambda: scheduled(small(), data=lambda v, count: Stream(v, count, "mlp")),
        "virtual_ranks": lambda: scheduled(small(), virtual_ranks=4),
        "batch_size": lambda: scheduled(small(), batch_size=4),
        "seed": lambda: scheduled(small(), seed=4),
        "threads": lambda: scheduled(small(), threads=2, require_exact=True),
    }
    scheduled(small())
    found = {case: tried(calls[case]) for case in cases}
    found["unchanged"] = tried(lambda: scheduled(small()))
    return found


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> Any:
        raise KeyError("the data set")


def wrong(rank: int, world: int, cases: list[str]) -> dict[str, Any]:
    def twice() -> None:
        with singularity_train.attach(
            model=(model := small()), optimizer=torch.optim.SGD(model.parameters()), data=Samples("mlp"), batch_size=2
        ):
            run(small())

    def late() -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters())
        loss_of(model, torch.utils.data.default_collate([Samples("mlp")[0]])).backward()
        optimizer.step()
        run(model, optimizer)

    def user(step: Any) -> None:
        raise KeyError("the user")

    def late_backward(step: Any) -> None:
        steps.append(step)
        steps[0].backward(lambda batch: loss_of(model, batch))

    def wrapped() -> None:
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        try:
            run(nn.parallel.DistributedDataParallel(small()))
        finally:
            torch.distributed.destroy_process_group()

    data, model = Samples("mlp"), small()
    steps: list[Any] = []
    sampler = torch.utils.data.SubsetRandomSampler([1, 2])
    sparse = nn.Sequential(nn.Embedding(32, 32, sparse=True))
    calls = {
        "twice": twice,
        "after the first step": late,
        "few samples": lambda: run(small(), data=Samples("mlp", 10)),
        "no batch size": lambda: run(small(), batch_size=None),
        "few of a sampler": lambda: run(small(), data=torch.utils.data.DataLoader(data, 2, sampler=sampler)),
        "one stream": lambda: run(small(), data=Stream(0, 1, "mlp")),
        "streams without virtual ranks": lambda: run(
            small(), data=lambda v, n: Stream(v, n, "mlp"), virtual_ranks=None
        ),
        "empty stream": lambda: run(small(), data=lambda v, n: []),
        "wrapped": wrapped,
        "foreign parameters": lambda: run(small(), torch.optim.SGD(small().parameters())),
        "no state_dict": lambda: run(small(), extra={"thing": object()}),
        "buffers": lambda: run(small(), buffers="all"),
        "steps": lambda: run(small(), steps=0),
        "no backward": lambda: run(small(), body=lambda step: None),
        "backward of another step": lambda: run(model, body=late_backward),
        "no loss": lambda: run(small(), body=lambda step: step.backward(lambda batch: torch.zeros(2))),
        "no weight": lambda: run(
            (other := small()), body=lambda step: step.backward(lambda batch: (loss_of(other, batch), 0))
        ),
        "sparse": lambda: run(
            sparse, torch.optim.SGD(sparse.parameters()), data=Samples("transformer"),
            body=lambda step: step.backward(lambda batch: loss_of(sparse, batch)),
        ),
        "own exception": lambda: run(small(), body=user),
        "own exception in the data": lambda: run(small(), data=Rows()),
    }  # fmt: skip
    return {case: tried(calls[case]) for case in cases}


def worlds(rank: int, world: int, case: str, directory: str) -> list[Any]:
    options: dict[str, Any] = {
        "many": {"virtual_ranks": 2}, "plain": {"virtual_ranks": None}, "folders": {"directory": directory},
    }[case]  # fmt: skip
    if case == "folders" and rank == 1:
        options = {}
    return tried(lambda: run(small(), **options))


def differing(rank: int, world: int) -> dict[str, Any]:
    """Rank 1 has a variable that changes what its kernels add."""
    if rank:
        os.environ["MKL_CBWR"] = "AVX2"
    required = tried(lambda: run(small(), require_exact=True))
    model = small()
    with singularity_train.attach(
        model=model, optimizer=torch.optim.SGD(model.parameters()), data=Samples("mlp"), batch_size=2, virtual_ranks=8
    ) as job:
        return {"required": required[0], "verdict": job.verdict.value, "why": "; ".join(job.inexact)}


def no_folder(rank: int, world: int) -> list[Any]:
    model = small()
    optimizer = torch.optim.SGD(model.parameters())
    with singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp"), batch_size=2, virtual_ranks=8, steps=2
    ) as job:
        handler = "default" if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else "other"
        before = sorted(Path().iterdir())
        for step in job:
            step.backward(lambda batch: loss_of(model, batch))
            optimizer.step()
        job.save()
        return [handler, "nothing" if sorted(Path().iterdir()) == before else "something", job.step]


def one_raises(rank: int, world: int, directory: str, at: int | None) -> list[int]:
    """Rank 1 raises in step `at`, before it computes anything; every step is saved. The steps that are made."""
    model, made = small(), []

    def body(step: Any) -> None:
        made.append(step.number)
        if step.number == at and rank == 1:
            raise ValueError(f"rank 1 has read a bad batch in step {at}")
        step.backward(lambda batch: loss_of(model, batch))

    run(model, body=body, directory=directory, steps=4, save_every=1)
    return made


class Told(singularity_train.host.LocalHost):
    """Wants a checkpoint in step 2 and a stop in step 3."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory, 0)
        self.told: list[Any] = []
        self.committed: list[int] = []

    def save_requested(self) -> bool:
        return len(self.told) == 1

    def stop_requested(self) -> bool:
        return len(self.told) == 2

    def report(self, progress: Any) -> None:
        super().report(progress)
        self.told.append(dict(progress))

    def saved(self, checkpoint: str, step: int) -> None:
        self.committed.append(step)


def hosted(rank: int, world: int, directory: str) -> dict[str, Any]:
    model, host = model_of("mlp"), Told(directory)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp"), batch_size=2, virtual_ranks=8, host=host
    ) as job:
        for step in job:
            step.backward(lambda batch: loss_of(model, batch))
            optimizer.step()
            if step.number == 1:
                job.report(accuracy=0.5)
    return {
        "steps": [each["step"] for each in host.told], "metrics": [each["metrics"] for each in host.told],
        "saved": host.committed, "stopped": host.told[-1]["stop_requested"],
        "file": json.loads((Path(directory) / "progress.json").read_text()),
    }  # fmt: skip
