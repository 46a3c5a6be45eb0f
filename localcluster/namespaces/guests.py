"""Processes on the host that live at most as long as a cluster: a demonstration's Airflow, for example.

Each is recorded in a folder `guests` somewhere in the cluster's own folder; `down` ends them with the cluster, also
when whoever started them was killed. A guest leads a session of its own, so that its children are known as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import NotReadyError
from .procfs import HOST_PROC, ProcessId, identify

FOLDER = "guests"
STOP_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 30.0


def register(home: Path, name: str, pid: int) -> None:
    """Record the session leader `pid` below `home`, a folder of the cluster; nothing if it has ended already."""
    process = identify(HOST_PROC, pid)
    if process is not None:
        folder = home / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{process.pid} {process.started}")


def running(home: Path) -> list[int]:
    """Pids of all guests below `home` and of everything that they started.

    The kernel does not give a number to another process while a session has it.
    """
    sessions = {record.pid for record in _records(home) if identify(HOST_PROC, record.pid) in (record, None)}
    return [pid for pid, session in _sessions() if session in sessions]


def stop(home: Path) -> None:
    """End all guests below `home`: SIGTERM to leaders, then to what they left behind; SIGKILL after STOP_TIMEOUT_S.

    :raises NotReadyError: some stay KILL_TIMEOUT_S after that (a process in an uninterruptible wait)
    """
    leaders = {record.pid for record in _records(home)}
    deadline = time.monotonic() + STOP_TIMEOUT_S
    asked: set[int] = set()
    while left := running(home):
        if time.monotonic() >= deadline + KILL_TIMEOUT_S:
            raise NotReadyError(f"processes {sorted(left)} do not end, not even by SIGKILL: see /proc/{left[0]}/stack")
        if time.monotonic() >= deadline:
            _signal(left, signal.SIGKILL)
        else:
            # A leader ends its own children in order: they are asked only when it is gone.
            new = {pid for pid in left if pid in leaders} or set(left)
            _signal(new - asked, signal.SIGTERM)
            asked |= new
        time.sleep(0.1)


def _records(home: Path) -> list[ProcessId]:
    found = []
    for path in (*home.glob(f"{FOLDER}/*"), *home.glob(f"*/{FOLDER}/*")):
        try:
            pid, _, started = path.read_text().partition(" ")
        except FileNotFoundError:  # somebody removes the folder at this moment
            continue
        if pid.isdigit() and started.isdigit():  # else its writer was killed in between, before the guest did anything
            found.append(ProcessId(int(pid), int(started)))
    return found


def _sessions() -> Iterator[tuple[int, int]]:
    """(pid, session) of every process that has not ended; proc_pid_stat(5)."""
    for entry in HOST_PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:  # it ended meanwhile
            continue
        state, _parent, _group, session = text[text.rindex(")") + 2 :].split()[:4]
        if state not in "ZX":
            yield int(entry.name), int(session)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
