"""Signals to the container's pid 1. The launcher handles a request to end the pod; the program gets the others."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable

from .ranks.rank import Rank

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""The kubelet's signal, and the signals that an image may choose instead (STOPSIGNAL). The ranks are saved and do not
get it."""
PASSED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def pass_on(number: int, ranks: Iterable[Rank]) -> list[int]:
    """To the first process of each rank, if it has a handler. Returns the ranks that got it."""
    got = []
    for rank in ranks:
        with contextlib.suppress(OSError):  # it has ended
            if rank.pass_on(number):
                got.append(rank.rank)
    return got
