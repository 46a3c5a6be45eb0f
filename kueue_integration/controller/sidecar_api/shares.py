"""Blocking calls of the pods' API, in threads that no namespace can take all of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
THREADS = 16
SHARE = 6
"""Threads that the pods of one namespace may have at a time; what they ask beyond that waits."""


class Shares:
    """For one event loop, whose default executor has THREADS threads."""

    def __init__(self) -> None:
        self._of: dict[str, asyncio.Semaphore] = {}

    async def run(self, namespace: str, call: Callable[[], T]) -> T:
        """`call()` in a thread. `namespace` must be proven: it is remembered."""
        async with self._of.setdefault(namespace, asyncio.Semaphore(SHARE)):
            return await asyncio.to_thread(call)
