"""Calls of the C library for which Python has no function."""

from __future__ import annotations

import ctypes
import os
from typing import Any


def load() -> Any:
    """The C library of this process, for calls whose result `check` looks at."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, problem: str) -> None:
    """Raises OSError, with `problem` and the kernel's own words, unless `result` is 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{problem}: {os.strerror(number)}")
