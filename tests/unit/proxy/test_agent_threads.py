"""Operations in threads of the script: a stop waits for them or comes between, and nobody notices."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import needs_torch
from rank_world import Ranks

from singularity_proxy.protocol import page

Start = Callable[..., Ranks]
DUMP_S = 0.2
"""As long as a small dump takes: the threads run on meanwhile."""


@pytest.mark.criu
@pytest.mark.parametrize(
    ("script", "arguments", "world"),
    [pytest.param("async_save.py", ("80", "2", ".."), 2, marks=pytest.mark.full), ("beside.py", ("80",), 2)],
)
def test_stops_meet_collectives_of_a_thread(
    start_ranks: Start, torch_env: Path, script: str, arguments: tuple[str, ...], world: int
) -> None:
    needs_torch(torch_env, (2, 8) if script == "async_save.py" else (2, 6))
    whole = start_ranks("whole", script, *arguments, world=world)
    whole.wait()
    ranks = start_ranks("stopped", script, *arguments, world=world)
    for number in range(1, 5):
        generation = page.generation(1, number)
        frozen = ranks.stop(generation, 15 * number)
        assert [report["sockets"] for report in frozen] == [[]] * world
        time.sleep(DUMP_S)
        ranks.go_on(generation)
    ranks.wait()
    losses = [[(it.cwd(rank) / "losses").read_text() for rank in range(world)] for it in (whole, ranks)]
    assert losses[0] == losses[1]
