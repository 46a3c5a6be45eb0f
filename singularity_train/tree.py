"""The order in which the values of all virtual ranks are added: an aligned segment tree over ``[0, V)``. Pure.

Addition of floating point numbers is not associative. So the order must depend on V alone, never on the workers.
A node ``(start, size)`` has a size that is a power of two, and a start that is a multiple of it. It is the sum of its
two halves. Where V is not a power of two, the nodes at the right edge are folded from the right to the left.

A worker has a contiguous range of virtual ranks and holds the fewest aligned nodes that cover it. Any worker can
finish the tree from the nodes of all, because each node is a node of the one tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Generic, TypeVar

Value = TypeVar("Value")


def shares(virtual_ranks: int, workers: int) -> list[range]:
    """Split ``[0, virtual_ranks)`` into one contiguous range per worker, whose lengths differ by at most one.

    :raises ValueError: fewer virtual ranks than workers, or no workers
    """
    if not 1 <= workers <= virtual_ranks:
        raise ValueError(f"workers = {workers}: give 1 to {virtual_ranks}, one virtual rank or more for each")
    least, more = divmod(virtual_ranks, workers)
    bounds = [worker * least + min(worker, more) for worker in range(workers + 1)]
    return [range(low, high) for low, high in pairwise(bounds)]


def cover(share: range) -> Iterator[tuple[int, int]]:
    """Yield the fewest aligned nodes ``(start, size)`` of a contiguous range, from left to right."""
    low = share.start
    while low < share.stop:
        size = 1 << ((share.stop - low).bit_length() - 1)
        if low:
            size = min(size, low & -low)
        yield low, size
        low += size


class Counter(Generic[Value]):
    """Adds nodes that are pushed from left to right, as a binary counter carries.

    It holds at most ``log2(n) + 1`` values.

    :param add: returns left + right; it may reuse the memory of either
    """

    def __init__(self, add: Callable[[Value, Value], Value]) -> None:
        self._add = add
        self.nodes: list[tuple[int, int, Value]] = []
        """``(start, size, value)``, from left to right."""

    def push(self, start: int, size: int, value: Value) -> None:
        """:param start: where the node before ends"""
        self.nodes.append((start, size, value))
        while len(self.nodes) > 1:
            (left, left_size, _), (_, right_size, _) = self.nodes[-2:]
            if left_size != right_size or left % (2 * left_size):
                return
            self._merge()

    def total(self) -> Value:
        """Fold what is there from the right: the root, if the nodes cover ``[0, V)``.

        :raises IndexError: nothing was pushed
        """
        while len(self.nodes) > 1:
            self._merge()
        return self.nodes[0][2]

    def _merge(self) -> None:
        (start, size, left), (_, more, right) = self.nodes[-2:]
        self.nodes[-2:] = [(start, size + more, self._add(left, right))]
