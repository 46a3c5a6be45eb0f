"""The rendezvous store below the stock PrefixStores: its TCPStore can be dropped and made again, with all it holds.

Rank 0 serves the store. The script's entries in the store are part of the program. Rank 0 reads them when every rank
has stopped, and keeps them in its own memory, and so in its image. It fills the next server with them before another
rank looks.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from . import fork, gate, guard

OURS: Final = "singularity.dev/"
"""In all keys of the agent. They belong to one life of the store and are not kept."""
READY: Final = f"{OURS}ready"
MIN_TIMEOUT: Final = datetime.timedelta(seconds=300)
"""Other pods may still be downloading their images when this rank is ready to meet them."""
LOOK_S: Final = 0.02
"""How often a thread that waits for a key looks, if it is not the one that trains."""
_METHODS = [
    "set",
    "get",
    "add",
    "check",
    "compare_set",
    "delete_key",
    "multi_get",
    "multi_set",
    "append",
    "num_keys",
    "set_timeout",
    "wait",
    "queue_pop",
    "queue_push",
    "queue_len",
    "list_keys",
    "has_extended_api",
]
_VIRTUAL = {"deleteKey": "delete_key", "getNumKeys": "num_keys"}
"""Names that C++, a PrefixStore say, looks for in a store of Python's, where they are not those of `_METHODS`."""
_WAITS = ("get", "multi_get", "wait")
"""Methods that wait until the keys are there, which their first argument names."""
_WRITES = ("set", "add", "compare_set", "multi_set", "append", "queue_push")
"""Methods that may make the keys that their first argument names."""
KEYS: Final = f"{OURS}keys"
"""Where the clients of a store that cannot list its keys (torch before 2.13) list them: one a line, in JSON."""

stores: list[Any] = []
"""Strong references: a Python subclass of a pybind class loses its overrides when only C++ still holds it."""


def _forward(name: str, lists: bool) -> Any:
    waits, writes = name in _WAITS, name in _WRITES and not lists

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if waits:
            _wait_beside(self, *args)
        gate.enter_store()
        try:
            if writes and self.travels:
                _list(self, args)
            return getattr(self.inner, name)(*args, **kwargs)
        finally:
            gate.leave_store()

    method.__name__ = name
    return method


def _list(store: Any, args: Sequence[Any]) -> None:
    """Add the keys that are about to be written to the store's list. Never raises."""
    try:
        keys = [args[0]] if isinstance(args[0], str) else list(args[0])
        new = [key for key in keys if key not in store.listed]
        if new:
            store.inner.append(KEYS, "".join(f"{json.dumps(key)}\n" for key in new))
            store.listed.update(new)
    except Exception as error:
        guard.took(error, "before the script writes to its store")


def _wait_beside(store: Any, *args: Any) -> None:
    """A thread beside the one that trains must not wait for keys in a connection that a stop takes away.

    Returns when they are there, or when `store` itself would give up. Never raises.
    """
    try:
        if not gate.side():
            return
        keys = [args[0]] if isinstance(args[0], str) else list(args[0])
        timeout = args[1] if len(args) > 1 else store.timeout
        deadline = time.monotonic() + timeout.total_seconds()
        while keys and not store.check(keys) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
    except Exception as error:  # also the store's own: the script hears of that from the operation itself
        guard.took(error, "while a thread of the script waits for the store")


def make_store_class(base: Any, broke: Callable[[Exception, str], None]) -> Any:
    """ProxyStore, a subclass of torch's Store.

    :param broke: gets an error after which a store of the script's is out of our hands, and what was being done
    """

    class ProxyStore(base):  # type: ignore[misc]
        def __init__(self, inner: Any, world_size: int) -> None:
            super().__init__()
            self.inner = inner
            self.world_size = world_size
            self.kept_timeout = inner.timeout
            self.travels = type(inner).__name__ == "TCPStore"
            """It is a server's, or its clients'. Others, of files say, stay as they are."""
            self.listed: set[str] = set()
            """Keys that this client has put into the store's list."""
            self.made_for = 0
            stores.append(self)

        def clone(self) -> Any:
            gate.enter_store()
            try:
                before = fork.seen()
                inner = self.inner.clone()
                fork.communication(before)
            finally:
                gate.leave_store()
            try:
                return ProxyStore(inner, self.world_size)
            except Exception as error:
                broke(error, "after the script has cloned its store")
                return inner

        @property
        def timeout(self) -> Any:
            return self.kept_timeout if self.inner is None else self.inner.timeout

        def rebuild(self, tcp_store: Any, generation: int, serves: bool, clients: int, address: str, port: int) -> None:
            """Once for each generation, however often it is called."""
            if self.made_for != generation:
                self.inner = tcp_store(
                    address, port, clients, serves, multi_tenant=True, use_libuv=False,
                    timeout=max(self.kept_timeout, MIN_TIMEOUT),
                )  # fmt: skip
                self.made_for = generation
            self.inner.set_timeout(self.kept_timeout)

    lists = hasattr(base, "list_keys")
    for name in _METHODS:
        if hasattr(base, name):
            setattr(ProxyStore, name, _forward(name, lists))
    for theirs, name in _VIRTUAL.items():
        setattr(ProxyStore, theirs, _forward(name, lists))
    return ProxyStore


