"""Pid 1 of a slot: starts a rank or adopts a restored one, reaps, and exits with the rank's exit code.

One JSON object per line on stdin, one answer per line on stdout:

    {"run": argv, "env": {...}, "cwd": path, "log": path}   {"pid": 1000}      "as": [uid, gid, group, ...] as whom
    {"adopt": pid}                                          {"pid": pid}
    {"hold": true|false}                                    {"hold": true|false}   held: stay, whatever dies
    {"signal": number}  to the rank                         {"signal": number}

First line on stdout: {"ready": pid}. End of stdin (the launcher is gone): exit, which kills the whole slot.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from typing import Any

from . import mounts

FIRST_PID = 1000
"""PID of a rank's root at a fresh start: above every helper that a restore slot runs before CRIU needs the PIDs."""
DROP = ["setpriv", "--bounding-set=-sys_admin,-net_admin,-sys_time,-sys_ptrace", "--inh-caps=-all"]
LAUNCHER_GONE = 99
CANNOT_EXEC = 127


def parse(line: bytes) -> dict[str, Any]:
    """One order. Raises ValueError that says what is wrong with it."""
    order = json.loads(line)
    if not isinstance(order, dict):
        raise ValueError(f"expected a JSON object, got {type(order).__name__}")
    kinds = {"run": list, "adopt": int, "hold": bool, "signal": int}
    known = [name for name in kinds if name in order]
    if len(known) != 1:
        raise ValueError(f"expected exactly one of {', '.join(kinds)}, got {sorted(order)}")
    name = known[0]
    if type(order[name]) is not kinds[name]:
        raise ValueError(f"{name} = {order[name]!r}: expected {kinds[name].__name__}")
    if name == "run":
        for field, kind in (("env", dict), ("cwd", str), ("log", str)):
            if not isinstance(order.get(field), kind):
                raise ValueError(f"run: {field} = {order.get(field)!r}: expected {kind.__name__}")
        whom = order.setdefault("as", [])
        if not isinstance(whom, list) or len(whom) == 1 or not all(type(number) is int for number in whom):
            raise ValueError(f"run: as = {whom!r}: expected a list of uid, gid and further groups")
    return order


class Init:
    """State of the slot."""

    def __init__(self) -> None:
        self.root: int | None = None
        self.held = False
        self.ended: dict[int, int] = {}
        # Before the masks: /proc/sys becomes read-only.
        self._next_pid = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if "run" in order:
            self.root = self._start(order)
            return {"pid": self.root}
        if "adopt" in order:
            self.root = order["adopt"]
            return {"pid": self.root}
        if "hold" in order:
            self.held = order["hold"]
            return {"hold": self.held}
        if self.root is not None and self.root not in self.ended:
            os.kill(self.root, order["signal"])
        return {"signal": order["signal"]}

    def _start(self, order: dict[str, Any]) -> int:
        # Only at a fresh start: in a restore slot CRIU's own helpers would take these PIDs.
        os.write(self._next_pid, str(FIRST_PID - 1).encode())
        pid = os.fork()
        if pid == 0:
            try:
                _become(order)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(CANNOT_EXEC)
        return pid

    def reap(self) -> int | None:
        """Collect what ended. The rank's exit code (128 + signal) once it has ended and the slot is not held."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.ended[pid] = status
        if self.held or self.root not in self.ended:
            return None
        code = os.waitstatus_to_exitcode(self.ended[self.root])
        return code if code >= 0 else 128 - code


def _become(order: dict[str, Any]) -> None:
    """The child: own session (for CRIU the root leads one), no inherited descriptor, fewer capabilities, its user."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 256)
    os.chdir(order["cwd"])
    os.execvpe(DROP[0], [*DROP, *as_whom(order["as"]), "--", *order["run"]], order["env"])  # noqa: S606 - the user's own command


def as_whom(numbers: list[int]) -> list[str]:
    """For setpriv. `numbers`: uid, gid, further groups; empty: stay who we are."""
    if not numbers:
        return []
    uid, gid, *groups = map(str, numbers)
    return ["--reuid", uid, "--regid", gid, *(["--groups", ",".join(groups)] if groups else ["--clear-groups"])]


def _say(answer: dict[str, Any]) -> None:
    os.write(1, (json.dumps(answer) + "\n").encode())


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # A child's end must wake select: reaping is driven by the signal, not by a short poll.
    wake_out, wake_in = os.pipe()
    os.set_blocking(wake_in, False)
    os.set_blocking(wake_out, False)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    init = Init()
    mounts.mask_proc()
    mounts.private_shm()
    _say({"ready": os.getpid()})
    pending = b""
    while True:
        readable, _, _ = select.select([0, wake_out], [], [], 1.0)
        if wake_out in readable:
            os.read(wake_out, 4096)
        if 0 in readable:
            data = os.read(0, 65536)
            if not data:
                return LAUNCHER_GONE
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                try:
                    _say(init.obey(parse(line)))
                except (ValueError, OSError) as error:
                    _say({"error": str(error)})
        code = init.reap()
        if code is not None:
            return code


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())
