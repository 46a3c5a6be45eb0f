"""Waiting for a condition: always with a deadline, always saying what was waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import StoryTimeoutError

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T | bool | None],
    what: str,
    timeout_s: float,
    tick_s: float = 0.5,
    detail: Callable[[], str] | None = None,
) -> T:
    """Ask `condition` every `tick_s` seconds until it returns something other than None and False; return that.

    Raises StoryTimeoutError after `timeout_s` seconds; `detail` adds what was last seen.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value is not None and value is not False:
            return value  # type: ignore[return-value]
        if time.monotonic() >= deadline:
            seen = f"; last seen: {detail()}" if detail else ""
            raise StoryTimeoutError(f"waited {timeout_s:g} s in vain for: {what}{seen}")
        time.sleep(tick_s)
