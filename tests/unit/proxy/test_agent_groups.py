"""Groups that the script has destroyed hold nothing, and stops do not make them again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rank_world import Ranks

from singularity_proxy.agent.groups import Gone
from singularity_proxy.protocol import page

Start = Callable[..., Ranks]


@pytest.mark.criu
@pytest.mark.parametrize("groups", [100, pytest.param(500, marks=pytest.mark.full)])
def test_destroyed_groups_leave_nothing_behind_over_stops(start_ranks: Start, groups: int) -> None:
    """After an even number of steps rank 1 has a group that rank 0 has destroyed."""
    ranks = start_ranks("world", "destroyed_groups.py", str(groups), world=2)
    for number, step in enumerate((groups // 8, groups // 2, groups // 2 + 9), 1):
        generation = page.generation(1, number)
        ranks.stop(generation, step)
        ranks.go_on(generation)
    ranks.wait()
    assert ranks.log().count("0 and 0 more") == 2, ranks.log()


def test_a_group_that_another_rank_has_destroyed_can_be_destroyed_and_not_used() -> None:
    gone = Gone()
    gone.abort()
    gone.shutdown()
    with pytest.raises(RuntimeError, match="allreduce: a rank of this process group has destroyed it"):
        gone.allreduce([])
