"""One step's gradients: by virtual ranks, or by the framework's own all-reduce.

Both read the batches of this worker and call the script's function on each. They leave the gradients of the whole
global batch in `.grad`, and bring the workers' wishes together on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from . import reduce, rng, tree
from .buffers import Buffers
from .data import Read
from .errors import UsageError

Compute = Callable[[Any], Any]
"""Batch -> loss, the mean over its samples; or (sum of the losses, weight), such as tokens that count."""

Turn = tuple[int, int]
"""Step, and how many calls of `backward` it has had."""


@dataclass(frozen=True)
class Outcome:
    """Of one step, the same on all ranks.

    :param loss: weighted mean over the global batch
    :param asked: for each wish, whether any rank has it
    """

    loss: float
    asked: list[bool]


class Watch(Protocol):
    """Looks on at one call of the script's function."""

    def begin(self, rank: int, batch: Any) -> None:
        """Before the call with the batch of a virtual rank."""

    def end(self, loss: Any, scale: Any) -> None:
        """After its backward pass. :param scale: that the loss was scaled with; None: it was not"""


def measured(result: Any) -> tuple[Any, Any]:
    """Sum of the losses, and their weight, of what the script's function returned.

    :raises UsageError: no tensor of one number
    """
    loss, weight = result if isinstance(result, tuple) and len(result) == 2 else (result, 1.0)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"a tensor of {loss.numel()} numbers" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(f"step.backward: the function returned {what}. Return the loss, or (sum of losses, weight).")
    return loss.reshape(()), weight


def drawn(turn: Turn, rank: int) -> tuple[str | int, ...]:
    """The key of what a virtual rank draws in one `backward`."""
    step, done = turn
    return ("step", step, rank, done) if done else ("step", step, rank)


def figures(loss: Any, weight: Any, device: Any) -> Any:
    """A vector of two float32 numbers."""
    number = torch.as_tensor(weight, dtype=torch.float32, device=device).detach().reshape(())
    return torch.stack([loss.detach().to(device, torch.float32), number])


def counted(weight: float) -> float:
    """:raises UsageError: nothing counts in this step"""
    if not weight > 0:
        raise UsageError(f"step.backward: the weights of the global batch add up to {weight}. Leave such batches out.")
    return weight


