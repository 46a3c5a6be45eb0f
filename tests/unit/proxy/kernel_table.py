"""Which objects of the kernel a rank may have at a stop: words of the documentation -> how the tests hold such a one.

`test_held_programs` runs every row but the last, and compares `markdown` with the page.
"""

from __future__ import annotations

TRAVEL: dict[str, list[str]] = {
    "locks of files (`flock`, `lockf`, OFD)": ["Flock", "Range", "Nameless", "Mapped"],
    "inotify watches": ["Watch"],
    "timers (`timerfd`, `setitimer`, POSIX)": ["Timer", "interval_timer"],
    "detached helpers": ["Helper"],
    "pipes and FIFOs, with size and content": ["pipe", "fifo"],
    "`eventfd`, `epoll`, `signalfd`, pidfd": ["eventfd", "epoll", "signalfd", "process_descriptor"],
    "blocked and waiting signals, signals of files (`O_ASYNC`)": ["pending", "signals_of_a_file"],
    "memory files (`memfd`)": ["memory_file"],
    "unix sockets, with descriptors on their way": ["unix_pair", "unix_listener"],
    "TCP and UDP over loopback, netlink": ["tcp", "udp", "netlink"],
    "pseudo terminals of the rank's own": ["terminal"],
    "deleted and nameless open files, hard links, `O_PATH`": [
        "path_only", "deleted_file", "temporary_file", "hard_links",
    ],
    "holes of files, extended attributes (`user.*`), access lists": ["holes", "attributes"],
    "shared memory in `/dev/shm` and without a name, POSIX semaphores": [
        "shared_memory", "shared_anonymous", "semaphore",
    ],
    "children that are stopped (SIGSTOP) or have ended and were not waited for": ["stopped_child", "zombie"],
    "CPUs of a thread (affinity), its priority for disks, memory policy (NUMA), filter of core files": [
        "cpus", "disk_priority", "memory_policy", "core_filter",
    ],
    "limits, umask, niceness and scheduling, huge pages off, subreaper": [
        "limits_and_mask", "niceness", "huge_pages_off", "subreaper",
    ],
}  # fmt: skip
REFUSED: dict[str, list[str]] = {
    "System V shared memory, queues and semaphores": ["attached", "unattached", "left", "messages", "semaphores"],
    "POSIX queues": ["queue", "named"],
    "an `eventfd` with `EFD_SEMAPHORE` (seen on Linux 6.6 and newer)": ["counts"],
    "signals for changes in directories (`F_NOTIFY`)": ["signalled"],
    "leases": ["lease"],
    "unix sockets whose other end is in another container": ["outside"],
    "an open file whose name is deleted while another hard link is left": ["linked"],
    "watches of files without a name": ["watched"],
    "processes under a debugger": ["traced"],
    "processes that do not descend from the rank's first one": ["stray"],
}
ABSENT = (
    "io_uring", "userfaultfd", "perf events", "fanotify", "BPF", "kernel keys", "namespaces of its own", "vsock",
)  # fmt: skip
"""A rank's filter refuses them (`test_launcher_hostile`)."""
LOST = (
    "memberships in multicast groups", "memory policies of single areas (`mbind`) and of threads beside the first",
    "timer slack", "`PR_SET_MDWE`",
)  # fmt: skip


def markdown() -> str:
    """The table of the page."""
    rows = (
        ("travels", TRAVEL),
        ("refused by name, before anything is stopped for long", REFUSED),
        ("not to be had in a rank: its system calls fail", ABSENT),
        ("lost by a move", LOST),
    )
    lines = ["| what becomes of it | objects |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {outcome} | {'; '.join(words)} |" for outcome, words in rows)])