def connection(store: Any) -> Any:
    """Another connection to the server of `store`, one of torch's."""
    if hasattr(store, "clone"):
        return store.clone()
    # torch before 2.8
    return type(store)(
        store.host, store.port, None, False, timeout=store.timeout, wait_for_workers=False, use_libuv=False
    )


_content: dict[str, bytes] | None = None
"""Between two servers, on the rank that serves: what the last one held."""
_server = 0
"""The rank that serves: the first that has not ended."""
dropped_for = 0
"""Generation of the last stop whose `drop` has succeeded."""


def drop(rank: int, generation: int) -> None:
    """Let go of the connections, and on the rank that serves of the server, whose content is kept. Every rank has
    stopped: nobody writes. After an error everything is as it was, but that nobody comes to the store; to be called
    again then."""
    global _content, dropped_for
    gate.store_closed = gate.identity()
    while not gate.store_idle():
        time.sleep(gate.POLL_S)
    found: dict[str, bytes] = {}
    for store in stores:
        if store.travels and store.inner is not None:
            store.kept_timeout = store.inner.timeout
            if rank == _server:
                found.update(content(store.inner))
    if _content is None:
        _content = found
    for store in stores:
        if store.travels:
            store.inner = None
    dropped_for = generation


def exchange(name: str, rank: int, words: str, ended: Collection[int] = ()) -> list[bytes]:
    """What every rank says that has not ended. Waits for all of them; to be called once the store is there again."""
    meeting = next((store for store in stores if store.travels), stores[0] if stores else None)
    if meeting is None:
        return []
    keys = [f"{OURS}{name}/{other}" for other in range(meeting.world_size) if other not in ended]
    meeting.inner.set(f"{OURS}{name}/{rank}", words)
    meeting.inner.wait(keys, max(meeting.kept_timeout, MIN_TIMEOUT))
    if meeting.inner.has_extended_api():
        return list(meeting.inner.multi_get(keys))
    return [meeting.inner.get(key) for key in keys]


def content(store: Any) -> dict[str, bytes]:
    """What the script, and torch for it, has put into `store`. Counters are their digits, as the store has them."""
    keys = [key for key in _keys(store) if OURS not in key]
    found = dict(zip(keys, store.multi_get(keys), strict=True)) if keys else {}
    if not hasattr(store, "list_keys"):
        found |= {KEYS: store.get(KEYS)} if store.check([KEYS]) else {}
    return found


def _keys(store: Any) -> list[str]:
    if hasattr(store, "list_keys"):
        return list(store.list_keys())
    if not store.check([KEYS]):
        return []
    listed = dict.fromkeys(json.loads(line) for line in store.get(KEYS).decode().splitlines())
    return [key for key in listed if store.check([key])]


def rebuild(tcp_store: Any, generation: int, rank: int, address: str, port: int, ended: Collection[int] = ()) -> None:
    """Meet the other ranks at `address:port`. Returns when the content of before is there, and lets others come.

    :param ended: ranks that have ended. If one of them has served the store, its content ended with it
    """
    global _content, _server
    _server = next(other for other in range(rank + 1) if other not in ended)
    for store in stores:
        if store.travels:
            clients = store.world_size - len(ended)
            store.rebuild(tcp_store, generation, rank == _server, clients, address, port)
    meeting = next((store for store in stores if store.travels), None)
    if meeting is not None:
        ready = f"{READY}/{generation}"
        if rank == _server:
            if _content:
                meeting.inner.multi_set(list(_content), list(_content.values()))
            meeting.inner.set(ready, "")
        meeting.inner.wait([ready], max(meeting.kept_timeout, MIN_TIMEOUT))
    _content = None
    gate.store_closed = 0
