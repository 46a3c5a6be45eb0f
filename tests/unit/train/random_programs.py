"""Small scripts at random: modules, optimizers, samplers, several losses, averages, freezes; some cannot be resumed."""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from job_programs import Samples, digest
from pattern_programs import loader_of
from reach_programs import Averaged, Counting, Global, Hidden, Later, More, ScheduleFree, Statistics, Wrapped
from torch import nn

import singularity_train

STEPS = 7
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda given: torch.optim.SGD(given, lr=0.05),
    "nesterov": lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda given: torch.optim.AdamW(given, lr=1e-2),
    "amsgrad": lambda given: torch.optim.Adam(given, lr=1e-2, amsgrad=True),
    "tensor lr": lambda given: torch.optim.AdamW(given, lr=torch.tensor(1e-2)),
    "adagrad": lambda given: torch.optim.Adagrad(given, lr=1e-2),
    "rprop": lambda given: torch.optim.Rprop(given, lr=1e-3),
    "rmsprop": lambda given: torch.optim.RMSprop(given, lr=1e-3, centered=True, momentum=0.5),
    "adamax": lambda given: torch.optim.Adamax(given, lr=1e-2),
    "nadam": lambda given: torch.optim.NAdam(given, lr=1e-2),
    "radam": lambda given: torch.optim.RAdam(given, lr=1e-2),
    "adadelta": lambda given: torch.optim.Adadelta(given, lr=0.5),
    "asgd": lambda given: torch.optim.ASGD(given, lr=1e-2),
    "schedulefree": ScheduleFree,
    "hidden": Hidden, "counting": Counting, "global": lambda given: Global(given, lr=0.05),
    "more": lambda given: More(given, lr=0.05),
    "wrapped": lambda given: Wrapped(torch.optim.SGD(given, lr=0.05, momentum=0.9)),
}  # fmt: skip
SCHEDULERS: dict[str, Any] = {
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "restarts": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
    "chained": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.1), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[2],
    ),
}
ODD = ("hidden", "counting", "global", "more", "wrapped")
"""Optimizers that keep what no checkpoint has."""


def chosen(seed: int) -> dict[str, Any]:
    """What the script of `seed` has."""
    draw = random.Random(seed)

    def often(value: str, *others: str) -> str:
        return draw.choice([value] * len(others) + [*others])

    data = draw.choice(["set", "set", "in order", "weighted", "subset", "by length", "batches", "uneven"])
    grows = draw.random() < 0.04
    groups = often("one", "two", "later", "extended")
    # A batch of one sample is too small for BatchNorm, in torch.
    layers = ["relu", "dropout", "layer", "statistics", "gelu", "inner", *(["batch"] * (data != "uneven"))]
    return {
        "layers": [draw.choice(layers) for _ in range(3)], "data": data,
        "buffers": often("first", "mean"),
        "tied": draw.random() < 0.15,
        "optimizer": draw.choice(sorted({*OPTIMIZERS} - {*ODD}))
        if draw.random() < 0.85 else draw.choice(ODD),
        "groups": groups,
        "scheduler": draw.choice(["", *SCHEDULERS]) if groups != "later" else "",  # torch's have the first groups only
        "loss": often("mean", "weighted", "twice", "two optimizers"),
        "average": "" if grows else often("", "attached", "not attached", "rare and not attached", "lazy", "torch's"),
        "frozen": often("", "thawed", "frozen later", "turns"),
        "memory": often("", "closure", "attached", "generator", "buffer"),
        "scaler": draw.random() < 0.2, "clip": draw.random() < 0.3, "noise": draw.random() < 0.2,
        "new optimizer": draw.random() < 0.06, "grows": grows,
        "save_every": draw.choice([None, None, 2]), "stop": draw.randrange(0, STEPS - 2),
    }  # fmt: skip


