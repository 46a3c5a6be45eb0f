"""How the seconds of several ranks are put together."""

from __future__ import annotations

from benchmarks import virtual_ranks


def test_a_step_of_virtual_ranks_is_over_with_its_slowest_rank_and_costs_what_all_use():
    rank_0 = [[[0.1, 0.08], [0.2, 0.1]]]
    rank_1 = [[[0.3, 0.04], [0.1, 0.1]]]
    assert virtual_ranks.compared([rank_0, rank_1], 0, max) == [(0.3, 0.2)]
    assert virtual_ranks.compared([rank_0, rank_1], 1, sum) == [(0.12, 0.2)]
