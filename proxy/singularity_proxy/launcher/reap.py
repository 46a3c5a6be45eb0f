"""Child processes of pid 1: the code that started a child of ours waits for it; this module collects orphans of
others."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any

_lock = threading.Lock()
_own: set[int] = set()


def spawn(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """subprocess.Popen whose process `orphans` leaves alone."""
    with _lock:
        process = subprocess.Popen(argv, **options)
        _own.add(process.pid)
        return process


def forget(process: subprocess.Popen[bytes]) -> None:
    """`process` has been waited for; from now on its PID may belong to another process."""
    with _lock:
        _own.discard(process.pid)


def orphans() -> list[int]:
    """Collect ended processes that were reparented to us; returns their PIDs."""
    collected: list[int] = []
    with _lock:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return collected
            if ended is None or ended.si_pid in _own:
                return collected
            # Linux tells of stops under ptrace whatever is asked for. Another thread of ours waits for this one.
            if ended.si_code == os.CLD_TRAPPED:
                return collected
            os.waitpid(ended.si_pid, 0)
            collected.append(ended.si_pid)