class VirtualRanks:
    """Each worker computes a range of virtual ranks one after the other. All sums are made in the tree.

    :param models: not wrapped
    :param scaler: scales each loss; None: no loss is scaled
    """

    def __init__(self, models: Sequence[Any], virtual_ranks: int, seed: int, rule: str, scaler: Any) -> None:
        self._models, self._virtual_ranks, self._seed, self._scaler = models, virtual_ranks, seed, scaler
        rank, workers = reduce.world()
        self.share = tree.shares(virtual_ranks, workers)[rank]
        self._buffers = Buffers(models, rule)
        self._first = True
        self._parameters: list[Any] = []
        self._layouts: dict[int, reduce.Layout] = {}
        """By the number of wishes, which only the first call of a step has."""

    def agree(self) -> None:
        """All workers take the parameters and buffers of rank 0, as DistributedDataParallel does. Collective."""
        if reduce.world()[1] == 1:
            return
        with torch.no_grad():
            for model in self._models:
                for tensor in (*model.parameters(), *model.buffers()):
                    dist.broadcast(tensor, 0)

    def backward(
        self, compute: Compute, turn: Turn, batches: Read, wishes: Sequence[bool], watch: Watch | None = None
    ) -> Outcome:
        """:param watch: looks on at the first virtual rank of this worker"""
        kept = self._look(turn)
        self._buffers.begin()
        device = self._parameters[0].device
        gradients: tree.Counter[reduce.Values] = tree.Counter(reduce.add)
        side: tree.Counter[reduce.Values] = tree.Counter(reduce.add)
        used = [False] * len(self._parameters)
        for rank in self.share:
            batch = batches.batch(rank)
            first = watch if rank == self.share.start else None
            if first is not None:
                first.begin(rank, batch)
            rng.seed(self._seed, *drawn(turn, rank))
            sent = self._collectives()
            loss, weight = measured(compute(batch))
            talked = self._collectives() != sent
            if not talked:
                (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            if talked or self._collectives() != sent:
                raise UsageError(
                    "step.backward: the function talks to other ranks (all_gather, all_reduce, SyncBatchNorm). With "
                    "virtual_ranks a worker computes several batches, others at the same time another number of them. "
                    "Leave virtual_ranks out, or compute the loss of one batch alone."
                )
            if first is not None:
                first.end(loss, None if self._scaler is None else self._scaler.scale(torch.ones_like(loss)).detach())
            self._buffers.forward_done(rank)
            averaged: reduce.Values = [buffer.detach().clone() for buffer in self._buffers.averaged]
            self._buffers.rewind()
            last = rank + 1 == self.share.stop
            if rank % 2 or last:
                # Of an aligned pair autograd has added the second to the first: that is the node of both.
                size = 2 if rank % 2 and rank > self.share.start else 1
                taken = self._take()
                used = [before or gradient is not None for before, gradient in zip(used, taken, strict=True)]
                gradients.push(rank + 1 - size, size, taken)
            flags = None
            if last:
                asked = torch.tensor([*map(float, (*wishes, *used))], dtype=torch.float32, device=device)
                flags = torch.cat([asked, self._buffers.flags(device)])
            side.push(rank, 1, [figures(loss, weight, device), flags, *averaged])
        self._first = False
        outcome = self._finish(gradients, side, len(wishes))
        for parameter, gradient in kept:
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
        return outcome

    def _collectives(self) -> int:
        """Operations that have begun with other ranks, in the first step: later ones have a save beside them, which
        talks to them, too."""
        if not self._first or reduce.world()[1] == 1:
            return 0
        return sum(group._get_sequence_number_for_group() for group in dist.distributed_c10d._world.pg_map)

    def _look(self, turn: Turn) -> list[tuple[Any, Any]]:
        """A parameter may be frozen or thawed between steps. Gradients of the step before are dropped.

        :returns: parameters with the gradients that earlier calls of this step have left
        """
        every = [each for model in self._models for each in model.parameters()]
        if not turn[1]:
            for parameter in every:  # a frozen one too: no later attempt would have its old gradient
                parameter.grad = None
        unique = {id(each): each for each in every if each.requires_grad}
        if [*unique] != [id(each) for each in self._parameters]:
            self._parameters, self._layouts = list(unique.values()), {}
        if not self._parameters:
            raise UsageError("step.backward: no parameter of the model requires a gradient")
        kept = [(each, each.grad) for each in self._parameters if turn[1] and each.grad is not None]
        for parameter in self._parameters:
            parameter.grad = None
        return kept

    def _take(self) -> reduce.Values:
        taken = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        if any(gradient is not None and gradient.layout != torch.strided for gradient in taken):
            raise UsageError("step.backward: a gradient is sparse. Use sparse=False in the embeddings of the model.")
        return taken

    def _finish(
        self, gradients: tree.Counter[reduce.Values], side: tree.Counter[reduce.Values], wishes: int
    ) -> Outcome:
        counter: tree.Counter[reduce.Values] = tree.Counter(reduce.add)
        counter.nodes = [
            (start, size, [*values, *more])
            for (start, size, values), (_, _, more) in zip(gradients.nodes, side.nodes, strict=True)
        ]
        count = len(self._parameters)
        if wishes not in self._layouts:
            like = [value for value in counter.nodes[-1][2][count:] if value is not None]
            self._layouts[wishes] = reduce.Layout([*self._parameters, *like])
        values = reduce.total(counter, self._layouts[wishes], self._virtual_ranks)
        sums, flags, averaged = values[count], values[count + 1], values[count + 2 :]
        assert sums is not None and flags is not None
        total, weight, *asked = torch.cat([sums, flags]).tolist()
        used, buffers = asked[wishes : wishes + count], asked[wishes + count :]
        present = [value for value, some in zip(values[:count], used, strict=True) if some]
        torch._foreach_div_(present, counted(weight))
        for parameter, value, some in zip(self._parameters, values[:count], used, strict=True):
            parameter.grad = value if some else None
        self._buffers.end(buffers, averaged, self._virtual_ranks)
        return Outcome(total / weight, [some > 0 for some in asked[:wishes]])


class Framework:
    """The model adds gradients itself, as DistributedDataParallel and `fully_shard` do; one batch per worker.

    :raises UsageError: several workers, and a model that adds nothing
    """

    def __init__(self, models: Sequence[Any], seed: int, scaler: Any) -> None:
        self._models, self._seed, self._scaler = models, seed, scaler
        rank, self._workers = reduce.world()
        self.share = range(rank, rank + 1)

    def agree(self) -> None:
        """The framework has done it."""

    def backward(
        self, compute: Compute, turn: Turn, batches: Read, wishes: Sequence[bool], watch: Watch | None = None
    ) -> Outcome:
        if not turn[1]:
            for model in self._models:
                for parameter in model.parameters():
                    parameter.grad = None
        batch = batches.batch(self.share.start)
        rng.seed(self._seed, *drawn(turn, self.share.start))
        loss, weight = measured(compute(batch))
        device = loss.device
        sums = torch.cat([
            figures(loss, weight, device),
            torch.tensor([*map(float, wishes)], dtype=torch.float32, device=device),
        ])
        if self._workers > 1:
            dist.all_reduce(sums)
        total, all_weight, *asked = sums.tolist()
        # The framework takes the mean over the workers.
        share = loss * (self._workers / counted(all_weight))
        (share if self._scaler is None else self._scaler.scale(share)).backward()
        return Outcome(total / all_weight, [some > 0 for some in asked])
