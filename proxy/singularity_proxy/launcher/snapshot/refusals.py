"""What could be dumped, if at all, but not restored: told with rank, process, descriptor and path before CRIU runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ...protocol import user_namespace
from ..ranks import process_scan, user
from ..ranks.slot import Slot
from . import ipc, locks, memfds, nameless_maps, sockets, unix_sockets

SHOWN = 6
Find = Callable[[Slot, list[int], Collection[str]], list[str]]
_KINDS: tuple[tuple[Find, str, str], ...] = (
    (
        lambda _, pids, job: sockets.refused(pids, job),
        "{count} sockets tie ranks to this pod or to each other",
        "What connects within a rank over loopback addresses moves with it, connections to servers outside the job are "
        "cut; close others between the steps, and listen on 127.0.0.1 or 0.0.0.0",
    ),
    (
        lambda _, pids, __: process_scan.projected_files(pids),
        "files of projected volumes (ConfigMap, Secret, token) are open",
        "Their paths differ in every pod: read such files and close them",
    ),
    (
        lambda _, pids, __: [*filter(None, [user.several(pids)])],
        "the processes of a rank belong to different users",
        "CRIU can save those of one user: start all as the one of securityContext.runAsUser, and what changes its user "
        "ends between the steps",
    ),
    (
        lambda _, pids, __: unix_sockets.external(pids),
        "unix sockets have their other end outside the rank",
        "A move would cut them: close them between the steps, or speak TCP or UDP to that server",
    ),
    (
        lambda _, pids, __: unix_sockets.widowed(pids),
        "connections of unix sockets are half gone, which cannot be restored",
        "Close them, or leave the path of the socket there until they are closed",
    ),
    (
        lambda _, pids, __: memfds.sealed(pids),
        "memory files that are sealed against writing (F_SEAL_WRITE) are mapped as shared memory",
        "They could be saved and not restored: map them as private memory, or seal them with F_SEAL_FUTURE_WRITE",
    ),
    (
        lambda _, pids, __: locks.leases(pids),
        "leases on files do not travel",
        "Give them back (F_UNLCK) between the steps",
    ),
    (
        lambda _, pids, __: ipc.system_v(pids),
        "memory, queues and semaphores of System V do not travel",
        "Remove them (ipcrm) before the first step, and use /dev/shm and POSIX semaphores, as multiprocessing does",
    ),
    (
        lambda _, pids, __: ipc.queues(pids),
        "POSIX queues of messages do not travel",
        "Close and unlink them (mq_unlink), and use a pipe or a unix socket",
    ),
    (
        lambda _, pids, __: ipc.semaphores(pids),
        "eventfds that count as semaphores would come back as others",
        "Close them, or count with a POSIX semaphore",
    ),
    (
        lambda _, pids, __: ipc.signalled_folders(pids),
        "signals for changes in directories do not travel",
        "Use inotify",
    ),
    (
        lambda _, pids, __: process_scan.traced(pids),
        "processes are under a debugger",
        "Let it detach from them",
    ),
    (
        lambda _, pids, __: process_scan.filtered(pids) if user_namespace.inside() else [],
        "processes have made filters of system calls of their own (seccomp), which no pod in a user namespace can save",
        "Let them run without such a filter",
    ),
    (
        lambda _, pids, __: nameless_maps.unreachable(pids) if user_namespace.inside() else [],
        "programs, libraries or other mapped files were deleted or replaced on the disk, which no pod in a user "
        "namespace can save",
        "Leave the files of a running program as they are, or hold them open",
    ),
    (
        lambda _, pids, __: process_scan.links_left(pids),
        "files are open whose name is deleted while another hard link to them is left",
        "Close them, or open them by the name that is left",
    ),
    (
        lambda slot, _, __: process_scan.strays(slot.init, slot.root),
        "processes do not descend from the first one of their rank, and would be lost",
        "A rank that is started anew keeps such processes",
    ),
)


def of(slots: Mapping[int, Slot], job: Collection[str]) -> str:
    """The first kind of what cannot travel; "" if there is nothing.

    :param job: addresses of the pods of this job
    """
    pids = {rank: process_scan.processes(slot.init) for rank, slot in slots.items()}
    for find, what, fix in _KINDS:
        told = [f"rank {rank}: {text}" for rank, slot in slots.items() for text in find(slot, pids[rank], job)]
        if told:
            return f"{what.format(count=len(told))}: {'; '.join(told[:SHOWN])}. {fix}"
    return ""
