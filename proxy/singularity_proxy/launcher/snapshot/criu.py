"""CRIU's command lines and what its log says when it fails."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...protocol import user_namespace
from ..errors import DumpError, LauncherError, SlotError
from ..ranks import seccomp
from ..ranks.slot import Slot
from ..ranks.slot_init import TOOL_SOCKET
from ..tools import Tools
from .standstill import Standstill

# Healthy runs in a container say it, too.
_HARMLESS = re.compile(r"tun:|rlimit")
# Connections stay inside the slot (`sockets`): while both ends stand still, no network lock is needed. The log has
# errors and warnings only: a higher level writes a line for each page, which took a third of a restore's time.
_COMMON = ("-v2", "--tcp-established", "--network-lock", "skip", "--file-locks")
LARGEST_GHOST = 0xFFFFF000
"""CRIU keeps the limit in 32 bits."""
DUMP_LOG = "dump.log"
FILTER = "filter"
RESTORE_LOG = "restore.log"
WAS_KILLED = "was killed (SIGKILL)"
LATE_S = 20.0
"""How long CRIU may still run after its time limit: a kill in the middle of a dump would leave broken ranks."""


@dataclass(frozen=True)
class Criu:
    """:param tools: has the program"""

    tools: Tools

    def dump(
        self,
        slot: Slot,
        images: Path,
        work: Path,
        ghosts: int = 512 << 20,
        *,
        served: bool = False,
        more: Sequence[str] = (),
    ) -> list[str]:
        """Dump and leave everything stopped. So the ranks can go on if the checkpoint fails, and cannot run ahead.

        :param ghosts: bytes that a file may have which is deleted and still in use
        :param served: pages go to the page server at the tool's socket
        :param more: options for what CRIU could not find by itself (`mending`)

        `--link-remap`: a named semaphore is mapped under a temporary name that glibc has unlinked since.

        In a user namespace the kernel shows no filter of system calls: CRIU is told the one of all ranks (`refusals`).
        """
        if user_namespace.inside():
            (work / FILTER).write_bytes(seccomp.image())
            more = [*more, "--seccomp-filter", slot.seen(work / FILTER)]
        pages = ("--page-server", "--ps-socket", str(TOOL_SOCKET)) if served else ()
        return self.tools.criu(
            "dump", *pages, *more, "-t", str(slot.root), "-D", slot.seen(images), "-W", slot.seen(work), "-o", DUMP_LOG,
            *_COMMON, "--ghost-limit", str(min(ghosts, LARGEST_GHOST)), "--link-remap", "--leave-stopped",
        )  # fmt: skip

    def ready_for(self, real: tuple[int, int]) -> None:
        """Raises DumpError if processes with these real uid and gid cannot be dumped.

        prlimit(2) on a process of another user needs CAP_SYS_RESOURCE, which not all machines in the cloud can give.
        But the kernel compares with the caller's *real* ids alone. So CRIU gets the real ids of the processes, and its
        effective ids stay root. CRIU cannot check the kernel's features then.
        """
        if any(real):
            try:
                self.tools.features()
            except LauncherError as error:
                raise DumpError(str(error)) from None

    def restore(self, slot: Slot, images: Path, work: Path) -> list[str]:
        """Restore, leave everything stopped, and detach."""
        return self.tools.criu(
            "restore", "-d", "--leave-stopped", "-D", slot.seen(images), "-W", slot.seen(work), "-o", RESTORE_LOG,
            *_COMMON,
        )  # fmt: skip


class Late(str):
    """Words about a tool that was given up for the time that it took, and not for what it found."""


def run(
    slot: Slot,
    argv: Sequence[str],
    timeout_s: float,
    real: tuple[int, int] = (0, 0),
    connect: str = "",
    still: Standstill | None = None,
) -> str:
    """Run CRIU inside a slot (see `Slot.run`). "" when it succeeded, else what happened: `Late` if it was given up for
    the time that it took. Raises SlotError.

    :param still: ends the wait as soon as it is over
    """
    limit_s = max(timeout_s, 0.0)
    began = time.monotonic()
    given_up = still.over if still is not None else lambda: False
    try:
        ended = slot.run(argv, limit_s + LATE_S, real, connect, given_up)
    except SlotError:
        if slot.wait() == 128 + signal.SIGKILL:
            return WAS_KILLED
        raise
    if ended is None and still is not None and still.over():
        return Late(f"stood still for {still.still_s:.0f} s: no CPU time was used, nothing was read")
    if ended is None or time.monotonic() - began > limit_s:
        return Late(f"did not end within {limit_s:.0f} s")
    if ended.code == 128 + signal.SIGKILL:
        return WAS_KILLED
    return f"ended with {ended.code}: {ended.said[-500:]}" if ended.code else ""


def errors(log: Path, most: int = 6) -> list[str]:
    """The first error lines of a CRIU log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return [f"no log: {error}"]
    return [line.strip()[:300] for line in lines if "Error" in line and not _HARMLESS.search(line)][:most]
