"""A slot: PID and mount namespace of a rank, and pid 1 in it, which starts a rank or CRIU, reaps, and ends as the rank.

One JSON object per line on stdin, answers one per line on stdout:

    {"run": argv, "env": {...}, "cwd": path, "log": path}   {"pid": 1000}      "as": [uid, gid, group, ...] as whom
    {"adopt": pid}                                          {"pid": pid}
    {"tool": argv, "env": {...}, "real": [uid, gid],        {"tool": pid}, and when it has ended
     "connect": path of a unix socket, or ""}               {"ended": pid, "code": number, "said": its last words}

While a tool (CRIU) runs, the slot stays, whatever dies. First line on stdout: {"ready": 1, "images": descriptor of
their folder, which the slot itself does not see}. End of stdin (the launcher is gone): exit, which kills the slot.

Arguments: the folder of images, the folder of the sidecar's socket, that of the views (`views`), the view of this slot,
a descriptor with what CRIU knows about the kernel.
Everything in here runs with the launcher's capabilities: see `tools`.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from ...protocol import names
from .. import socket_room
from . import libc, mounts, privileges, seccomp

FIRST_PID = 1000
"""PID of a rank's root at a fresh start: above every helper that a restore slot runs before CRIU needs the PIDs."""
LAUNCHER_GONE = 99
CANNOT_EXEC = 127
TOOL_SOCKET = 3
"""Descriptor of a tool's socket, if it was given one."""
WORDS = 2000
"""Bytes of a tool's output that are passed on."""
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_ADDR_NO_RANDOMIZE = 0x0040000


def parse(line: bytes) -> dict[str, Any]:
    """One order. Raises ValueError that says what is wrong with it."""
    order = json.loads(line)
    if not isinstance(order, dict):
        raise ValueError(f"expected a JSON object, got {type(order).__name__}")
    kinds = {"run": list, "adopt": int, "tool": list}
    known = [name for name in kinds if name in order]
    if len(known) != 1:
        raise ValueError(f"expected exactly one of {', '.join(kinds)}, got {sorted(order)}")
    name = known[0]
    if type(order[name]) is not kinds[name]:
        raise ValueError(f"{name} = {order[name]!r}: expected {kinds[name].__name__}")
    fields: dict[str, tuple[tuple[str, type], ...]]
    fields = {"run": (("env", dict), ("cwd", str), ("log", str)), "adopt": ()}
    fields["tool"] = (("env", dict), ("real", list), ("connect", str))
    for field, kind in fields[name]:
        if not isinstance(order.get(field), kind):
            raise ValueError(f"{name}: {field} = {order.get(field)!r}: expected {kind.__name__}")
    whom = order.setdefault("as", [])
    if not isinstance(whom, list) or len(whom) == 1 or not all(type(number) is int for number in whom):
        raise ValueError(f"{name}: as = {whom!r}: expected a list of uid, gid and further groups")
    return order


