"""Compare-and-set: read, change, write on condition of the version, and again if somebody was faster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from ..errors import Conflict

T = TypeVar("T")


def outlasted(tries: int, attempt: Callable[[], T]) -> T:
    """Return what `attempt` returns, which is made again while it raises Conflict. Raises the last one's Conflict."""
    for _ in range(tries - 1):
        with contextlib.suppress(Conflict):
            return attempt()
    return attempt()
