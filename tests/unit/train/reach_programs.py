"""Trainings with state that a checkpoint does not have, and others that only look like it."""

from __future__ import annotations

import copy
import os
import signal
from types import SimpleNamespace
from typing import Any

import torch
from error_programs import run, small, tried
from job_programs import Samples, digest, loss_of
from torch import nn

import singularity_train


class Averaged:
    """As timm and most diffusion repositories have it."""

    def __init__(self, model: nn.Module) -> None:
        self.module = copy.deepcopy(model).eval()

    def update(self, model: nn.Module) -> None:
        with torch.no_grad():
            for mine, new in zip(self.module.parameters(), model.parameters(), strict=True):
                mine.lerp_(new, 0.1)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state)


class Wrapped(torch.optim.Optimizer):
    """As Lookahead is."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self) -> None:
        self.inner.step()


class Eager(Wrapped):
    """As that of pytorch_optimizer: it has slow weights before the first step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["slow"] = parameter.detach().clone()


class Around:
    """As the wrapper of schedulefree: no optimizer of torch."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner


class Unsavable(torch.optim.SGD):
    def step(self) -> None:
        super().step()
        self.state[self.param_groups[0]["params"][0]]["made"] = object()


class Hidden(torch.optim.Optimizer):
    """Momentum in an attribute."""

    def __init__(self, parameters: Any, told: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.momentum: dict[int, Any] = {}
        self.told = told

    @torch.no_grad()
    def step(self) -> None:
        for number, parameter in enumerate(p for group in self.param_groups for p in group["params"]):
            if parameter.grad is None:
                continue
            momentum = self.momentum.setdefault(number, torch.zeros_like(parameter))
            parameter.sub_(momentum.mul_(0.9).add_(parameter.grad), alpha=0.01)


class Global(torch.optim.SGD):
    def step(self) -> None:
        super().step()
        self.state["steps"] = {"done": 1}


class More(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "more": 1}


class Statistics(nn.Module):
    """A running mean that forward puts in the place of the former one, as most people write it."""

    def __init__(self, persistent: bool = True, width: int = 4) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width), persistent=persistent)
        self.register_buffer("mask", torch.ones(width), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(0)
        return (values - self.mean) * self.mask


class Copying(nn.Sequential):
    """Whose state_dict gives copies."""

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        return {name: value.detach().cpu().clone() for name, value in super().state_dict(*args, **options).items()}


def averaging(attached: bool, when: str = "before", pickled: bool = False) -> int:
    model = small()
    averaged = Averaged(model)
    if when == "never":
        return run(model, body=lambda step: step.backward(lambda batch: loss_of(model, batch)))
    shown = SimpleNamespace(state_dict=averaged.state_dict, load_state_dict=averaged.load_state_dict)
    extra = {"extra": {"ema": shown if pickled else averaged}} if attached else {}

    class Updating(torch.optim.AdamW):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step(closure)
            averaged.update(model)

    return run(model, Updating(model.parameters()), **extra)


def rarely_averaging(every: int) -> list[Any]:
    """An average that begins after some steps: how far it came, and the verdict."""
    model = small()
    averaged = Averaged(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp"), batch_size=2, virtual_ranks=4, steps=40
    ) as job:
        for step in job:
            step.backward(lambda batch: loss_of(model, batch))
            optimizer.step()
            if step.number and step.number % every == 0:
                averaged.update(model)
        return [job.step, job.verdict.value, job.inexact]


def changing(what: str) -> int:
    """A script that changes model or optimizer in step 1."""
    model = small()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]

    def body(step: Any) -> None:
        step.backward(lambda batch: loss_of(model, batch))
        if step.number == 1 and what == "group of others":
            optimizers[0].add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
        if step.number == 1 and what == "model":
            model.add_module("head", nn.Linear(4, 4))
        if step.number == 1 and what == "parameter":
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())
        if what == "other optimizer":
            other.step()
        if step.number == 1 and what in ("optimizer", "optimizer without state"):
            optimizers.append(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9 * (what == "optimizer")))
        if len(optimizers) > 1:
            optimizers[1].step()
        if what == "probe":  # made anew in each evaluation, and thrown away
            probe = nn.Linear(4, 2)
            fitted = torch.optim.Adam(probe.parameters())
            probe(torch.ones(4)).sum().backward()
            fitted.step()
            fitted.step()

    temperature = torch.ones(1, requires_grad=True)
    temperature.grad = torch.ones(1)
    other = torch.optim.Adam([temperature])
    return run(model, optimizers[0], body)


class Counting(torch.optim.SGD):
    """Every second step is another one, as Lookahead's are."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.done = 0

    def step(self) -> None:
        self.done += 1
        super().step()


