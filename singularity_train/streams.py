"""Iterable data sets: one stream per virtual rank, which moves to whichever worker has that virtual rank.

A stream's state is taken with each batch, where the batch is made: in the loader's process, if there are some. So the
state that is saved is that after the last batch which was trained on, however many were fetched ahead. A loader's
process serves several streams in turn; how many processes there are changes nothing.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.utils.data as tud

from . import rng
from .data import Loading, loader
from .errors import DataError

Make = Callable[[int, int], Any]
"""``make(virtual_rank, virtual_ranks)``: an iterable, with `state_dict` and `load_state_dict` if it can say where it
is."""
BUFFERS = ("BufferShuffledExamplesIterable", "ShufflerIterDataPipe")
WITHIN = ("_ex_iterable", "ex_iterable", "source_datapipe", "datapipe", "main_datapipe", "dataset", "_dataset")
"""Attributes in which these keep what they read from."""
log = logging.getLogger("singularity_train")


def shuffle_buffer(source: Any) -> str:
    """Name of the class within `source` that keeps samples back, "" for none that is known: those of Hugging Face's
    `datasets` and of torch's data pipes."""
    seen: set[int] = set()
    rest = [source]
    while rest:
        each = rest.pop()
        name = type(each).__name__
        if name in BUFFERS:
            return name
        inner = getattr(each, "__dict__", {})
        seen.add(id(each))
        rest += [value for key, value in inner.items() if key in WITHIN and id(value) not in seen]
    return ""


class Stream:
    """Batches of one virtual rank, without an end: a stream that is over begins again."""

    def __init__(self, make: Make, place: tuple[int, int], loading: Loading, seed: int, state: Any) -> None:
        self._virtual_rank, self._seed, self._loading = place[0], seed, loading
        self._source, self._batches, self._items = make(*place), 0, iter(())
        buffer = shuffle_buffer(self._source)
        if buffer:
            raise DataError(
                f"data: the stream of virtual rank {place[0]} shuffles in a buffer ({buffer}). Its state_dict has no "
                "samples that wait in it, so each stop would lose them. Shuffle the shards or the files, or give a "
                "map-style data set."
            )
        self._keeps = hasattr(self._source, "state_dict") and hasattr(self._source, "load_state_dict")
        if state is None:
            return
        if self._keeps:
            self._batches = state["batches"]
            self._source.load_state_dict(state["source"])
            return
        log.warning(
            "the stream of virtual rank %d has no state_dict: %d batches are read again to find the place",
            self._virtual_rank, state["batches"],
        )  # fmt: skip
        for _ in range(state["batches"]):
            self._draw()

    def batch(self) -> tuple[Any, Any]:
        """A batch, and the state after it."""
        samples = self._draw()
        source = copy.deepcopy(self._source.state_dict()) if self._keeps else None
        collate = self._loading.collate_fn or tud.default_collate
        return collate(samples), {"batches": self._batches, "source": source}

    def _draw(self) -> list[Any]:
        rng.seed(self._seed, "stream", self._virtual_rank, self._batches)
        self._batches += 1
        samples: list[Any] = []
        passes = 0
        while len(samples) < self._loading.batch_size:
            before = len(samples)
            samples.extend(itertools.islice(self._items, self._loading.batch_size - before))
            passes = passes + 1 if len(samples) == before else 0
            if passes > 2:
                raise DataError(
                    f"data: the stream of virtual rank {self._virtual_rank} gives no samples. "
                    "A stream that is over has to begin again at its next __iter__."
                )
            if len(samples) < self._loading.batch_size:
                self._items = iter(self._source)
        return samples


class Served(tud.IterableDataset):  # type: ignore[misc]
    """The streams that one process reads, in turn. It makes them itself, so that they need not be pickled.

    :param states: of the virtual ranks that have read something
    """

    def __init__(
        self, make: Make, ranks: Sequence[int], total: int, loading: Loading, seed: int, states: Mapping[int, Any]
    ) -> None:
        self._make, self._ranks, self._total = make, list(ranks), total
        self._loading, self._seed, self._states = loading, seed, dict(states)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        streams = [
            Stream(self._make, (rank, self._total), self._loading, self._seed, self._states.get(rank))
            for rank in self._ranks
        ]
        while True:
            for stream in streams:
                yield stream.batch()


class StreamSource:
    """Of a function that makes one stream per virtual rank."""

    def __init__(self, make: Make, loading: Loading, seed: int) -> None:
        self._make, self._loading, self._seed = make, loading, seed
        self._states: dict[int, Any] = {}
        self._share, self._total = range(0), 0
        self._readers: list[Iterator[tuple[Any, Any]]] = []

    @property
    def epoch(self) -> None:
        """Each stream begins again when it is over."""

    def start(self, share: range, total: int) -> None:
        self.close()
        self._share, self._total = share, total

    def batch(self, virtual_rank: int) -> Any:
        if not self._readers:
            self._readers = [iter(self._open(ranks)) for ranks in self._groups()]
        reader = self._readers[(virtual_rank - self._share.start) % len(self._readers)]
        batch, self._states[virtual_rank] = next(reader)
        return batch

    def _groups(self) -> list[range]:
        """The virtual ranks of each reading process; all of them in one group where there is no such process."""
        count = max(1, min(self._loading.num_workers, len(self._share)))
        return [self._share[first::count] for first in range(count)]

    def _open(self, ranks: range) -> Any:
        served = Served(self._make, ranks, self._total, self._loading, self._seed, self._states)
        one = replace(self._loading, num_workers=min(1, self._loading.num_workers), collate_fn=None)
        return loader(served, one, batch_size=None)

    def advance(self) -> None:
        """Each stream has its own place."""

    def close(self) -> None:
        self._readers = []

    def position(self) -> dict[str, int]:
        return {}

    def states(self) -> dict[int, Any]:
        return {rank: self._states.get(rank) for rank in self._share}

    def restore(self, position: Mapping[str, int], states: Mapping[int, Any]) -> None:
        if "samples" in position:
            raise DataError("data: the checkpoint read a map-style data set, and this is a function that makes streams")
        self._states = {rank: state for rank, state in states.items() if state is not None}
