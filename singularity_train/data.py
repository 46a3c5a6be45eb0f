"""What a job reads from: batches for virtual ranks, and a position that any number of workers can go on from.

A map-style data set is shuffled by a key, so its position is an epoch and a number of samples. What loader workers have
fetched ahead is dropped at a stop and fetched again. Each sample is read under a key of its own, which makes random
augmentation the same for any number of loader workers.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.utils.data as tud

from . import rng
from .errors import DataError


@dataclass(frozen=True)
class Loading:
    """How batches are made, in the words of `torch.utils.data.DataLoader`.

    :param options: further keywords of DataLoader
    """

    batch_size: int
    shuffle: bool = True
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """Batches of the virtual ranks of one worker, and a position."""

    @property
    def epoch(self) -> int | None:
        """Of the next batches; None where there are none."""

    def start(self, share: range, total: int) -> None:
        """Begin at the position.

        :param share: virtual ranks of this worker, of `total`
        """

    def batch(self, virtual_rank: int) -> Any:
        """The next batch of a virtual rank; they are asked for in order."""

    def advance(self) -> None:
        """All virtual ranks have read one batch."""

    def close(self) -> None:
        """End the loader's processes. Batches that nobody has read are dropped."""

    def position(self) -> dict[str, int]:
        """What is the same on all workers."""

    def states(self) -> dict[int, Any]:
        """What each virtual rank of this worker needs besides; empty where the position is all."""

    def restore(self, position: Mapping[str, int], states: Mapping[int, Any]) -> None:
        """Go on from a position that any number of workers has saved.

        :raises DataError: the data set is not the one of the checkpoint
        """


class MapSource:
    """Of a data set with `__len__` and `__getitem__`. The last samples of an epoch that fill no global batch are left
    out, other ones in each epoch where it shuffles.

    :param total: batches of one step, over all workers: virtual ranks, or workers
    :raises DataError: too few samples for one step
    """

    def __init__(self, dataset: Any, loading: Loading, seed: int, total: int) -> None:
        self._dataset, self._loading, self._seed = dataset, loading, seed
        self.samples = len(dataset)
        self.epoch = self.offset = 0
        self._share, self._total = range(0), total
        self._batches: Iterator[Any] | None = None
        if self.samples < self._step():
            raise DataError(
                f"data: {self.samples} samples are fewer than one step reads: {total} batches of "
                f"{loading.batch_size}. Use a smaller batch_size, fewer virtual ranks, or more data."
            )

    def _step(self) -> int:
        """Samples."""
        return self._total * self._loading.batch_size

    def start(self, share: range, total: int) -> None:
        self.close()
        self._share, self._total = share, total
        self._turn()

    def batch(self, virtual_rank: int) -> Any:
        if self._batches is None:
            sampler = KeyedBatches(
                self.samples, self._loading, self._seed, self._share, self._total, (self.epoch, self.offset)
            )
            self._batches = iter(loader(Keyed(self._dataset, self._seed), self._loading, batch_sampler=sampler))
        return next(self._batches)

    def advance(self) -> None:
        self.offset += self._step()
        self._turn()

    def _turn(self) -> None:
        self.epoch, self.offset = turned(self.epoch, self.offset, self._step(), self.samples)

    def close(self) -> None:
        self._batches = None

    def position(self) -> dict[str, int]:
        return {"samples": self.samples, "epoch": self.epoch, "offset": self.offset}

    def states(self) -> dict[int, Any]:
        return {}

    def restore(self, position: Mapping[str, int], states: Mapping[int, Any]) -> None:
        if "samples" not in position:
            raise DataError("data: the checkpoint read streams, and this is a map-style data set: give a function")
        if position["samples"] != self.samples:
            raise DataError(
                f"data: {self.samples} samples, and the checkpoint was made with {position['samples']}. Another "
                "number means another order, so that samples would be read twice or never: give the same data set."
            )
        self.epoch, self.offset = position["epoch"], position["offset"]
        self._turn()


def turned(epoch: int, offset: int, step: int, samples: int) -> tuple[int, int]:
    """The position where the next step of `step` samples begins: in the next epoch if this one has too few left."""
    return (epoch + 1, 0) if offset + step > samples else (epoch, offset)