class ScheduleFree(torch.optim.Optimizer):
    """As the package of that name has it: the parameters are between an average and a fast copy; the state of the
    schedule is in the groups, and `train` and `eval` move the parameters."""

    def __init__(self, parameters: Any, lr: float = 0.05, beta: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta, "k": 0, "weight_sum": 0.0, "train_mode": False})

    @torch.no_grad()
    def _to(self, train_mode: bool) -> None:
        for group in self.param_groups:
            weight = 1 - group["beta"] if train_mode else 1 - 1 / group["beta"]
            for parameter in group["params"] if group["train_mode"] != train_mode else ():
                if "z" in self.state[parameter]:
                    parameter.lerp_(self.state[parameter]["z"], weight)
            group["train_mode"] = train_mode

    def train(self) -> None:
        self._to(True)

    def eval(self) -> None:
        self._to(False)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("call train() before step()")
            group["k"] += 1
            group["weight_sum"] += group["lr"] ** 2
            share = group["lr"] ** 2 / group["weight_sum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "z" not in state:
                    state["z"] = parameter.clone()
                parameter.lerp_(state["z"], share)
                parameter.add_(parameter.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
                state["z"].sub_(parameter.grad, alpha=group["lr"])


def own(kind: Any, wrap: Any = None) -> int:
    model = small()
    inner = kind(model.parameters())
    return run(model, wrap(inner) if wrap else inner)


def unsavable_extra() -> int:
    state = {"a": object(), "b": torch.zeros(2)}
    return run(small(), extra={"ema": SimpleNamespace(state_dict=lambda: state, load_state_dict=state.update)})


class BufferShuffledExamplesIterable:
    """The name of the class of Hugging Face's `datasets`."""


class Shuffled(torch.utils.data.IterableDataset):
    def __init__(self, deep: bool) -> None:
        inner: Any = BufferShuffledExamplesIterable()
        self._ex_iterable = SimpleNamespace(ex_iterable=inner) if deep else inner

    def __iter__(self) -> Any:
        while True:
            yield Samples("mlp")[0]


class Later:
    """An average whose tensors are made at the first update, and a best value that is None at first."""

    def __init__(self) -> None:
        self.shadow: dict[str, Any] = {}
        self.best: Any = None

    def update(self, model: nn.Module, loss: Any) -> None:
        for key, value in model.state_dict().items():
            averaged = key in self.shadow and value.is_floating_point()
            self.shadow[key] = self.shadow[key].lerp(value, 0.1) if averaged else value.clone()
        self.best = loss if self.best is None or loss < self.best else self.best

    def state_dict(self) -> dict[str, Any]:
        return {**self.shadow, "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]
        self.shadow = {key: value for key, value in state.items() if key != "best"}


CASES = {
    "copy": lambda: averaging(attached=False),
    "attached copy": lambda: averaging(attached=True),
    "copy attached by functions": lambda: averaging(attached=True, pickled=True),
    "copy that rests": lambda: averaging(attached=False, when="never"),
    "group of others": lambda: changing("group of others"),
    "growing model": lambda: changing("model"),
    "parameter replaced": lambda: changing("parameter"),
    "new optimizer": lambda: changing("optimizer"),
    "new optimizer without state": lambda: changing("optimizer without state"),
    "optimizer of others": lambda: changing("other optimizer"),
    "optimizers of a probe": lambda: changing("probe"),
    "average that begins later": lambda: rarely_averaging(9),
    "average that begins too late": lambda: rarely_averaging(17),
    "lazy module": lambda: run(small(nn.LazyLinear(4))),
    "counting": lambda: own(Counting),
    "wrapper": lambda: own(torch.optim.SGD, Wrapped),
    "wrapper with state": lambda: own(torch.optim.SGD, Eager),
    "wrapper that is no optimizer": lambda: own(torch.optim.SGD, Around),
    "unsavable": lambda: own(Unsavable),
    "unsavable extra": unsavable_extra,
    "hidden": lambda: own(Hidden),
    "global": lambda: own(Global),
    "more": lambda: own(More),
    "lbfgs is fine": lambda: run(small(nn.Linear(4, 4), nn.Linear(4, 4)), None),
    "buffer": lambda: run(small(nn.Linear(4, 4), Statistics(persistent=False))),
    "kept buffer": lambda: run(small(nn.Linear(4, 4), Statistics())),
    "shuffle buffer": lambda: run(small(), data=lambda rank, ranks: Shuffled(False)),
    "shuffle buffer within": lambda: run(small(), data=lambda rank, ranks: Shuffled(True)),
}


def seen(rank: int, world: int, cases: list[str]) -> dict[str, Any]:
    return {case: tried(CASES[case]) for case in cases}


def resumed(
    rank: int, world: int, kind: str, stop: int | None, directory: str | None = None, steps: int = 9,
    save_every: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Weights and losses of a training that rank 0 stops in step `stop`."""
    torch.manual_seed(1)
    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4), *([Statistics()] if kind == "statistics" else [])]
    model = (Copying if kind == "copying" else nn.Sequential)(*layers)
    if kind == "unfrozen":
        model[0].requires_grad_(False)
    kind_of = {"adagrad": torch.optim.Adagrad, "rprop": torch.optim.Rprop, "schedulefree": ScheduleFree}
    trained = model[2:] if kind in ("groups", "more of a group") else model
    optimizer = kind_of.get(kind, torch.optim.AdamW)(trained.parameters())
    if kind == "schedulefree":
        optimizer.train()
    schedule = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)} if kind == "groups" else {}
    losses, later = [], Later()
    with singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp"), batch_size=2, virtual_ranks=8, steps=steps,
        directory=directory, extra={"later": later} if kind == "lazy" else {}, save_every=save_every, **schedule,
    ) as job:  # fmt: skip
        for step in job:
            if kind == "turns":  # and no zero_grad: a frozen layer has no old gradient
                model[0].requires_grad_(step.number % 2 == 0)
            if kind == "unfrozen" and step.number == 2:
                model[0].requires_grad_(True)
            if kind == "groups" and step.number in (1, 4):
                added = model[0].weight if step.number == 1 else model[0].bias
                optimizer.add_param_group({"params": [added], "lr": 0.01, "initial_lr": 0.01})
                schedule["scheduler"].base_lrs.append(0.01)
            if kind == "more of a group" and step.number == 1:
                optimizer.param_groups[0]["params"].extend(model[0].parameters())
            loss = step.backward(lambda batch: loss_of(model, batch))
            losses.append(loss.item())
            optimizer.step()
            for each in schedule.values():
                each.step()
            if kind == "schedulefree" and step.number % 2:  # as for an evaluation
                optimizer.eval()
                optimizer.train()
            if kind == "lazy":
                later.update(model, loss)
            if step.number == stop and not rank:
                os.kill(os.getpid(), signal.SIGTERM)
    values = {name: value.detach().flatten().tolist() for name, value in nn.Sequential.state_dict(model).items()}
    values |= {f"later {name}": value.flatten().tolist() for name, value in later.shadow.items()}
    values["best"] = None if later.best is None else [later.best.item()]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {"losses": losses, "state": values, "verdict": job.verdict.value, "groups": groups}


def ranks_apart(rank: int, world: int, seeded: bool) -> list[Any]:
    """The copy is made before attach gives all ranks the parameters of rank 0."""
    model = small()
    if not seeded:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(rank)
    averaged = Averaged(model)
    return tried(lambda: run(model, extra={"ema": averaged}))


def talking(rank: int, world: int) -> list[Any]:
    """A contrastive loss gathers what the other ranks have."""
    from torch.distributed.nn.functional import all_gather

    model = small()

    def loss(batch: Any) -> Any:
        return torch.stack(all_gather(loss_of(model, batch))).mean()

    return tried(lambda: run(model, body=lambda step: step.backward(loss)))


def parallel(rank: int, world: int) -> list[Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    cut, sharded = small(), small()
    parallelize_module(cut, init_device_mesh("cpu", (world,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(sharded, mesh=init_device_mesh("cpu", (world,)))
    return [tried(lambda model=model: run(model, virtual_ranks=None)) for model in (cut, sharded)]


class Memory:
    """What a function may keep between two calls."""

    model: Any = None

    def __init__(self) -> None:
        self.hidden = torch.zeros(4)
        self.made = torch.Generator().manual_seed(3)
        self.numbers: list[Any] = []


def rehearsed(rank: int, world: int, case: str, rehearse: bool = True, steps: int = 5) -> dict[str, Any]:
    """A training whose function reads more than the model."""
    torch.manual_seed(1)
    model: Any = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    teacher, memory, kept, hidden = copy.deepcopy(model), Memory(), {"queue": [torch.zeros(4)]}, torch.zeros(4)
    generator, extra, anew, calls = torch.Generator().manual_seed(1), {}, torch.zeros(4), []
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if case == "scaler" else None
    beta = 0.0
    if case == "attached teacher":
        extra["teacher"] = teacher

    def closure(batch: Any) -> Any:
        nonlocal hidden
        out = model(batch[1])
        hidden = (0.5 * hidden + out.mean(0)).detach()
        return (out + hidden).pow(2).mean()

    def queued(batch: Any) -> Any:
        out = model(batch[1])
        kept["queue"] = [*kept["queue"][-2:], out.mean(0).detach()]
        return (out - torch.stack(kept["queue"]).mean(0)).pow(2).mean()

    def helped(batch: Any) -> Any:
        return out_of(batch, memory)

    def out_of(batch: Any, memory: Memory) -> Any:
        out = model(batch[1])
        memory.hidden = (memory.hidden + out.mean(0)).detach()
        return (out * memory.hidden).mean()

    def taught(batch: Any) -> Any:
        with torch.no_grad():
            wanted = teacher.eval()(batch[1])
        return (model(batch[1]) - wanted).pow(2).mean()

    layers = [*model]

    def layered(batch: Any) -> Any:
        return (layers[4](layers[0](batch[1])) + memory.hidden).pow(2).mean()

    def layered_closure(batch: Any) -> Any:
        nonlocal hidden
        out = layers[4](layers[0](batch[1]))
        hidden = (0.5 * hidden + out.mean(0)).detach()
        return (out + hidden).pow(2).mean()

    def elsewhere(batch: Any) -> Any:
        return Memory.model(batch[1]).pow(2).mean()

    Memory.model = model

    def counted(batch: Any) -> Any:
        calls.append(len(batch[1]))
        memory.numbers.append(torch.ones(1))
        return loss_of(model, batch)

    computes: dict[str, Any] = {
        "closure": closure, "queue": queued, "helper": helped, "teacher": taught, "attached teacher": taught,
        "generator": lambda batch: (model(batch[1] + torch.randn(16, generator=generator))).pow(2).mean(),
        "generator of an object": lambda batch: (model(batch[1]) * torch.rand(4, generator=memory.made)).mean(),
        "counter": counted, "by step": lambda batch: loss_of(model, batch) * (1 + beta),
        "step": lambda batch: loss_of(model, batch) * (1 + step.number),
        "made by the body": lambda batch: (model(batch[1]) + anew).pow(2).mean(),
        "layers": layered, "layers with a closure": layered_closure, "elsewhere": elsewhere,
        "plain": lambda batch: (loss_of(model, batch) * 2, 2), "scaler": lambda batch: loss_of(model, batch),
    }  # fmt: skip
    compute = computes[case]
    losses = []
    with singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp"), batch_size=2, virtual_ranks=4, steps=steps,
        extra=extra, rehearse=rehearse, scaler=scaler,
    ) as job:  # fmt: skip
        for step in job:
            beta, anew = step.number / 10, torch.rand(4)
            losses.append(step.backward(compute).item())
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if "teacher" in case:
                with torch.no_grad():
                    for mine, new in zip(teacher.parameters(), model.parameters(), strict=True):
                        mine.lerp_(new, 0.5)
    assert job.rehearsed == (1 if rehearse and case != "elsewhere" else None)
    return {"losses": losses, "calls": len(calls), "state": digest(model.state_dict())}
