"""CPU, memory and connections of a process and of all that it has started (its session)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ESTABLISHED = "01"


class Session:
    """:param leader: process id of the session's leader"""

    def __init__(self, leader: int) -> None:
        self._leader = leader

    def pids(self) -> list[int]:
        return [pid for pid, fields in _all() if int(fields[3]) == self._leader]

    def cpu_s(self) -> float:
        """CPU seconds of those that live, and of their children that have ended."""
        mine = [fields for _, fields in _all() if int(fields[3]) == self._leader]
        return sum(int(number) for fields in mine for number in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    def cores(self, window_s: float) -> float:
        """CPU seconds per second over a window from now."""
        before, began = self.cpu_s(), time.monotonic()
        time.sleep(window_s)
        return (self.cpu_s() - before) / (time.monotonic() - began)

    def memory_kb(self) -> float:
        """Proportional set size: what is shared counts once."""
        return pss_kb(self.pids())

    def connections(self, port: int) -> int:
        """Established TCP connections to a remote `port`."""
        inodes: set[str] = set()
        rows: dict[str, bool] = {}
        for pid in self.pids():
            for fd in _links(Path(f"/proc/{pid}/fd")):
                found = re.fullmatch(r"socket:\[(\d+)\]", fd)
                if found:
                    inodes.add(found[1])
            for name in ("tcp", "tcp6"):
                for line in _text(Path(f"/proc/{pid}/net/{name}")).splitlines()[1:]:
                    columns = line.split()
                    remote_port = int(columns[2].rpartition(":")[2], 16)
                    rows[columns[9]] = columns[3] == ESTABLISHED and remote_port == port
        return sum(rows.get(inode, False) for inode in inodes)


def pss_kb(pids: Iterable[int]) -> float:
    """Proportional set size of these processes, without those that have just ended."""
    texts = [_text(Path(f"/proc/{pid}/smaps_rollup")) for pid in pids]
    found = [number for text in texts for number in re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)]
    return float(sum(map(int, found)))


def _all() -> Iterator[tuple[int, list[str]]]:
    """Process id and the fields of /proc/PID/stat from the state on, for every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            text = _text(entry / "stat")
            if text:
                yield int(entry.name), text.rpartition(")")[2].split()


def _text(path: Path) -> str:
    """ "" when the process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _links(folder: Path) -> Iterator[str]:
    try:
        for entry in folder.iterdir():
            try:
                yield str(entry.readlink())
            except OSError:
                continue
    except OSError:
        return
