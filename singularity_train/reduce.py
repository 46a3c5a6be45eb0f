"""Sums over all virtual ranks that have the same bits for every number of workers.

The values of a virtual rank are a list of tensors. Locally they are added tensor by tensor, without a copy. On the
wire they are one vector per dtype and device. An all-to-all brings each worker one slice of the nodes of all. The
worker finishes the tree for its slice, and an all-gather brings the slices together. Addition works element by
element, so the slices change no bits. A worker sends ``(nodes + 1) (k - 1) / k`` times the vector, which is a ring's
share where k is a power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import tree

Values = list["torch.Tensor | None"]
"""None: this virtual rank has no such value, as a parameter that its loss does not use has no gradient."""
LINE = 64
"""Bytes. Each tensor begins where torch would have put it, so that kernels treat it as one of its own."""


def world() -> tuple[int, int]:
    """Rank and world size; 0 and 1 where torch.distributed is not initialised."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gathered(value: Any) -> list[Any]:
    """One value from each rank. Collective."""
    workers = world()[1]
    if workers == 1:
        return [value]
    values: list[Any] = [None] * workers
    dist.all_gather_object(values, value)
    return values


def first_of(problem: str) -> str:
    """The first problem that a rank has, the same on all ranks; "": none has one. Collective."""
    return next(filter(None, gathered(problem)), "")


def add(left: Values, right: Values) -> Values:
    """Return left + right, in place of left. A value that only one side has is taken as it is."""
    pairs = [(x, y) for x, y in zip(left, right, strict=True) if x is not None and y is not None]
    if pairs:
        torch._foreach_add_([x for x, _ in pairs], [y for _, y in pairs])
    return [y if x is None else x for x, y in zip(left, right, strict=True)]


class Layout:
    """Where each tensor lies in the vectors of the wire.

    :param like: one tensor for each value, of its shape, strides, dtype and device
    """

    def __init__(self, like: Sequence[Any]) -> None:
        self._places: list[tuple[Any, int, Any, Any]] = []
        self.lengths: dict[tuple[Any, Any], int] = {}
        """(dtype, device) -> elements."""
        for tensor in like:
            kind = (tensor.dtype, tensor.device)
            offset = self.lengths.get(kind, 0)
            # Those that autograd gives the gradient, and `empty_like` keeps for a dense tensor of any order.
            strides = torch.empty_like(tensor, device="meta").stride()
            self._places.append((kind, offset, tensor.shape, strides))
            line = LINE // tensor.element_size()
            self.lengths[kind] = offset + -(-tensor.numel() // line) * line

    def pack(self, values: Values, parts: int) -> dict[tuple[Any, Any], Any]:
        """One vector per dtype and device, whose length is a multiple of `parts`.

        What is absent becomes -0.0, the one number that changes no other when it is added. What lies between the
        tensors is never read.
        """
        vectors = {
            (dtype, device): torch.empty(-(-length // parts) * parts, dtype=dtype, device=device)
            for (dtype, device), length in self.lengths.items()
        }
        views = self.unpack(vectors)
        present = [(view, value) for view, value in zip(views, values, strict=True) if value is not None]
        if present:
            torch._foreach_copy_([view for view, _ in present], [value for _, value in present])
        for view, value in zip(views, values, strict=True):
            if value is None:
                view.fill_(-0.0)
        return vectors

    def unpack(self, vectors: dict[tuple[Any, Any], Any]) -> list[Any]:
        """Views of the vectors, one for each value."""
        return [
            torch.as_strided(vectors[kind], shape, strides, offset) for kind, offset, shape, strides in self._places
        ]


def total(counter: tree.Counter[Values], layout: Layout, virtual_ranks: int) -> Values:
    """Sum over all virtual ranks, the same bits on every worker. Collective.

    A value is None only where no virtual rank of a sole worker has it; of several workers all get a tensor.

    :param counter: has been given the virtual ranks of this worker
    """
    rank, workers = world()
    if workers == 1:
        return counter.total()
    packed = [layout.pack(values, workers) for _, _, values in counter.nodes]
    covers = [list(tree.cover(share)) for share in tree.shares(virtual_ranks, workers)]
    sums = {kind: _finish([vectors[kind] for vectors in packed], covers, rank) for kind in layout.lengths}
    return list(layout.unpack(sums))


def _finish(mine: Sequence[Any], covers: Sequence[Sequence[tuple[int, int]]], rank: int) -> Any:
    """The sum of the nodes of all workers.

    :param mine: the vectors of this worker's nodes, each with a slice for each worker
    :param covers: the nodes of each worker
    """
    workers = len(covers)
    part = mine[0].numel() // workers
    slices = [[vector[worker * part : (worker + 1) * part] for vector in mine] for worker in range(workers)]
    sent = [each[0] if len(each) == 1 else torch.cat(each) for each in slices]
    got = [mine[0].new_empty(len(cover) * part) for cover in covers]
    got[rank] = sent[rank]
    _swap(sent, got, rank)
    counter: tree.Counter[Any] = tree.Counter(lambda left, right: left.add_(right))
    for cover, pieces in zip(covers, got, strict=True):
        for (start, size), piece in zip(cover, pieces.split(part), strict=True):
            counter.push(start, size, piece)
    whole = mine[0].new_empty(workers * part)
    parts = list(whole.split(part))
    parts[rank].copy_(counter.total())
    _swap([parts[rank]] * workers, parts, rank)
    return whole


def _swap(sent: Sequence[Any], got: Sequence[Any], rank: int) -> None:
    """Send one tensor to each other worker, and receive one from each.

    With gloo this takes half the time of its all-gather, and with the two of them the time of its all-reduce.
    """
    operations = []
    for distance in range(1, len(sent)):
        to, source = (rank + distance) % len(sent), (rank - distance) % len(sent)
        operations.append(dist.P2POp(dist.isend, sent[to], to))
        operations.append(dist.P2POp(dist.irecv, got[source], source))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
