"""Calls to clusters that hold nothing of the api-server: no database session, no slot of its thread pool.

Airflow's own pages and its workers' execution API share both. A cluster that does not answer would take them all. So a
call has a thread of its own, each cluster has a few of them, and a request awaits its end for a limited time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..exceptions import SingularityProviderError

T = TypeVar("T")
MOST = 8
"""Calls to one cluster at a time."""


class BusyError(SingularityProviderError):
    """A cluster has as many calls under way as it may have."""


class Flights:
    """For several threads. `most`: calls of one place at a time."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._count: Counter[str] = Counter()

    def start(self, place: str, work: Callable[[], T]) -> Future[T]:
        """Call `work` in a thread of its own. Raises BusyError."""
        with self._lock:
            if self._count[place] >= self._most:
                what = f"{self._most} calls to the cluster of connection {place} wait for its answer"
                raise BusyError(f"{what}: try again later")
            self._count[place] += 1
        future: Future[T] = Future()

        def fly() -> None:
            try:
                result = work()
            except BaseException as error:
                self._landed(place)
                future.set_exception(error)
            else:
                self._landed(place)
                future.set_result(result)

        try:
            threading.Thread(target=fly, name=f"singularity-{place}", daemon=True).start()
        except RuntimeError as error:  # the process has as many as it may have
            self._landed(place)
            raise BusyError(f"the api-server cannot ask the cluster of connection {place} now: {error}") from error
        return future

    def _landed(self, place: str) -> None:
        with self._lock:
            self._count[place] -= 1
            if not self._count[place]:
                del self._count[place]


async def landed(future: Future[Any], limit_s: float) -> bool:
    """Whether the call ends within `limit_s` seconds. It goes on if not, and whoever else waits for it still does."""
    ours = asyncio.wrap_future(future)
    ours.add_done_callback(asyncio.Future.exception)  # seen, also after the limit: who wants it asks `future`
    done, _ = await asyncio.wait({ours}, timeout=limit_s)
    return bool(done)
