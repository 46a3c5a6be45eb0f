"""Wakes the long polls of sidecars when their Job changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Key = tuple[str, str, bool]


class Hub:
    """Wakes the long polls of a Job. `notify` may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[Key, set[asyncio.Event]] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def notify(self, namespace: str, job: str, leader: bool = True) -> None:
        """`leader`: what has changed is the Job itself, or its first pod."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, namespace, job, leader)

    def _wake(self, namespace: str, job: str, leader: bool) -> None:
        for narrow in (False, True) if leader else (False,):
            for event in self._waiting.get((namespace, job, narrow), ()):
                event.set()

    def waiting(self, namespace: str, job: str) -> int:
        """How many long polls of a Job wait."""
        return sum(len(self._waiting.get((namespace, job, narrow), ())) for narrow in (False, True))

    async def until(
        self, namespace: str, job: str, look: Callable[[], T | None], timeout_s: float, leader: bool = False
    ) -> T | None:
        """The first non-None result of `look`, called now and after every change; None after `timeout_s` seconds.

        :param leader: changes of the Job and of its first pod are enough. All pods of a job that starts wait so, and
            each of its pods changes several times meanwhile
        """
        event, key = asyncio.Event(), (namespace, job, leader)
        end = time.monotonic() + timeout_s
        self._waiting.setdefault(key, set()).add(event)
        try:
            while True:
                event.clear()
                result = look()
                left = end - time.monotonic()
                if result is not None or left <= 0:
                    return result
                try:
                    await asyncio.wait_for(event.wait(), left)
                except (asyncio.TimeoutError, TimeoutError):
                    return look()
        finally:
            self._waiting[key].discard(event)
            if not self._waiting[key]:
                del self._waiting[key]