class KeyedBatches:
    """A batch sampler without an end: lists of ``(epoch, index)``, for the virtual ranks of a share in turn."""

    def __init__(
        self, samples: int, loading: Loading, seed: int, share: range, total: int, position: tuple[int, int]
    ) -> None:
        self._samples, self._loading, self._seed = samples, loading, seed
        self._share, self._total, self._position = share, total, position

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        size = self._loading.batch_size
        drawn, (epoch, offset) = -1, self._position
        order: Any = range(self._samples)
        while True:
            epoch, offset = turned(epoch, offset, self._total * size, self._samples)
            if self._loading.shuffle and drawn != epoch:
                order, drawn = rng.permutation(self._samples, self._seed, "order", epoch), epoch
            for virtual_rank in self._share:
                begin = offset + virtual_rank * size
                yield [(epoch, int(index)) for index in order[begin : begin + size]]
            offset += self._total * size


class Keyed(tud.Dataset):  # type: ignore[misc]
    """Reads each sample under its own key, in whichever process."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: tuple[int, int]) -> Any:
        epoch, index = place
        rng.seed(self._seed, "sample", epoch, index, devices=torch.cuda.is_initialized())
        return self._dataset[index]


@dataclass(frozen=True)
class WorkerStart:
    """`worker_init_fn`: Ctrl-C reaches loader workers too, and the ranks need them until the step before a stop.

    :param then: the script's own
    """

    then: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self.then is not None:
            self.then(worker)


def loader(dataset: Any, loading: Loading, **more: Any) -> Any:
    """A DataLoader. Without loader workers the options that are about them are left out."""
    options = dict(loading.options)
    if loading.num_workers:
        options["worker_init_fn"] = WorkerStart(options.get("worker_init_fn"))
    return tud.DataLoader(dataset, num_workers=loading.num_workers, collate_fn=loading.collate_fn, **options, **more)


def read(
    data: Any, batch_size: int | None, shuffle: bool | None, num_workers: int | None, collate_fn: Any
) -> tuple[Any, Loading]:
    """The data set and the loading of what the script gave: a data set, a function that makes streams, or a DataLoader.

    :raises DataError: no batch size, or a loader whose order is its own
    """
    options: dict[str, Any] = {}
    if isinstance(data, tud.DataLoader):
        if data.batch_size is None:
            raise DataError("data: a DataLoader with its own batch_sampler: give the data set and batch_size instead")
        if not isinstance(data.dataset, tud.IterableDataset):
            shuffle = shuffles(data.sampler) if shuffle is None else shuffle
        batch_size = batch_size or data.batch_size
        num_workers = data.num_workers if num_workers is None else num_workers
        collate_fn = collate_fn or data.collate_fn
        options = {"pin_memory": data.pin_memory, "timeout": data.timeout, "worker_init_fn": data.worker_init_fn}
        if num_workers:
            options |= {
                "prefetch_factor": data.prefetch_factor, "multiprocessing_context": data.multiprocessing_context,
            }  # fmt: skip
        data = data.dataset
    if batch_size is None or batch_size < 1:
        raise DataError(f"batch_size = {batch_size}: give the samples of one micro-batch, 1 or more")
    if num_workers is not None and num_workers < 0:
        raise DataError(f"num_workers = {num_workers}: give 0 or more")
    return data, Loading(batch_size, shuffle is not False, num_workers or 0, collate_fn, options)


def shuffles(sampler: Any) -> bool:
    # A StatefulDataLoader has a class of its own for this. Who has not imported it has none.
    stateful = getattr(sys.modules.get("torchdata.stateful_dataloader.sampler"), "RandomSampler", tud.RandomSampler)
    if isinstance(sampler, (tud.RandomSampler, stateful)) and not sampler.replacement:
        if sampler.num_samples != len(sampler.data_source):
            raise DataError(
                f"data: the loader's RandomSampler draws num_samples = {sampler.num_samples} of "
                f"{len(sampler.data_source)}, and an epoch here reads all. Give the data set, and end with steps."
            )
        return True
    if isinstance(sampler, tud.SequentialSampler):
        return False
    if isinstance(sampler, tud.DistributedSampler):
        return bool(sampler.shuffle)
    raise DataError(
        f"data: the loader's {type(sampler).__name__} chooses the order itself, and cannot be cut for another number "
        "of workers. Give the data set with shuffle=True or False, or a function that makes streams."
    )
