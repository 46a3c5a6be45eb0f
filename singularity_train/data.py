"""What a job reads from: batches for virtual ranks, and a position that any number of workers can go on from.

A map-style data set is shuffled by a key, so its position is an epoch and a number of samples. A sampler of the
script's own draws the order of an epoch under that key, too. What loader workers have fetched ahead is dropped at a
stop and fetched again. Each sample is read under a key of its own, which makes random augmentation the same for any
number of loader workers.
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

    :param batch_size: samples of one batch; where `sampler` gives whole batches, they count as samples, and it is 1
    :param sampler: gives the order of an epoch; None: `shuffle` says it
    :param batches: whether `sampler` gives whole batches
    :param options: further keywords of DataLoader
    """

    batch_size: int
    shuffle: bool = True
    sampler: Any = None
    batches: bool = False
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


class Read:
    """The batches of one step, which a second `backward` reads again."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._batches: dict[int, Any] = {}

    def batch(self, virtual_rank: int) -> Any:
        if virtual_rank not in self._batches:
            self._batches[virtual_rank] = self._source.batch(virtual_rank)
        return self._batches[virtual_rank]


class MapSource:
    """Of a data set with `__len__` and `__getitem__`. The last samples of an epoch that fill no global batch are left
    out, other ones in each epoch where it shuffles.

    :param total: batches of one step, over all workers: virtual ranks, or workers
    :raises DataError: too few samples for one step
    """

    def __init__(self, dataset: Any, loading: Loading, seed: int, total: int) -> None:
        self._dataset, self._loading, self._seed = dataset, loading, seed
        self.samples = len(dataset) if loading.sampler is None else length_of(loading.sampler)
        self.epoch = self.offset = 0
        self._orders = Orders(self.samples, loading, seed)
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
            sampler = KeyedBatches(self._orders, self._loading, self._share, self._total, (self.epoch, self.offset))
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
        return {"samples": self.samples, "epoch": self.epoch, "offset": self.offset, **self._orders.mark(self.epoch)}

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
        self._orders.expect(self.epoch, position.get("order"))
        self._turn()


def length_of(sampler: Any) -> int:
    """Samples of an epoch, or batches.

    :raises DataError: the sampler does not say
    """
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        raise DataError(
            f"data: the loader's {type(sampler).__name__} has no length. Give it a __len__, which says how many "
            "samples an epoch has."
        ) from None


class Orders:
    """The order of each epoch, by a key of its own.

    A sampler of the script's own draws from torch's, numpy's and Python's global generators, or from its attribute
    `generator`: all of them are seeded with the key. What else it may depend on is seen by drawing twice, and by
    comparing with what the checkpoint's attempt has drawn.
    """

    def __init__(self, samples: int, loading: Loading, seed: int) -> None:
        self.samples, self._loading, self._seed = samples, loading, seed
        self._drawn: tuple[int, Any] = (-1, None)
        self._marks: dict[int, int] = {}
        self._expected: dict[int, int] = {}
        self._sure = False

    def of(self, epoch: int) -> Any:
        """Indices, or lists of them where the sampler gives whole batches.

        :raises DataError: the sampler's order is not the key's alone
        """
        if not self._loading.shuffle and self._loading.sampler is None:
            return range(self.samples)
        if self._drawn[0] != epoch:
            self._drawn = (epoch, self._draw(epoch))
        return self._drawn[1]

    def mark(self, epoch: int) -> dict[str, int]:
        """What tells the present order of a sampler from another one; nothing if an epoch has not begun."""
        return {"order": self._marks[epoch]} if epoch in self._marks else {}

    def expect(self, epoch: int, mark: int | None) -> None:
        """The epoch's order has to be the one with this mark. None: there is none yet."""
        self._expected = {} if mark is None else {epoch: mark}

    def _draw(self, epoch: int) -> Any:
        if self._loading.sampler is None:
            return rng.permutation(self.samples, self._seed, "order", epoch)
        order = self._ask(epoch)
        mark = rng.key(repr(order))
        again = order if self._sure else self._ask(epoch)
        self._sure = True
        name = type(self._loading.sampler).__name__
        if order != again or (epoch in self._expected and self._expected[epoch] != mark):
            when = "than when the checkpoint was made" if order == again else "each time it is asked"
            raise DataError(
                f"data: the loader's {name} gives another order for epoch {epoch} {when}, so that samples would be "
                "read twice or never. Let it draw from torch's global generator or from its attribute `generator`, and "
                "depend on nothing that changes in the training."
            )
        # Loader workers may be an epoch ahead of the position.
        self._marks = {each: known for each, known in self._marks.items() if each + 1 >= epoch} | {epoch: mark}
        if len(order) != self.samples:
            raise DataError(
                f"data: the loader's {name} gave {len(order)} for epoch {epoch}, and its length is {self.samples}. "
                "Let __len__ say how many it gives, the same in all epochs."
            )
        return order

    def _ask(self, epoch: int) -> list[Any]:
        """Seeding all that it can draw from; the generators of the script are as before afterwards."""
        sampler = self._loading.sampler
        within = [sampler, getattr(sampler, "sampler", None)]
        for each in within:
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
        with rng.kept():
            rng.seed(self._seed, "order", epoch, devices=False)
            for each in within:
                generator = getattr(each, "generator", None)
                if isinstance(generator, torch.Generator):
                    generator.manual_seed(rng.key(self._seed, "order", epoch))
            return [[*map(int, each)] if isinstance(each, (list, tuple)) else int(each) for each in sampler]


