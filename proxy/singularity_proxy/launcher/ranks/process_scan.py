"""Facts from /proc about the processes of a slot: whether they may be dumped, and which files they write."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

PROC = Path("/proc")
_PIDFD_GETFD = 438
"""System call number, the same on all architectures."""
_DELETED = " (deleted)"
_PROJECTED = re.compile(r"/\.\.\d{4}_\d\d_\d\d_")


def processes(init: int, proc: Path = PROC) -> list[int]:
    """PIDs, in our namespace, of all processes in the PID namespace of `init`, without `init` itself."""
    namespace = (proc / str(init) / "ns/pid").readlink()
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == init:
            continue
        try:
            if (entry / "ns/pid").readlink() == namespace and _alive(entry):
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile
    return sorted(found)


def session(leader: int, proc: Path = PROC) -> list[int]:
    """PIDs of all processes in the session of `leader`."""
    found = []
    for entry in proc.iterdir():
        with contextlib.suppress(OSError):  # ended meanwhile
            if entry.name.isdigit() and int(stat_words(entry / "stat")[3]) == leader:
                found.append(int(entry.name))
    return sorted(found)


def _alive(entry: Path) -> bool:
    return stat_words(entry / "stat")[0] not in "ZX"


def stat_words(path: Path) -> list[str]:
    """The words of a process's or thread's `stat` behind its name, which may contain anything: state, parent, ...

    Raises OSError: it has ended.
    """
    return path.read_text().rsplit(")", 1)[1].split()


def open_files(pid: int, proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """(descriptor, target) of a process; nothing for one that has ended."""
    try:
        entries = list((proc / str(pid) / "fd").iterdir())
    except FileNotFoundError:
        return
    for entry in entries:
        try:
            yield int(entry.name), str(entry.readlink())
        except FileNotFoundError:
            continue


def name(pid: int, proc: Path = PROC) -> str:
    """`python3 train.py (pid 1000)`, PID as the process sees itself."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f"process {pid}"
    return f"{' '.join(words).strip()[:80]} (pid {inner_pid(pid, proc)})"


def inner_pid(pid: int, proc: Path = PROC) -> int:
    """PID of a process as it sees itself; as we see it once it has ended."""
    words = _status(pid, "NSpid", proc).split()
    return int(words[-1]) if words else pid


def catches(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether a process has a handler for signal `number`."""
    return bool(int(_status(pid, "SigCgt", proc) or "0", 16) >> (number - 1) & 1)


def traced(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each process that another one traces: nobody else can, then."""
    found = []
    for pid in pids:
        tracer = int(_status(pid, "TracerPid", proc) or 0)
        if tracer:
            found.append(f"{name(pid, proc)} is traced by {name(tracer, proc)}")
    return found


def filtered(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each process with a thread that is under more filters of system calls than a rank begins with."""
    found = []
    for pid in pids:
        tasks: list[Path] = []
        with contextlib.suppress(OSError):  # it has ended
            tasks = list((proc / str(pid) / "task").iterdir())
        most = max((int(_status(int(task.name), "Seccomp_filters", task.parent) or 0) for task in tasks), default=0)
        if most > 1:
            found.append(f"{name(pid, proc)} is under {most} filters")
    return found


def strays(init: int, root: int, proc: Path = PROC) -> list[str]:
    """Processes of a slot that do not descend from its rank's first process.

    :param root: PID of the latter, as it sees itself
    """
    pids = processes(init, proc)
    parents = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            parents[pid] = int(stat_words(proc / str(pid) / "stat")[1])
    family = {pid for pid in pids if inner_pid(pid, proc) == root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return [name(pid, proc) for pid in parents if pid not in family]


def _status(pid: int, field: str, proc: Path) -> str:
    """A line of a process's `status`; "" if it is not there, or the process has ended."""
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return line.partition(":")[2].strip()
    return ""


@contextlib.contextmanager
def borrowed(pid: int, descriptor: int) -> Iterator[int]:
    """A process's open file, as a descriptor of our own. Raises OSError."""
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        own = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
        if own < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
    finally:
        os.close(process)
    try:
        yield own
    finally:
        os.close(own)


def memory_bytes(pids: Sequence[int], enough: int, proc: Path = PROC) -> int:
    """Memory of the processes that is no file's.

    A quick sum counts what several share for each of them. If that is more than `enough`, shared pages count once,
    which takes a look at each page.
    """
    quick = _sum(pids, "status", ("RssAnon:", "RssShmem:"), proc)
    return quick if quick <= enough else _sum(pids, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"), proc)


def _sum(pids: Sequence[int], file: str, fields: tuple[str, ...], proc: Path) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = (proc / str(pid) / file).read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(fields)) * 1024
    return total


def projected_files(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each open file of a projected volume: its path contains a time, and differs in a new pod."""
    return [
        f"{name(pid, proc)} holds {target} open (descriptor {descriptor})"
        for pid in pids
        for descriptor, target in open_files(pid, proc)
        if _PROJECTED.search(target)
    ]


def deleted_files(pids: Sequence[int], proc: Path = PROC) -> dict[Path, int]:
    """Bytes, without holes, of each regular file that the processes hold open and that has no name any more."""
    found = {}
    for pid in pids:
        for descriptor, target in open_files(pid, proc):
            try:
                status = (proc / str(pid) / "fd" / str(descriptor)).stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                found[Path(target)] = min(status.st_size, status.st_blocks * 512)
    return found


def links_left(pids: Sequence[int], proc: Path = PROC) -> list[str]:
    """A sentence for each open file whose own name is deleted, and that has another one (a hard link): CRIU refuses it
    on a volume, and elsewhere it would become a file of its own. In /dev/shm it travels."""
    found = []
    for pid in pids:
        for descriptor, target in open_files(pid, proc):
            if not target.endswith(_DELETED) or target.startswith("/dev/shm/"):  # noqa: S108 - compared, not used
                continue
            with contextlib.suppress(OSError):
                status = (proc / str(pid) / "fd" / str(descriptor)).stat()
                if stat.S_ISREG(status.st_mode) and status.st_nlink > 0:
                    path = target.removesuffix(_DELETED)
                    found.append(f"{name(pid, proc)} has {path} open (descriptor {descriptor})")
    return found


def written_files(pids: Sequence[int], inside: Path, proc: Path = PROC) -> list[Path]:
    """Regular files outside of `inside` that the processes hold open for writing, without deleted ones."""
    found = set()
    for pid in pids:
        for descriptor, target in open_files(pid, proc):
            path = Path(target)
            if not path.is_absolute() or path.is_relative_to(inside) or not _writable(pid, descriptor, proc):
                continue
            try:
                status = (proc / str(pid) / "fd" / str(descriptor)).stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 0:
                found.add(path)
    return sorted(found)


def _writable(pid: int, descriptor: int, proc: Path) -> bool:
    try:
        text = (proc / str(pid) / "fdinfo" / str(descriptor)).read_text()
    except OSError:
        return False
    flags = next((int(line.split()[1], 8) for line in text.splitlines() if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE != os.O_RDONLY
