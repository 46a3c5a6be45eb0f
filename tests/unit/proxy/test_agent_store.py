"""What a script keeps in the default store is there after a stop, on every rank; what the agent puts there is not."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from rank_world import Ranks

from singularity_proxy.agent import store
from singularity_proxy.protocol import page

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


def test_a_store_that_cannot_be_cloned_is_connected_to_once_more() -> None:
    """torch before 2.8."""

    class Client:
        host, port, timeout = "10.0.0.1", 29500, datetime.timedelta(seconds=7)

        def __init__(self, *args: object, **words: object) -> None:
            self.given = (args, words)

    args, words = store.connection(Client()).given
    assert args == ("10.0.0.1", 29500, None, False), "no server"
    assert words == {"timeout": datetime.timedelta(seconds=7), "wait_for_workers": False, "use_libuv": False}


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


class Meeting(Server):
    """A store of files has no `multi_get`."""

    def __init__(self, extended: bool, world_size: int) -> None:
        super().__init__()
        self.inner, self.extended, self.world_size, self.travels = self, extended, world_size, False
        self.kept_timeout = datetime.timedelta(seconds=1)

    def has_extended_api(self) -> bool:
        return self.extended

    def set(self, key: str, value: str) -> None:
        self.entries[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.entries[key]

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:
        assert timeout >= store.MIN_TIMEOUT and set(keys) <= set(self.entries), "it would wait for ever"

    def multi_get(self, keys: list[str]) -> list[bytes]:
        assert self.extended
        return super().multi_get(keys)


@pytest.mark.parametrize("extended", [False, True])
def test_all_that_have_not_ended_hear_each_other(extended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting: Any = Meeting(extended, 3)
    meeting.set(f"{store.OURS}x/2", "theirs")
    monkeypatch.setattr(store, "stores", [meeting])
    assert store.exchange("x", 0, "mine", [1]) == [b"mine", b"theirs"]
    monkeypatch.setattr(store, "stores", [])
    assert store.exchange("x", 0, "mine") == []


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
