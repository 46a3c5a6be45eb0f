"""The order of additions, for any V and any number of workers. Pure; the module is loaded by itself, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from module_files import loaded

PATH = Path(__file__).parents[3] / "singularity_train" / "tree.py"
tree = loaded(PATH, "tree_of_sums")

WORLDS = st.integers(1, 70).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


def bracket(left: str, right: str) -> str:
    return f"({left}+{right})"


def reference(low: int, high: int) -> str:
    """By recursion: the largest power of two on the left, if it is aligned there."""
    if high - low == 1:
        return str(low)
    half = 1 << ((high - low - 1).bit_length() - 1)
    return bracket(reference(low, low + half), reference(low + half, high))


@given(WORLDS)
def test_every_number_of_workers_adds_in_the_order_of_one(world: tuple[int, int]) -> None:
    count, workers = world
    root = tree.Counter(bracket)
    for share in tree.shares(count, workers):
        mine = tree.Counter(bracket)
        for rank in share:
            mine.push(rank, 1, str(rank))
        assert [(start, size) for start, size, _ in mine.nodes] == list(tree.cover(share))
        for node in mine.nodes:
            root.push(*node)
    assert root.total() == reference(0, count)


@given(WORLDS)
def test_shares_are_all_of_it_and_nearly_equal(world: tuple[int, int]) -> None:
    count, workers = world
    shares = tree.shares(count, workers)
    assert [rank for share in shares for rank in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(0, 200), st.integers(1, 200))
def test_a_cover_has_aligned_nodes_and_few(low: int, length: int) -> None:
    nodes = list(tree.cover(range(low, low + length)))
    assert [rank for start, size in nodes for rank in range(start, start + size)] == list(range(low, low + length))
    assert all(size & (size - 1) == 0 and start % size == 0 for start, size in nodes)
    assert len(nodes) <= 2 * length.bit_length()


@given(st.integers(1, 300))
def test_few_values_are_held(count: int) -> None:
    counter, most = tree.Counter(bracket), 0
    for rank in range(count):
        counter.push(rank, 1, str(rank))
        most = max(most, len(counter.nodes))
    assert most <= count.bit_length()


@given(st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=40), st.data())
def test_sums_of_floats_have_the_same_bits(values: list[float], data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, len(values)))
    sums = set()
    for count in (1, workers):
        root = tree.Counter(lambda left, right: left + right)
        for share in tree.shares(len(values), count):
            mine = tree.Counter(lambda left, right: left + right)
            for rank in share:
                mine.push(rank, 1, values[rank])
            for node in mine.nodes:
                root.push(*node)
        sums.add(str(root.total()))
    assert len(sums) == 1


@pytest.mark.parametrize(("count", "workers"), [(4, 5), (0, 1), (3, 0)])
def test_a_worker_without_a_virtual_rank(count: int, workers: int) -> None:
    with pytest.raises(ValueError, match=f"workers = {workers}"):
        tree.shares(count, workers)
