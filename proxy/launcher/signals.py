"""Signals to the container's pid 1. The launcher handles a request to end the pod; the program gets the others."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable

from .ranks import process_scan
from .ranks.slot import Slot

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""The kubelet's signal, and the signals that an image may choose instead (STOPSIGNAL). The ranks are saved and do not
get it."""
PASSED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def pass_on(number: int, slots: Iterable[Slot]) -> list[int]:
    """To the first process of each rank, unless it has no handler. A program that is pid 1 itself does not end by a
    signal that it does not handle, and should not end here. Returns the ranks that got it."""
    got = []
    for slot in slots:
        with contextlib.suppress(OSError):  # it has ended
            for pid in process_scan.processes(slot.init):
                if process_scan.inner_pid(pid) == slot.root and process_scan.catches(pid, number):
                    os.kill(pid, number)
                    got.append(slot.rank)
    return got
