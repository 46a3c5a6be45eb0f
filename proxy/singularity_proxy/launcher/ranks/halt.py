"""Stop all processes of a slot, or let them go on: SIGSTOP and SIGCONT. A restored process keeps its stopped state."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from ..errors import DumpError
from . import process_scan

POLL_S = 0.005
TRY_S = 0.5
"""A process cannot stop while it waits for a child that was stopped before its exec (vfork). So let all go on, and try
again."""


def asleep(init: int) -> frozenset[int]:
    """Processes of a slot that the program has stopped itself, while we have stopped none: they stay so."""
    return frozenset(pid for pid in process_scan.processes(init) if _stands(pid, "T"))


def stop(init: int, deadline: float, asleep: Collection[int] = ()) -> list[int]:
    """PIDs, in our namespace, of all processes of the slot of `init`, which stand still now.

    :param deadline: of the monotonic clock
    :param asleep: those that stand still already
    Raises DumpError; everything goes on then.
    """
    while True:
        until = time.monotonic() + TRY_S
        told: set[int] = set(asleep)
        while True:
            pids = process_scan.processes(init)
            # One signal for each process: a second signal would stay pending, and stop the process again during CRIU's
            # work in it.
            _kill([pid for pid in pids if pid not in told], signal.SIGSTOP)
            told.update(pids)
            moving = [pid for pid in pids if not _stands(pid)]
            if not moving and process_scan.processes(init) == pids:
                return pids
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)
        _kill([pid for pid in pids if pid not in asleep], signal.SIGCONT)
        if time.monotonic() > deadline:
            names = ", ".join(process_scan.name(pid) for pid in moving[:3]) or "a process that starts others"
            raise DumpError(f"{names} cannot be stopped: it is busy inside the kernel, with a slow file system, say")
        time.sleep(POLL_S)


def let_go(init: int, asleep: Collection[int] = ()) -> None:
    """The processes of the slot go on, but for those that the program has stopped itself. Idempotent."""
    _kill([pid for pid in process_scan.processes(init) if pid not in asleep], signal.SIGCONT)


def _kill(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.kill(pid, number)


def _stands(pid: int, states: str = "TtZX") -> bool:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return True
    return all(_state(thread / "stat") in states for thread in threads)


def _state(stat: Path) -> str:
    try:
        return process_scan.stat_words(stat)[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
