"""Blocking calls of the pods' API, in threads that no namespace can take all of, and no kind of call.

A commit is what a preemptor waits for, a hello what a start waits for. Each has threads of its own: however many jobs
tell their progress at once, and however slowly the API server answers that, neither waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal, TypeVar

T = TypeVar("T")
Lane = Literal["commit", "hello", "note"]
"""`commit`: all that is told once of a checkpoint. `hello`: what pods ask. `note`: progress."""
LANES: Final[tuple[Lane, ...]] = ("commit", "hello", "note")
THREADS = 8
"""Of each lane."""
SHARE = 6
"""Threads of a lane that the pods of one namespace may have at a time; what they ask beyond that waits."""


class Shares:
    """For one event loop."""

    def __init__(self) -> None:
        self._pools = {lane: ThreadPoolExecutor(THREADS, thread_name_prefix=f"api-{lane}") for lane in LANES}
        self._of: dict[tuple[Lane, str], asyncio.Semaphore] = {}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, lane: Lane, namespace: str, call: Callable[[], T]) -> T:
        """`call()` in a thread. `namespace` must be proven: it is remembered."""
        async with self._of.setdefault((lane, namespace), asyncio.Semaphore(SHARE)):
            return await asyncio.get_running_loop().run_in_executor(self._pools[lane], call)
