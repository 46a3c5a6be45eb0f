"""A rank whose agent has failed says that it cannot be saved, and why: the checkpoint fails at once, nobody waits.

The flag is in the barrier page; the reason is in a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from ..protocol import names, page
from ..protocol.messages import LauncherEvent
from . import pagewords
from .paths import Paths
from .ranks import control_files

EVERY_S = 0.2


def read(paths: Paths, rank: int, generation: int) -> str:
    """Why `rank` cannot be saved for `generation`; "" if it has not said so."""
    if pagewords.read(paths.run, rank, page.R_REFUSED) < generation:
        return ""
    return f"rank {rank} cannot be saved: {_reason(paths.control(rank) / names.REFUSED_FILE)}"


def not_restored(paths: Paths, rank: int) -> str:
    """Why a rank of the state engine could not begin from its checkpoint; "" if it has not said so."""
    path = paths.control(rank) / names.NOT_RESTORED_FILE
    return _reason(path) if path.is_symlink() or path.exists() else ""


def _reason(path: Path) -> str:
    message = ""
    with contextlib.suppress(FileNotFoundError):
        message = " ".join(str(control_files.read(path).get("message", ""))[:1000].split())
    return message or "the checkpoint agent in it has failed; see its log"


class Refusals:
    """The launcher's loop calls `due`: refusals of ranks during a stop request go to the sidecar.

    :param put: takes the event, once for each stop
    """

    def __init__(self, paths: Paths, put: Callable[[LauncherEvent], None]) -> None:
        self._paths, self._put = paths, put
        self._next = 0.0
        self._told = 0

    def due(self, now: float, ranks: Iterable[int]) -> None:
        """`now`: seconds of any steady clock."""
        if now < self._next:
            return
        self._next = now + EVERY_S
        generation = pagewords.header(self._paths.run, page.W_REQUEST)
        if generation <= self._told:
            return
        whys = [why for rank in ranks if (why := read(self._paths, rank, generation))]
        if whys:
            self._told = generation
            self._put(LauncherEvent("dump_failed", generation=generation, message="; ".join(whys)))
