"""Waiting for a condition: always with a deadline, always saying what was waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kueue_integration.errors import KubeError

from .errors import AirflowApiError, StoryTimeoutError

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T | bool | None],
    what: str,
    timeout_s: float,
    tick_s: float = 0.5,
    detail: Callable[[], str] | None = None,
) -> T:
    """Ask `condition` every `tick_s` seconds until it returns something other than None and False; return that.

    A server that does not answer (a busy machine) is asked again until time is up.

    Raises StoryTimeoutError after `timeout_s` seconds; `detail` adds what was last seen.
    """
    deadline = time.monotonic() + timeout_s
    trouble: Exception | None = None
    while True:
        try:
            value = condition()
            trouble = None
        except (KubeError, AirflowApiError) as error:
            if not error.transient:
                raise
            value, trouble = None, error
        if value is not None and value is not False:
            return value  # type: ignore[return-value]
        if time.monotonic() >= deadline:
            seen = f"; last seen: {detail()}" if detail else ""
            seen += f"; last error: {trouble}" if trouble else ""
            raise StoryTimeoutError(f"waited {timeout_s:g} s in vain for: {what}{seen}")
        time.sleep(tick_s)