REASONS = {
    "optimizer": "keeps state of no parameter|keeps tensors outside its state|counts in an attribute|wraps another",
    "copy of the model": "a copy of the model .* changes while it trains and is not attached",
    "function's own state": "computed again from what a checkpoint has",
    "optimizer not attached": "makes steps in the loop and is not attached",
    "growing model": "it has got .* since attach",
}
"""What may refuse a script, with its words."""


def causes(seed: int) -> set[str]:
    """What refuses the script of `seed`; none: it has to be moved."""
    has = chosen(seed)
    found = {
        "optimizer": has["optimizer"] in ODD,
        "copy of the model": has["average"].endswith("not attached"),
        "function's own state": has["memory"] in ("closure", "generator"),
        "optimizer not attached": has["new optimizer"],
        "growing model": has["grows"],
    }
    return {cause for cause, there in found.items() if there}


def expected(rank: int, world: int, seeds: list[int]) -> dict[str, list[str]]:
    return {str(seed): sorted(causes(seed)) for seed in seeds}


class Kept:
    def __init__(self) -> None:
        self.value = torch.zeros(4)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Model(nn.Module):
    def __init__(self, layers: list[str], tied: bool) -> None:
        super().__init__()
        kinds: dict[str, Any] = {
            "relu": nn.ReLU, "dropout": lambda: nn.Dropout(0.2), "batch": lambda: nn.BatchNorm1d(16),
            "layer": lambda: nn.LayerNorm(16), "statistics": lambda: Statistics(width=16), "gelu": nn.GELU,
            "inner": lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh()),
        }  # fmt: skip
        self.first = nn.Linear(16, 16)
        self.body = nn.Sequential(*(kinds[each]() for each in layers))
        self.second = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)
        self.register_buffer("memory", torch.zeros(4))
        if tied:
            self.second.weight = self.first.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.body(self.first(values))))


