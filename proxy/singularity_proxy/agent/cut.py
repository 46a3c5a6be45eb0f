"""The rank's side of `protocol.cut`: it publishes its issued operations to the other ranks through the job's own store.

Nothing here runs until the step boundaries alone have failed to answer a stop request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

from ..protocol import cut
from . import fork, gate, groups
from .store import OURS, connection

PREFIX = f"{OURS}cut"
POLL_S = 0.002


class Talk:
    """The entries of all ranks for one generation.

    :param store: the program's store, of which we take a connection of our own: another thread may wait in its own
    :param ended: the ranks that have ended by now
    """

    def __init__(
        self, generation: int, rank: int, world: int, store: Any, ended: Callable[[], Collection[int]] = tuple
    ) -> None:
        self.generation = generation
        self._rank, self._world = rank, world
        self._ended = ended
        self._entries: dict[int, cut.Entry] = {}
        self.pace = POLL_S * world
        """Seconds between two looks: all ranks ask one server for all ranks."""
        self._store: Any = None
        if store is not None:
            before = fork.seen()
            self._store = connection(store)
            fork.communication(before)

    @property
    def said(self) -> bool:
        """Have we published anything? From then on we must publish every operation."""
        return self._rank in self._entries

    def publish(self, count: int, waiting: bool) -> None:
        """All that this rank has issued; `waiting`: the leading thread is at a place where it can stop."""
        entry = cut.Entry(groups.epoch, waiting, count, gate.channels())
        if entry != self._entries.get(self._rank):
            self._entries[self._rank] = entry
            if self._store is not None:
                with contextlib.suppress(RuntimeError):
                    self._store.set(self._key(self._rank), entry.to_json())

    def read(self) -> dict[int, cut.Entry]:
        """The newest entries. A closed store has no new entries: rank 0 has frozen, and with it its server."""
        if self._store is not None:
            with contextlib.suppress(RuntimeError):
                for rank in range(self._world):
                    known = rank in self._entries or self._store.check([self._key(rank)])
                    if rank != self._rank and known:
                        self._entries[rank] = cut.Entry.from_json(self._store.get(self._key(rank)))
        return self._entries

    def verdict(self) -> tuple[str, frozenset[str]]:
        """What a rank does that waits (`cut.judge`), and the channels that it is behind on."""
        ended = self._ended()  # first: what such a rank has published is all
        entries = cut.known(self._rank, self.read(), ended)
        return cut.judge(self._rank, entries, self._world, ended), cut.all_behind_on(self._rank, entries)

    def behind_on(self) -> frozenset[str]:
        ended = self._ended()
        return cut.all_behind_on(self._rank, cut.known(self._rank, self.read(), ended))

    def highest(self) -> int:
        """Most step boundaries that a rank has passed which has not ended."""
        ended = self._ended()
        return max(entry.count for rank, entry in self._entries.items() if rank not in ended)

    def close(self) -> None:
        self._store = None

    def _key(self, rank: int) -> str:
        return f"{PREFIX}/{self.generation}/{rank}"
