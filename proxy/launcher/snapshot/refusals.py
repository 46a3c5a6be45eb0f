"""What CRIU would leave behind without a word, or refuse in its own words: told with process, descriptor and path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..ranks import process_scan
from ..ranks.slot import Slot
from . import locks, memfds, unix_sockets

SHOWN = 6
_KINDS: tuple[tuple[Callable[[Sequence[int]], list[str]], str, str], ...] = (
    (
        unix_sockets.external, "unix sockets have their other end outside the rank",
        "A move would cut them: close them between the steps, or speak TCP or UDP to that server",
    ),
    (
        unix_sockets.widowed, "connections of unix sockets are half gone, which cannot be restored",
        "Close them, or leave the path of the socket there until they are closed",
    ),
    (
        memfds.sealed, "memory files that are sealed against writing (F_SEAL_WRITE) are mapped as shared memory",
        "They could be saved and not restored: map them as private memory, or seal them with F_SEAL_FUTURE_WRITE",
    ),
    (locks.leases, "leases on files do not travel", "Give them back (F_UNLCK) between the steps"),
    (process_scan.traced, "processes are under a debugger", "Let it detach from them"),
)  # fmt: skip


def of(slots: Mapping[int, Slot]) -> str:
    """What could be dumped, if at all, but not restored; "" if there is nothing of this kind."""
    pids = {rank: process_scan.processes(slot.init) for rank, slot in slots.items()}
    for found, what, fix in _KINDS:
        told = [f"rank {rank}: {text}" for rank, group in pids.items() for text in found(group)]
        if told:
            return f"{what}: {'; '.join(told[:SHOWN])}. {fix}"
    strays = [f"rank {rank}: {text}" for rank, s in slots.items() for text in process_scan.strays(s.init, s.root)]
    if strays:
        return (
            f"processes do not descend from the first one of their rank, and would be lost: "
            f"{'; '.join(strays[:SHOWN])}. A rank that is started anew keeps such processes"
        )
    return ""
