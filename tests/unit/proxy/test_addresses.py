"""In how few pods ranks have room that hold ports."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from singularity_proxy.protocol import addresses, placement

Address = st.sampled_from(["tcp 127.0.0.1:80", "tcp 0.0.0.0:80", "unix @a", "unix @b:80"])
Held = st.dictionaries(st.integers(0, 7), st.lists(Address, max_size=2))


@given(held=Held, workers=st.integers(1, 8))
def test_every_pod_has_room_for_its_ranks_down_to_the_fewest_and_not_below(
    held: dict[int, list[str]], workers: int
) -> None:
    def room(pods: int) -> bool:
        return not any(
            addresses.clash(mine, theirs)
            for one, other in itertools.combinations(held, 2)
            if placement.index_of(one, pods, 8) == placement.index_of(other, pods, 8)
            and placement.index_of(one, workers, 8) != placement.index_of(other, workers, 8)
            for mine, theirs in itertools.product(held[one], held[other])
        )

    fewest, why = addresses.fewest_pods(8, workers, held)
    assert all(room(pods) for pods in range(fewest, workers + 1))
    assert (fewest == 1) == (why == "") and (fewest == 1 or not room(fewest - 1))


def test_a_thousand_ranks_with_one_port_are_told_at_once() -> None:
    held = {rank: ["tcp 0.0.0.0:80"] for rank in range(1000)}
    fewest, why = addresses.fewest_pods(1000, 1000, held)
    assert fewest == 1000 and why.startswith("on 999 pods ranks 0 and 1 would share one")