def turned(epoch: int, offset: int, step: int, samples: int) -> tuple[int, int]:
    """The position where the next step of `step` samples begins: in the next epoch if this one has too few left."""
    return (epoch + 1, 0) if offset + step > samples else (epoch, offset)


class KeyedBatches:
    """A batch sampler without an end: lists of ``(epoch, index)``, for the virtual ranks of a share in turn."""

    def __init__(self, orders: Orders, loading: Loading, share: range, total: int, position: tuple[int, int]) -> None:
        self._orders, self._loading = orders, loading
        self._share, self._total, self._position = share, total, position

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        size = self._loading.batch_size
        epoch, offset = self._position
        while True:
            epoch, offset = turned(epoch, offset, self._total * size, self._orders.samples)
            order = self._orders.of(epoch)
            for virtual_rank in self._share:
                begin = offset + virtual_rank * size
                for batch in order[begin : begin + size] if self._loading.batches else [order[begin : begin + size]]:
                    yield [(epoch, int(index)) for index in batch]
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

    :raises DataError: no batch size, or a sampler that cannot be divided
    """
    options: dict[str, Any] = {}
    sampler, batches = None, False
    if isinstance(data, tud.DataLoader):
        batches = data.batch_size is None and data.batch_sampler is not None
        if batches and batch_size is not None:
            raise DataError(f"batch_size = {batch_size}: the loader's batch_sampler makes the batches. Leave one out.")
        if not isinstance(data.dataset, tud.IterableDataset) and shuffle is None:
            sampler = own(data.batch_sampler if batches else data.sampler)
            shuffle = shuffles(data.sampler) if sampler is None else True
        batch_size = 1 if batches else batch_size or data.batch_size
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
    return data, Loading(batch_size, shuffle is not False, sampler, batches, num_workers or 0, collate_fn, options)


def own(sampler: Any) -> Any:
    """The loader's sampler where it chooses the order itself; None for torch's usual ones, whose work is done here.

    :raises DataError: a batch sampler that reads the share of one rank
    """
    inner = getattr(sampler, "sampler", None)
    if isinstance(inner, tud.DistributedSampler):
        raise DataError(
            f"data: the loader's {type(sampler).__name__} reads the share of one rank (DistributedSampler). Give it a "
            "sampler of the whole data set: its batches go to the ranks in turn."
        )
    usual = isinstance(sampler, (tud.SequentialSampler, tud.DistributedSampler)) or _is_whole(sampler)
    return None if usual else sampler


def _is_whole(sampler: Any) -> bool:
    """Whether it shuffles all samples."""
    # A StatefulDataLoader has a class of its own for this. Who has not imported it has none.
    stateful = getattr(sys.modules.get("torchdata.stateful_dataloader.sampler"), "RandomSampler", tud.RandomSampler)
    whole = isinstance(sampler, (tud.RandomSampler, stateful)) and not sampler.replacement
    return whole and sampler.num_samples == len(sampler.data_source)


def shuffles(sampler: Any) -> bool:
    """Whether one of torch's usual samplers shuffles.

    :raises DataError: another one
    """
    if own(sampler) is not None:
        raise DataError(
            f"data: the loader's {type(sampler).__name__} chooses the order itself, and this adapter knows "
            "shuffle=True and False only. Use the loop of the library (attach), which takes samplers."
        )
    return bool(sampler.shuffle) if isinstance(sampler, tud.DistributedSampler) else _is_whole(sampler)
