"""What CRIU cannot find by itself is told to it before a dump; what it writes wrongly is mended in its image after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import DumpError
from ..ranks import process_scan
from ..ranks.slot import ROOT, Slot
from . import connections, death_signals, overlaid, sessions, sockets, timers, watches

SHOWN = 6


@dataclass(frozen=True)
class Known:
    """:param watched: paths that inotify watches, the deepest first: CRIU looks through what lies below each of them
    :param overlaid: CRIU's names of files -> paths
    """

    watched: list[str]
    overlaid: dict[str, str]

    @property
    def words(self) -> list[str]:
        """Of CRIU's command line."""
        found = [word for path in self.watched for word in ("--irmap-scan-path", path)]
        return found + [word for name in self.overlaid for word in ("--external", name)]


def known(slot: Slot) -> Known:
    """What is to be known of a rank that stands still. Raises DumpError."""
    pids = process_scan.processes(slot.init)
    watched = sorted(_watched(slot, watches.held(pids)), key=len, reverse=True)
    return Known(watched, overlaid.mapped(slot.init, pids) if slot.view != ROOT else {})


def _watched(slot: Slot, held: list[watches.Watch]) -> list[str]:
    paths = watches.paths(slot.init, held) if held else {}
    missing = sorted({f"{process_scan.name(w.pid)} (descriptor {w.descriptor})" for w in held if w.file not in paths})
    if missing:
        raise DumpError(
            f"rank {slot.rank}: files that are watched by inotify were not found by a path within "
            f"{watches.FIND_S:.0f} s: {'; '.join(missing[:SHOWN])}. They have no name any more, or lie deep in a large "
            "volume: watch a folder nearer to the working directory"
        )
    return list(paths.values())


def mend(images: Path, found: Known) -> None:
    """Change the image of the dumped rank. Raises DumpError."""
    overlaid.name(images, found.overlaid)
    connections.sever(images, sockets.leads_out)
    timers.rearm(images)
    sessions.join(images)
    death_signals.leave_out(images)
