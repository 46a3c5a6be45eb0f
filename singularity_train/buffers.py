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
    """The buffers of the models of one worker.

    :param rule: one of RULES
    """

    def __init__(self, models: Iterable[Any], rule: str) -> None:
        unique = {id(buffer): buffer for model in models for buffer in model.buffers()}
        self.all: list[Any] = list(unique.values())
        self._mean = [rule == "mean" and buffer.is_floating_point() for buffer in self.all]
        self.averaged = [buffer for buffer, mean in zip(self.all, self._mean, strict=True) if mean]
        self._before: list[Any] = []
        self._version: list[int] = []
        self._first: dict[int, Any] = {}
        self._flags: list[float] = []

    def begin(self) -> None:
        """Before the first virtual rank of a step."""
        self._before = [buffer.detach().clone() for buffer in self.all]
        self._version = [buffer._version for buffer in self.all]
        self._first = {}
        self._flags = [0.0] * len(self.all)

    def forward_done(self, virtual_rank: int) -> None:
        """After the forward pass of each virtual rank, before `rewind`."""
        for place in self._written():
            if self._mean[place]:
                self._flags[place] = 1.0
            elif virtual_rank == 0:
                self._flags[place] = 1.0
                self._first[place] = self.all[place].detach().clone()

    def flags(self) -> list[float]:
        """For each of `all`, whether its new value counts. A sum over the workers above 0 means yes."""
        return self._flags

    def _written(self) -> list[int]:
        return [place for place, buffer in enumerate(self.all) if buffer._version != self._version[place]]

    def rewind(self) -> None:
        """Before the next virtual rank: what the last one wrote is undone."""
        with torch.no_grad():
            for place in self._written():
                self.all[place].copy_(self._before[place])
                self._version[place] = self.all[place]._version

    def end(self, flags: Sequence[float], sums: Sequence[Any], virtual_ranks: int) -> None:
        """After the reduction. Collective.

        :param flags: sums of those of all workers
        :param sums: of `averaged` over all virtual ranks
        """
        self.rewind()
        means = iter(sums)
        with torch.no_grad():
            for place, (buffer, flag) in enumerate(zip(self.all, flags, strict=True)):
                if self._mean[place]:
                    mean = next(means)
                    if flag:
                        buffer.copy_(mean / virtual_ranks)
                elif flag:
                    value = self._first.get(place, self._before[place])
                    if world()[1] > 1:
                        dist.broadcast(value, 0)  # It has virtual rank 0.
                    buffer.copy_(value)
        self._before, self._first = [], {}
