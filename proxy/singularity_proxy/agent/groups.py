"""The groups that the script has made: all their backends are dropped together, and made again in the same order.

A group that the script has destroyed ends at once and is not made again. Another rank may not have come to that line
yet: it hears of it when they meet after a stop (`rebuild`), and does not wait for the others in that group. Nor is a
group made again if one of its ranks has ended.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from . import fork, gate, shared_device, store
from .store import stores

# Strong references: a Python subclass of a pybind class loses its overrides when only C++ still holds it.
backends: list[Any] = []
destroyed: list[str] = []
"""Channels of the groups that the script has destroyed since the last meeting. What was issued on them still counts:
another rank may be behind there."""
epoch = 0
"""How often the script has destroyed all its groups."""


class Gone:
    """In the place of a backend whose group a rank has destroyed, or has left by its end."""

    def abort(self) -> None:
        """Nothing is under way."""

    shutdown = abort

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: a rank of this process group has destroyed it or has ended, so it is gone")


def forget() -> None:
    """The script has destroyed all its groups."""
    global epoch
    epoch += 1
    for backend in backends:
        backend.inner = None
    for known in stores:
        known.inner = None
    backends.clear()
    destroyed.clear()
    stores.clear()
    gate.forget()
    shared_device.close()


def destroy(group: str) -> None:
    """The script has destroyed the group of this name: its connections and threads end."""
    gate.enter("", place=False)  # a stop may be under way in another thread, which makes groups again
    try:
        for backend in [backend for backend in backends if backend.group == group]:
            if not isinstance(backend.inner, Gone):
                destroyed.append(backend.channel)  # first: the others must hear of it
            backend.inner = Gone()
            backends.remove(backend)
        shared_device.close(group)
        fork.closed()
    finally:
        gate.leave()


def made(group: str) -> int:
    """How many backends of `group`, a part of their channels' names, there have been since the last meeting."""
    alive = [backend.channel for backend in backends if not isinstance(backend.inner, Gone)]
    return sum(channel.startswith(f"{group}/") for channel in (*alive, *destroyed))


def drop() -> None:
    """Let go of every backend. Nothing is under way. The caller collects garbage."""
    for backend in backends:
        if not isinstance(backend.inner, Gone):
            backend.inner = None
    shared_device.close()


def rebuild(generation: int, rank: int, ended: Collection[int] = ()) -> None:
    """Make every backend again, in the order of their creation. The store is there already. After an error those that
    were made stay; to be called again then.

    :param ended: ranks that have ended
    """
    told = store.exchange(f"destroyed/{generation}", rank, json.dumps(destroyed), ended)
    gone = {channel for words in told for channel in json.loads(words)}
    gone.update(backend.channel for backend in backends if not set(ended).isdisjoint(backend.ranks))
    for backend in backends:
        if isinstance(backend.inner, Gone):
            continue
        if backend.channel in gone:
            backend.inner = Gone()
        elif backend.built_for != generation:
            backend.inner = None
            backend.inner = backend.make(generation)
            backend.built_for = generation
    gate.drop(gone)
    destroyed.clear()
