"""Informers that belong together: started and stopped as one, and fresh when each of them is."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .informer import WATCH_S
from .narrow import Copy

SILENT_S = WATCH_S + 30.0
"""A watch of a quiet kind says nothing until it ends; then it takes a moment to begin the next one."""


class Copies:
    """Of one cluster's objects, one informer per kind."""

    informers: Sequence[Copy] = ()
    beside: Sequence[Copy] = ()
    """What is shown to people: nothing that is decided here waits for it."""

    def start(self) -> None:
        for informer in (*self.informers, *self.beside):
            informer.start()

    def stop(self) -> None:
        """The threads end with their current watches."""
        for informer in (*self.informers, *self.beside):
            informer.stop()

    @property
    def synced(self) -> bool:
        """Whether every kind has been listed."""
        return all(informer.synced.is_set() for informer in self.informers)

    @property
    def fresh(self) -> bool:
        """Whether every kind has been listed, and the API server has recently answered for each."""
        return self.synced and all(informer.silent_for() < SILENT_S for informer in self.informers)

    @property
    def unlisted(self) -> str:
        """The kinds that have never been listed, with the reasons; "" when all have."""
        missing = [informer for informer in self.informers if not informer.synced.is_set()]
        return "; ".join(f"{i.kind.plural}: {i.problem or 'being listed'}" for i in missing)

    def wait_synced(self, timeout_s: float) -> bool:
        """Whether every kind has been listed within `timeout_s` seconds."""
        end = time.monotonic() + timeout_s
        return all(informer.synced.wait(max(0.0, end - time.monotonic())) for informer in self.informers)
