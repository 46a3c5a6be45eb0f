"""Waiting for a condition: `until` in a thread, `eventually` in an event loop.

The limit costs nothing where the condition comes true, and only tells a slow machine from a hang. It stands here once;
a test gives another one only where the limit is what it tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

LIMIT_S = 120.0
"""A machine that is ten times slower than ours, and stands still for half a minute, passes."""
PACE_S = 0.005

T = TypeVar("T")


class Limit:
    """Time is up only if the condition was looked at after it: the process may have stood still in between."""

    def __init__(
        self, what: str, limit_s: float, detail: Callable[[], str] | None, progress: Callable[[], object] | None = None
    ) -> None:
        self._what, self._limit_s, self._detail, self._progress = what, limit_s, detail, progress
        self._made: object = None
        self._end = time.monotonic() + limit_s

    def over(self) -> bool:
        return time.monotonic() > self._end

    def go_on(self) -> None:
        """The time is up: wait as long again if there was progress, or else raise AssertionError.

        The first time, what was done so far counts as progress.
        """
        made = self._progress() if self._progress is not None else None
        if made == self._made:
            raise self.failure(f"not within {self._limit_s:g} s")
        self._made, self._end = made, time.monotonic() + self._limit_s

    def failure(self, why: str) -> AssertionError:
        detail = f"\n{self._detail()}" if self._detail is not None else ""
        return AssertionError(f"{why}: {self._what}{detail}")


def until(
    condition: Callable[[], T],
    what: str = "the condition is true",
    *,
    limit_s: float = LIMIT_S,
    pace_s: float = PACE_S,
    alive: Callable[[], object] | None = None,
    progress: Callable[[], object] | None = None,
    detail: Callable[[], str] | None = None,
) -> T:
    """Poll `condition` until it is true, and return its value.

    :param what: a sentence for the error, as in "the ranks train on"
    :param alive: false means that waiting is useless
    :param progress: changes as long as the other side is slow, and does not hang: the limit is that of its last change
    :param detail: what the error shows below that sentence, a log for example
    :raises AssertionError: it is false still `limit_s` later, or `alive` became false
    """
    limit = Limit(what, limit_s, detail, progress)
    while True:
        late, living = limit.over(), alive is None or bool(alive())
        found = condition()
        if found:
            return found
        if not living:
            raise limit.failure("the other side ended before")
        if late:
            limit.go_on()
        time.sleep(pace_s)


async def eventually(
    condition: Callable[[], T],
    what: str = "the condition is true",
    *,
    limit_s: float = LIMIT_S,
    pace_s: float = PACE_S,
    detail: Callable[[], str] | None = None,
) -> T:
    """`until` for an event loop, which goes on meanwhile."""
    limit = Limit(what, limit_s, detail)
    while True:
        late = limit.over()
        found = condition()
        if found:
            return found
        if late:
            limit.go_on()
        await asyncio.sleep(pace_s)


def cpu_s(processes: Iterable[Path]) -> int:
    """Whole seconds of CPU time that processes have used, as `progress`: one that hangs uses next to none.

    :param processes: `/proc/PID` of each; those that are gone do not count
    """
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks // os.sysconf("SC_CLK_TCK")
