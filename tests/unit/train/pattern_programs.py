"""Trainings as people write them: samplers of their own, several models, an end that the script decides about."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from error_programs import run, small, tried
from job_programs import Samples, digest, loss_of
from torch import nn
from torch.utils import data as tud

import singularity_train


class ByLength(tud.Sampler):
    """Groups of random samples, each sorted, as `group_by_length` has it; draws from numpy and `random`."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        order = np.random.permutation(self._length).tolist()
        groups = [sorted(order[begin : begin + 16]) for begin in range(0, self._length, 16)]
        random.shuffle(groups)
        return iter([index for group in groups for index in group])


class Uneven:
    """Whole batches of 1 to 3 samples, until a budget is used."""

    def __init__(self, length: int, generator: Any) -> None:
        self._length, self.generator = length, generator

    def __len__(self) -> int:
        return self._length // 2

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self._length, generator=self.generator).tolist()
        for number in range(len(self)):
            yield order[2 * number : 2 * number + 1 + number % 3]


class Own(tud.Sampler):
    """Draws from a generator that nobody else sees."""

    def __init__(self) -> None:
        self._hidden = random.Random(1)

    def __len__(self) -> int:
        return 160

    def __iter__(self) -> Iterator[int]:
        return iter(self._hidden.sample(range(160), 160))


class Later(tud.Sampler):
    """Whose order follows from how far the training is."""

    def __init__(self) -> None:
        self.hardest = 0

    def __len__(self) -> int:
        return 160

    def __iter__(self) -> Iterator[int]:
        return iter([(index + self.hardest) % 160 for index in range(160)])


class Endless(tud.Sampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(160))


class Short(ByLength):
    def __iter__(self) -> Iterator[int]:
        return iter(range(150))


def loader_of(kind: str, num_workers: int) -> Any:
    data, weights = Samples("mlp"), torch.linspace(0.1, 1, 160)
    words: dict[str, Any] = {
        "weighted": {"batch_size": 2, "sampler": tud.WeightedRandomSampler(weights, 100)},
        "generator": {"batch_size": 2, "sampler": tud.WeightedRandomSampler(weights, 100, generator=torch.Generator())},
        "subset": {"batch_size": 2, "sampler": tud.SubsetRandomSampler(range(0, 160, 2))},
        "replacement": {"batch_size": 2, "sampler": tud.RandomSampler(data, replacement=True, num_samples=64)},
        "num_samples": {"batch_size": 2, "sampler": tud.RandomSampler(data, num_samples=64)},
        "by length": {"batch_size": 2, "sampler": ByLength(160)},
        "batches": {"batch_sampler": tud.BatchSampler(ByLength(160), 3, drop_last=True)},
        "uneven": {"batch_sampler": Uneven(160, torch.Generator())},
    }[kind]
    return tud.DataLoader(data, num_workers=num_workers, **words)


def sampled(
    rank: int, world: int, kind: str, stop: int | None, directory: str | None = None, num_workers: int = 0,
    steps: int = 14,
) -> dict[str, Any]:  # fmt: skip
    """Losses, and the samples of each step in the order of this rank's virtual ranks."""
    torch.manual_seed(7 + world)  # other numbers than the attempt before had
    np.random.seed(world)
    random.seed(world)
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    losses, seen = [], []
    with singularity_train.attach(
        model=model, optimizer=optimizer, data=loader_of(kind, num_workers), virtual_ranks=8, steps=steps,
        directory=directory,
    ) as job:  # fmt: skip
        for step in job:
            seen.append([])

            def compute(batch: Any) -> torch.Tensor:
                seen[-1].extend(batch[0].tolist())
                return loss_of(model, batch)

            losses.append(step.backward(compute).item())
            optimizer.step()
            if step.number == stop and not rank:
                os.kill(os.getpid(), signal.SIGTERM)
    return {"losses": losses, "seen": seen, "state": digest(model.state_dict()), "step": job.step}


