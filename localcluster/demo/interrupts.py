"""Ctrl-C, once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt() -> Iterator[Callable[[], None]]:
    """The first SIGINT or SIGTERM is a KeyboardInterrupt; later ones, and all after the yielded function was called, do
    nothing. `timeout make demo` sends several at once, and half a teardown is the one thing nobody wants."""
    heard = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:
            heard = True
            raise KeyboardInterrupt

    def no_more() -> None:
        nonlocal heard
        heard = True

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield no_more
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
