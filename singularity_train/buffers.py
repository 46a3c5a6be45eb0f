"""Buffers that a forward pass writes, such as the running statistics of BatchNorm.

Left alone they would depend on which virtual ranks ran after each other on a worker. So every virtual rank begins
with the buffers as they were before the step. After the step one of two rules holds on all workers.

first  those of virtual rank 0, which is what DistributedDataParallel's `broadcast_buffers` does
mean   the mean over all virtual ranks, added in the tree; integers, such as counters of batches, are those of rank 0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .reduce import world

RULES = ("first", "mean")


class Buffers:
    """The buffers of the models of one worker, by name: a forward pass may put another tensor in the place of one.

    Whether one was written is seen by its value: kernels of BatchNorm write without telling autograd. Constant buffers,
    such as masks, are then neither sent nor averaged.

    :param rule: one of RULES
    """

    def __init__(self, models: Iterable[Any], rule: str) -> None:
        places = {
            id(buffer): (module, name)
            for model in models
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        }
        self._places: list[tuple[Any, str]] = list(places.values())
        self._mean = [rule == "mean" and buffer.is_floating_point() for buffer in self.all]
        self._before: list[Any] = []
        self._first: list[Any] | None = None
        self._flags: Any = None

    @property
    def all(self) -> list[Any]:
        return [module._buffers[name] for module, name in self._places]

    @property
    def averaged(self) -> list[Any]:
        return [buffer for buffer, mean in zip(self.all, self._mean, strict=True) if mean]

    def begin(self) -> None:
        """Before the first virtual rank of a step."""
        self._before = [buffer.detach().clone() for buffer in self.all]
        self._first = self._flags = None

    def forward_done(self, virtual_rank: int) -> None:
        """After the forward pass of each virtual rank, before `rewind`."""
        if not self.all:
            return
        written = torch.stack([
            (buffer != before).any().to(self.all[0].device) if mean or virtual_rank == 0 else self._never()
            for buffer, before, mean in zip(self.all, self._before, self._mean, strict=True)
        ])
        self._flags = written if self._flags is None else self._flags | written
        if virtual_rank == 0:
            self._first = [buffer.detach().clone() for buffer in self.all]

    def _never(self) -> Any:
        return torch.zeros((), dtype=torch.bool, device=self.all[0].device)

    def flags(self, device: Any) -> Any:
        """For each of `all` 1.0 if its new value counts, else 0.0. A sum over the workers above 0 means yes."""
        return torch.zeros(0, device=device) if self._flags is None else self._flags.to(device, torch.float32)

    def rewind(self) -> None:
        """Before the next virtual rank: what the last one wrote is undone."""
        if self.all:
            with torch.no_grad():
                torch._foreach_copy_(self.all, self._before)

    def end(self, flags: Sequence[float], sums: Sequence[Any], virtual_ranks: int) -> None:
        """After the reduction, and after `rewind`. Collective.

        :param flags: sums of those of all workers
        :param sums: of `averaged` over all virtual ranks
        """
        means = iter(sums)
        with torch.no_grad():
            for place, (buffer, flag) in enumerate(zip(self.all, flags, strict=True)):
                if self._mean[place]:
                    mean = next(means)
                    if flag:
                        buffer.copy_(mean / virtual_ranks)
                elif flag:
                    value = (self._before if self._first is None else self._first)[place]
                    if world()[1] > 1:
                        dist.broadcast(value, 0)  # It has virtual rank 0.
                    buffer.copy_(value)
        self._before, self._first = [], None