class Init:
    """State of the slot."""

    def __init__(self) -> None:
        self.root: int | None = None
        self.ended: dict[int, int] = {}
        self.tools: dict[int, int] = {}
        """PID of a tool that runs -> descriptor that it writes to."""
        # Before the masks: /proc/sys becomes read-only.
        self._next_pid = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if "run" in order:
            self.root = self._start(order)
            return {"pid": self.root}
        if "adopt" in order:
            self.root = order["adopt"]
            return {"pid": self.root}
        return {"tool": self._tool(order)}

    def _start(self, order: dict[str, Any]) -> int:
        # Only at a fresh start: in a restore slot CRIU's own helpers would take these PIDs.
        os.write(self._next_pid, str(FIRST_PID - 1).encode())
        pid = os.fork()
        if pid == 0:
            _child(lambda: _become(order))
        return pid

    def _tool(self, order: dict[str, Any]) -> int:
        said = os.memfd_create("said")
        pid = os.fork()
        if pid == 0:
            _child(lambda: _exec_tool(order, said))
        self.tools[pid] = said
        return pid

    def reap(self) -> int | None:
        """Collect ended processes. Returns the rank's exit code (128 + signal) once it has ended and no tool runs."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self.tools:
                _say({"ended": pid, "code": _code(status), "said": _last_words(self.tools.pop(pid))})
            else:
                self.ended[pid] = status
        if self.tools or self.root not in self.ended:
            return None
        return _code(self.ended[self.root])


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _last_words(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    words = os.pread(descriptor, WORDS, max(0, size - WORDS))
    os.close(descriptor)
    return words.decode(errors="replace").strip()


def _child(become: Any) -> None:
    """In a forked child: `become` executes another program; otherwise the child ends."""
    try:
        become()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(CANNOT_EXEC)


def _become(order: dict[str, Any]) -> None:
    """A rank: own session (for CRIU the root leads one), no inherited descriptor, its user, its few rights.

    A process whose parent ends becomes its child, as with pid 1 of a container: CRIU saves a tree.
    """
    os.setsid()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _plain(log)
    os.chdir(order["cwd"])
    if order["env"].get(names.ENV_REPRODUCIBLE_LAYOUT):
        libc.check(libc.load().personality(_ADDR_NO_RANDOMIZE), "addresses without randomness")
    privileges.drop(order["as"])
    seccomp.apply()
    try:
        os.execvpe(order["run"][0], order["run"], order["env"])  # noqa: S606 - the user's own command
    except OSError as error:
        print(f"{order['run'][0]}: cannot be executed: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(CANNOT_EXEC)


def _exec_tool(order: dict[str, Any], said: int) -> None:
    """A tool: prlimit(2) on a process compares with the caller's *real* ids alone, so it gets those (`Criu.dump`)."""
    _plain(said)
    if order["connect"]:
        connected = socket.socket(socket.AF_UNIX)
        socket_room.widen(connected)
        connected.connect(order["connect"])
        assert connected.detach() == TOOL_SOCKET, "no other descriptor is open"
        os.set_inheritable(TOOL_SOCKET, True)
    uid, gid = order["real"]
    os.setresgid(gid, -1, -1)
    os.setresuid(uid, -1, -1)
    os.execve(order["tool"][0], order["tool"], order["env"])  # noqa: S606 - of our own tools


def _plain(output: int) -> None:
    """Nothing to read, `output` to write to, no other descriptor, default signals."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores the last two
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 1 << 20)


def _say(answer: dict[str, Any]) -> None:
    os.write(1, (json.dumps(answer) + "\n").encode())


def enter(images: Path, hidden: Path, views: Path, view: Path, features: bytes) -> int:
    """The slot as its rank sees it. Returns a descriptor of the folder of images. Raises OSError."""
    mounts.private("/")
    if view != Path("/"):
        mounts.enter(view)
    mounts.own_proc()
    descriptor = os.open(images, os.O_RDONLY | os.O_DIRECTORY)
    mounts.conceal(images, features)
    for folder in (hidden, *([views] if views.exists() else [])):
        mounts.conceal(folder, b"")
    return descriptor


def serve(descriptor: int) -> int:
    """Pid 1 of the slot, until its rank has ended or the launcher is gone. Returns the exit code."""
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
    _say({"ready": os.getpid(), "images": descriptor})
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


def main() -> int:
    images, hidden, views, view = map(Path, sys.argv[1:5])
    features = int(sys.argv[5])
    known = os.pread(features, 1 << 20, 0)
    os.close(features)
    mounts.unshare(mounts.NEWNS | mounts.NEWPID)
    pid = os.fork()
    if pid:
        # What the launcher waits for, and kills; the namespace ends with its pid 1.
        for standard in (0, 1):
            os.close(standard)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        return _code(os.waitpid(pid, 0)[1])
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return serve(enter(images, hidden, views, view, known))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