def script(rank: int, seed: int, directory: str | None, stop: bool) -> dict[str, Any]:
    """Train, from where the folder's last checkpoint is. What was trained, in this attempt."""
    has = chosen(seed)
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    model = Model(has["layers"], has["tied"])
    parameters = [*model.parameters()]
    head = [*model.last.parameters()]
    rest = [each for each in parameters if all(each is not other for other in head)]
    make, groups = OPTIMIZERS[has["optimizer"]], has["groups"]
    if has["frozen"] == "thawed":
        model.first.requires_grad_(False)
    two = has["loss"] == "two optimizers"
    optimizers = {"main": make(rest if two or groups in ("later", "extended") else parameters)}
    if groups == "two" and not two:
        optimizers["main"] = make([{"params": rest}, {"params": head, "weight_decay": 0.1}])
    if two:
        optimizers["head"] = torch.optim.AdamW(head)
    for each in optimizers.values():
        if hasattr(each, "train"):
            each.train()
    scheduler = SCHEDULERS[has["scheduler"]](optimizers["main"]) if has["scheduler"] else None
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3) if has["scaler"] else None
    extra: dict[str, Any] = {}
    average: Any = None
    if has["average"] == "torch's":
        average = extra["ema"] = torch.optim.swa_utils.AveragedModel(model)
    elif has["average"] == "lazy":
        average = extra["ema"] = Later()
    elif has["average"]:
        average = Averaged(model)
        extra |= {"ema": average} if has["average"] == "attached" else {}
    hidden, generator, kept = torch.zeros(4), torch.Generator().manual_seed(seed), Kept()
    if has["memory"] == "attached":
        extra["kept"] = kept
    data: Any = Samples("mlp") if has["data"] in ("set", "in order") else loader_of(has["data"], 0)

    def outcome(batch: Any) -> torch.Tensor:
        nonlocal hidden
        out = model(batch[1])
        if has["memory"] == "generator":
            out = out + 0.1 * torch.rand(4, generator=generator)
        if has["memory"] == "closure":
            out = out + hidden
            hidden = 0.5 * hidden + out.detach().mean(0)
        if has["memory"] == "attached":
            out = out + kept.value
        if has["memory"] == "buffer":
            out = out + model.memory
        return out

    def compute(batch: Any) -> Any:
        if has["loss"] != "weighted":
            return F.cross_entropy(outcome(batch), batch[2])
        weight = 1 + batch[0] % 3
        return (F.cross_entropy(outcome(batch), batch[2], reduction="none") * weight).sum(), weight.sum()

    losses = []
    with singularity_train.attach(
        model=model, optimizer=optimizers, scheduler=scheduler, scaler=scaler, extra=extra, data=data,
        batch_size=2 if isinstance(data, Samples) else None, shuffle=False if has["data"] == "in order" else None,
        virtual_ranks=4, steps=STEPS, seed=seed, buffers=has["buffers"], directory=directory,
        save_every=has["save_every"],
    ) as job:  # fmt: skip
        for step in job:
            number = step.number
            if has["frozen"] == "thawed" and number == 2:
                model.first.requires_grad_(True)
            if has["frozen"] == "frozen later" and number == 3:
                model.first.requires_grad_(False)
            if has["frozen"] == "turns":
                model.second.requires_grad_(number % 2 == 0)
            if number == 1 and groups == "later" and not two:
                optimizers["main"].add_param_group({"params": head})
                if hasattr(optimizers["main"], "train"):
                    optimizers["main"].train()
            if number == 2 and groups == "extended" and not two:
                optimizers["main"].param_groups[0]["params"].extend(head)
            if has["grows"] and number == 1:
                model.more = nn.Linear(2, 2)
            loss = step.backward(compute)
            if has["loss"] == "twice":
                step.backward(lambda batch: model(batch[1]).pow(2).mean())
            losses.append(loss.item().hex())
            if has["noise"]:
                with torch.no_grad():
                    model.first.bias.add_(0.01 * torch.rand(()) + 0.01 * random.random() + 0.01 * np.random.random())
            if has["clip"] and scaler is None:
                torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            if has["new optimizer"] and number == 2:
                optimizers = {**optimizers, "main": torch.optim.AdamW(rest)}
            for each in optimizers.values():
                scaler.step(each) if scaler is not None else each.step()
            if scaler is not None:
                scaler.update()
            if scheduler is not None:
                scheduler.step(*([loss.item()] if has["scheduler"] == "plateau" else []))
            if average is not None and (has["average"] != "rare and not attached" or number % 3 == 2):
                if has["average"] == "torch's":
                    average.update_parameters(model)
                else:
                    average.update(*([model, loss] if has["average"] == "lazy" else [model]))
            if has["memory"] == "attached":
                kept.value = 0.5 * kept.value + loss
            if has["memory"] == "buffer":
                model.memory = 0.5 * model.memory + loss
            if stop and number == has["stop"] and not rank:
                os.kill(os.getpid(), signal.SIGTERM)
        verdict = job.verdict.value
    averaged = average.state_dict() if average is not None else {}
    state = digest(
        model.state_dict(), averaged, *(each.state_dict()["state"] for each in optimizers.values()),
        [
            {key: value for key, value in group.items() if key != "params"}
            for each in optimizers.values() for group in each.param_groups
        ],
        {key: value for key, value in (scheduler.state_dict() if scheduler else {}).items() if key[0] != "_"},
        kept.value,
    )  # fmt: skip
    return {"losses": losses, "state": state, "verdict": verdict}


def played(rank: int, world: int, seeds: list[int], root: str | None, stop: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for seed in seeds:
        folder = None if root is None else str(Path(root) / str(seed))
        try:
            found[str(seed)] = script(rank, seed, folder, stop)
        except Exception as error:
            ours = isinstance(error, singularity_train.TrainError)
            why = [name for name, words in REASONS.items() if re.search(words, str(error))]
            found[str(seed)] = {"ours": ours, "raised": type(error).__name__, "message": str(error), "why": why}
            singularity_train.attach.__globals__["_current"] = None
    return found
