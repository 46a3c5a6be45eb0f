"""Loops that no error ends, and objects whose errors do not affect other objects.

A user who may edit an object decides what our code reads in it. An object that causes an error is skipped, counted and
named; a loop with an error goes on after a pause. Both rules are implemented here, so that no thread needs its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .metrics import Metrics

log = logging.getLogger(__name__)

PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
NAMED = 10_000
"""This many objects are remembered as named; after that, all of them may be named again."""


def backoff_s(failures: int) -> float:
    """Seconds before the next try, after this many failures in a row."""
    return min(PAUSE_S * 2.0 ** min(failures - 1, 20), LONGEST_PAUSE_S)


class Skips:
    """Objects that could not be handled. Thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._named: set[tuple[str, str]] = set()

    def note(self, where: str, name: str, error: BaseException) -> None:
        """Count it; the first time, the log has the traceback. `where` is one of a few words."""
        self._metrics.add("singularity_unreadable_total", where)
        if self.is_new(where, name):
            log.error("%s %s cannot be handled and is skipped: %r", where, name[:200], error, exc_info=error)

    def is_new(self, where: str, name: str) -> bool:
        """Whether this is the first time that the object is named."""
        with self._lock:
            if (where, name) in self._named:
                return False
            if len(self._named) >= NAMED:
                self._named.clear()
            self._named.add((where, name))
            return True

    @contextmanager
    def over(self, where: str, name: str) -> Iterator[None]:
        """An error inside is counted, and the object is skipped."""
        try:
            yield
        except Exception as error:
            self.note(where, name, error)


def forever(
    stop: threading.Event,
    turn: Callable[[], object],
    what: str,
    surprised: Callable[[], None] = lambda: None,
    pause_s: float = PAUSE_S,
    longest_s: float = LONGEST_PAUSE_S,
) -> None:
    """Call `turn` until `stop` is set. After one that raises there is a pause, twice as long each time in a row."""
    pause = pause_s
    while not stop.is_set():
        try:
            turn()
            pause = pause_s
        except Exception:
            log.exception("%s goes on in %.1f s", what, pause)
            surprised()
            stop.wait(pause)
            pause = min(pause * 2, longest_s)