def refused(rank: int, world: int, directory: str) -> dict[str, Any]:
    data = Samples("mlp")
    shared = tud.BatchSampler(tud.DistributedSampler(data, 2, 0), 2, drop_last=True)

    def curriculum() -> int:
        sampler, done = Later(), 0
        for sampler.hardest, steps in ((0, 3), (3, 5)):
            data = tud.DataLoader(Samples("mlp"), 2, sampler=sampler)
            done += run(small(), data=data, batch_size=None, directory=directory, steps=steps)
        return done

    loaders: dict[str, Any] = {
        "hidden": {"batch_size": 2, "sampler": Own()}, "no length": {"batch_size": 2, "sampler": Endless()},
        "short": {"batch_size": 2, "sampler": Short(160)}, "shared": {"batch_sampler": shared},
    }  # fmt: skip
    found = {
        name: tried(lambda words=words: run(small(), data=tud.DataLoader(data, **words), batch_size=None))
        for name, words in loaders.items()
    }
    found["curriculum"] = tried(curriculum)
    batches = tud.DataLoader(data, batch_sampler=Uneven(160, torch.Generator()))
    return {**found, "both": tried(lambda: run(small(), data=batches))}


def adversarial(rank: int, world: int, kind: str, stop: int | None, directory: str | None = None) -> dict[str, Any]:
    """A critic with a gradient penalty and a generator, each with its optimizer, in one step of the loop."""
    torch.manual_seed(1)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 16))
    critic = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
    ours = {"g": torch.optim.Adam(generator.parameters(), 1e-2), "d": torch.optim.Adam(critic.parameters(), 1e-2)}
    losses = []

    def critical(batch: Any) -> torch.Tensor:
        real = batch[1].clone().requires_grad_(True)
        fake = generator(torch.randn(len(real), 4)).detach()
        score = critic(real)
        (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        return critic(fake).mean() - score.mean() + slope.pow(2).sum(1).mean()

    def generating(batch: Any) -> torch.Tensor:
        return -critic(generator(torch.randn(len(batch[1]), 4))).mean()

    with singularity_train.attach(
        model={"g": generator, "d": critic}, optimizer=ours, data=Samples("mlp"), batch_size=2, virtual_ranks=8,
        steps=12, directory=directory,
    ) as job:  # fmt: skip
        for step in job:
            found = [step.backward(critical)]
            if kind == "alternating":
                ours["d"].step()
                ours["g"].zero_grad()
                found.append(step.backward(generating))
                ours["g"].step()
            else:  # both losses first: the gradients add up, as in torch
                found.append(step.backward(generating))
                ours["d"].step()
                ours["g"].step()
            losses.append([each.item() for each in found])
            if step.number == stop and not rank:
                os.kill(os.getpid(), signal.SIGTERM)
    state = digest(generator.state_dict(), critic.state_dict(), *(each.state_dict()["state"] for each in ours.values()))
    return {"losses": losses, "state": state, "step": job.step}


def added(rank: int, world: int) -> dict[str, Any]:
    """The gradients of two calls, and of one for the sum of both losses."""

    def gradients(two: bool) -> list[float]:
        model = small()
        with singularity_train.attach(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data=Samples("mlp"), batch_size=2,
            virtual_ranks=4, steps=1,
        ) as job:  # fmt: skip
            for step in job:
                if two:
                    step.backward(lambda batch: loss_of(model, batch))
                    step.backward(lambda batch: model(batch[1]).pow(2).mean())
                else:
                    step.backward(lambda batch: loss_of(model, batch) + model(batch[1]).pow(2).mean())
        return torch.cat([each.grad.flatten() for each in model.parameters()]).tolist()

    return {"two": gradients(True), "one": gradients(False)}


def ended(rank: int, world: int, directory: str, ask: int) -> dict[str, Any]:
    """The last rank ends the training in step 4."""
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    epochs = []
    with singularity_train.attach(
        model=model, optimizer=optimizer, data=Samples("mlp", 40), batch_size=2, virtual_ranks=8, directory=directory
    ) as job:
        began = job.step
        for step in job:
            step.backward(lambda batch: loss_of(model, batch))
            optimizer.step()
            if job.epoch != step.epoch:
                epochs.append(step.number)  # the last step of an epoch
            if step.number == 4 and rank == ask:
                job.end()
    return {"began": began, "step": job.step, "finished": job.finished, "stopped": job.stop_requested, "epochs": epochs}
