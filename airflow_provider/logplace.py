"""How far rank 0's output is copied to the task log, kept where the next triggerer finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from singularity_proxy.protocol import decode

from . import compat

PLACE_KEY = "log_place"
START: dict[str, Any] = {"attempt": 0, "newest": "", "left": 2**31}
"""Written by the worker: Airflow's client logs an error for every XCom that is asked for in vain."""
PLACE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class _Stand:
    attempt: int
    newest: str
    left: int


class Place:
    """Where the copying stands, in an XCom of the task: a triggerer that takes over goes on there.

    `{"attempt": number, "newest": time stamp, "left": lines}`. A convenience: what cannot be read or written is not
    missed (`dag.test()` has no XComs for triggers), lines are shown again then.
    """

    def __init__(self, ti: Any, log: Any) -> None:
        self._ti, self._log = ti, log

    async def load(self) -> tuple[int, str, int] | None:
        """Attempt, newest, left; None for anything else: people can edit XComs."""
        found = await self._try(lambda: compat.get_xcom(self._ti, PLACE_KEY))
        place = decode.typed(_Stand, found)
        return None if isinstance(place, decode.Unreadable) else (place.attempt, place.newest, place.left)

    async def save(self, attempt: int, newest: str, left: int) -> None:
        value = {"attempt": attempt, "newest": newest, "left": left}
        await self._try(lambda: compat.set_xcom(self._ti, PLACE_KEY, value))

    async def _try(self, action: Callable[[], Awaitable[Any]]) -> Any:
        if self._ti is None:
            return None
        try:
            return await asyncio.wait_for(action(), PLACE_TIMEOUT_S)
        except Exception as error:
            self._log.debug("XCom %s: %s", PLACE_KEY, error)
            return None
