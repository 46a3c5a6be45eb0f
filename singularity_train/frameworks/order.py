"""The order of samples that adapters give to loaders whose own order does not go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data as tud

from .. import rng


class KeyedSamples(tud.Sampler):  # type: ignore[misc]
    """The samples of one worker, in the order of its micro-batches.

    :param words: samples, samples of a micro-batch, seed, and whether to shuffle
    :param of: rank and number of workers
    :param place: epoch and number of samples of it that all workers have read
    """

    def __init__(self, words: Mapping[str, Any], step: int, of: tuple[int, int], place: tuple[int, int]) -> None:
        self._words, self._step, self._of = words, step, of
        self._epoch, self._offset = place

    def set_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._offset = epoch, 0

    def __len__(self) -> int:
        return int(self._words["samples"]) // self._step * self._step // self._of[1]

    def __iter__(self) -> Iterator[int]:
        samples, micro = self._words["samples"], self._words["micro"]
        order: Any = range(samples)
        if self._words["shuffle"]:
            order = rng.permutation(samples, self._words["seed"], "order", self._epoch).tolist()
        rank, workers = self._of
        for begin in range(self._offset + rank * micro, samples // self._step * self._step, workers * micro):
            yield from order[begin : begin + micro]
