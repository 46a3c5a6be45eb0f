"""During a stop request, a signal nudges ranks that do not come to a boundary by themselves.

SIGURG does nothing in a process that has no handler for it. The agent's handler checks whether the rank can stop where
it is.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Mapping

from ...protocol import names, page
from ..paths import Paths
from . import process_scan
from .slot import Slot

EVERY_S = 0.2


class Nudge:
    """`due` is called by the launcher's loop; between two stops it reads one word in `EVERY_S`."""

    def __init__(self, paths: Paths) -> None:
        self._path = paths.run / names.PAGE_FILE
        self._next = 0.0

    def due(self, now: float, slots: Mapping[int, Slot]) -> None:
        """`now`: seconds of any steady clock."""
        if now < self._next:
            return
        self._next = now + EVERY_S
        for rank, pid in self.waited_for(list(slots)).items():
            _signal(slots[rank], pid)

    def waited_for(self, ranks: list[int]) -> dict[int, int]:
        """PID, as it sees itself, of each of `ranks` that has not reached the requested stop."""
        try:
            with (
                self._path.open("rb") as file,
                mmap.mmap(file.fileno(), page.PAGE_SIZE, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as raw,
                raw.cast("q") as words,
            ):
                return {rank: words[page.rank_word(rank, page.R_PID)] for rank in ranks if _running(words, rank)}
        except (OSError, ValueError):  # no page yet
            return {}


def _running(words: memoryview, rank: int) -> bool:
    request = words[page.W_REQUEST]
    if request <= words[page.W_ACQUIRED]:
        return False
    blocked, state = (words[page.rank_word(rank, word)] for word in (page.R_BLOCKED, page.R_STATE))
    return bool(state == page.STATE_RUNNING and blocked != request)


def _signal(slot: Slot, pid: int) -> None:
    for outer in process_scan.processes(slot.init):
        if process_scan.inner_pid(outer) == pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(outer, signal.SIGURG)
