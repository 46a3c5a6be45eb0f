"""What a script keeps in the default store is there after a stop, on every rank; what the agent puts there is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rank_world import Ranks

from proxy.agent import store
from proxy.protocol import page

Start = Callable[..., Ranks]


class Server:
    """What a TCPStore keeps."""

    def __init__(self, **entries: bytes) -> None:
        self.entries = entries

    def list_keys(self) -> list[str]:
        return list(self.entries)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        assert keys, "torch would wait for ever"
        return [self.entries[key] for key in keys]


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        ({}, {}),
        ({f"{store.OURS}ready/5": b""}, {}),
        ({"a": b"1", f"default_pg/0//cpu//{store.OURS}5/1": b"x"}, {"a": b"1"}),
    ],
)
def test_what_is_kept(entries: dict[str, bytes], kept: dict[str, bytes]) -> None:
    server: Any = Server(**entries)
    assert store.content(server) == kept


@pytest.mark.criu
def test_keys_of_the_script_survive_stops(start_ranks: Start) -> None:
    steps, world = 60, 3
    ranks = start_ranks("world", "store_keys.py", str(steps), world=world)
    for number in (1, 2):
        generation = page.generation(1, number)
        ranks.stop(generation, 20 * number)
        ranks.go_on(generation)
    ranks.wait()
    assert ranks.log().count("all as it was") == world, ranks.log()
