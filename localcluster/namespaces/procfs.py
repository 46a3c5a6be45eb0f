"""Which process is which: a PID is only a name, PID and start time are an identity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HOST_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """:param started: clock ticks since boot, field 22 of /proc/PID/stat (proc_pid_stat(5))"""

    pid: int
    started: int


def identify(proc: Path, pid: int) -> ProcessId | None:
    """The running process `pid` of that procfs; None when there is none or only a zombie."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return None
    state, started = parse_stat(text)
    return None if state in "ZX" else ProcessId(pid, started)


def same(process: ProcessId, proc: Path = HOST_PROC) -> bool:
    """Whether this very process still runs, and not another with its PID."""
    return identify(proc, process.pid) == process


def parse_stat(text: str) -> tuple[str, int]:
    """State and start time of a /proc/PID/stat line; the command in it may hold spaces and parentheses."""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def resident_bytes(proc: Path, pid: int) -> int:
    """Resident memory, 0 when the process has gone."""
    return _status_value(proc, pid, "VmRSS:") * 1024


def _status_value(proc: Path, pid: int, key: str) -> int:
    try:
        for line in (proc / str(pid) / "status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def host_pids(first: int) -> dict[int, int]:
    """PID inside -> PID on the host, for all processes in the PID namespace of host process `first`."""
    namespace = _namespace(first)
    found = {}
    for directory in HOST_PROC.iterdir():
        if not directory.name.isdigit() or _namespace(int(directory.name)) != namespace or not namespace:
            continue
        try:
            lines = (directory / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
        if numbers:
            found[int(numbers[-1])] = int(directory.name)
    return found


def _namespace(pid: int) -> str:
    try:
        return str((HOST_PROC / str(pid) / "ns" / "pid").readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
