"""The parts of an upload are those of the store."""

from __future__ import annotations

from benchmarks import chunk_cost
from singularity_proxy.store import draft

SIZE = 1 << 20


def test_every_part_of_both_contents_costs_something() -> None:
    for content in chunk_cost.contents(SIZE).values():
        costs = chunk_cost.costs(content, turns=1)
        assert {"cut", "sha256 of each chunk", "sha256 of the whole", "packs"} <= costs.keys()
        assert all(cost >= 0 for cost in costs.values())
        assert costs["sha256 of each chunk"] > 0


def test_weights_are_stored_as_they_are_and_repetition_is_not() -> None:
    """Weights would shrink by less than what their compression is worth."""
    weights = chunk_cost.contents(SIZE)["float32, normal"]
    chunks = [weights[at : at + 8192] for at in range(0, SIZE, 8192)]
    assert chunk_cost.packed(chunks) > SIZE
    words = memoryview(b"loss 0.123, step " * (SIZE // 17))
    assert chunk_cost.packed([words[at : at + 8192] for at in range(0, len(words), 8192)]) < draft.WORTH * SIZE
