"""One rank's slot, seen from the launcher: a PID and mount namespace of its own with a tiny init.

Inside a slot CRIU sees no foreign namespace, /proc is right, and PIDs of different ranks may be the same. The slot
dies with the process that made it; that process exits with the rank's exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import reap
from ..errors import LauncherError, SlotError
from ..paths import Paths
from ..tools import Tools
from . import process_scan
from .user import User

ANSWER_TIMEOUT_S = 30.0
ENDS_S = 5.0
LOOK_S = 1.0
ROOT = Path("/")


@dataclass(frozen=True)
class Ended:
    """:param said: the end of what it wrote"""

    code: int
    said: str


class Slot:
    """Raises SlotError from every method that talks to the slot's init, when it does not answer.

    No slot is made after the first rank of a pod has started: that rank could interfere while the others are made.
    """

    def __init__(self, rank: int, paths: Paths, tools: Tools, view: Path = ROOT) -> None:
        self.rank = rank
        self.view = view
        """The slot's root file system, seen from here, without the volumes that are mounted in it."""
        self.root = 0
        """PID of the rank's first process, inside the slot."""
        self.asleep: frozenset[int] | None = None
        """While we have stopped its processes: those that the program had stopped itself."""
        self._tools = tools
        self._hidden = paths.images("")
        self._stderr = os.fdopen(os.memfd_create("slot"), "w+b")
        features = os.memfd_create("features")
        try:
            os.write(features, _features(tools))
            words = [str(self._hidden), str(paths.socket.parent), str(paths.views), str(view), str(features)]
            self._process = reap.spawn(
                tools.python("ranks.slot_init", *words), env=tools.environment(), pass_fds=(features,),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(features)
        self._pending = b""
        ready = self._read()
        if ready.get("ready") != 1:
            raise SlotError(f"slot of rank {rank}: its init is not pid 1 of a new PID namespace")
        self._images = f"/proc/1/fd/{ready['images']}"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self.init = int(children[0])
        """PID of the slot's init, in the launcher's namespace."""

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, whom: User | None = None
    ) -> None:
        """Start the rank. `whom`: None, as root."""
        order: dict[str, Any] = {"run": list(argv), "env": dict(env), "cwd": str(cwd), "log": str(log)}
        if whom is not None:
            order["as"] = [whom.uid, whom.gid, *whom.groups]
        self.root = int(self._ask(order)["pid"])

    def adopt(self, root: int) -> None:
        """The rank is about to be restored here with PID `root`."""
        self.root = int(self._ask({"adopt": root})["pid"])

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        real: tuple[int, int] = (0, 0),
        connect: str = "",
        given_up: Callable[[], bool] = lambda: False,
    ) -> Ended | None:
        """Run one of our tools in the slot. The slot stays meanwhile, whatever process ends in it. None: the tool has
        not ended in time, or was given up.

        :param real: its real uid and gid; in effect it is root
        :param connect: unix socket, as `seen` from the slot, to which the tool's descriptor TOOL_SOCKET is connected
        :param given_up: asked every LOOK_S whether to wait no longer
        """
        order = {"tool": list(argv), "env": self._tools.environment(), "real": list(real), "connect": connect}
        pid = self._ask(order)["tool"]
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                answer = self._read(min(deadline - time.monotonic(), LOOK_S))
            except TimeoutError:
                if time.monotonic() >= deadline or given_up():
                    return None
                continue
            if answer.get("ended") == pid:
                return Ended(int(answer["code"]), str(answer["said"]))

    def signal(self, number: int) -> None:
        """Send a signal to the rank's first process, if it has not ended."""
        for pid in process_scan.processes(self.init):
            if process_scan.inner_pid(pid) == self.root:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def pass_on(self, number: int) -> bool:
        """The same, if that process has a handler for it. A program that is pid 1 itself does not end by a signal that
        it does not handle, and should not end here. Raises OSError: the slot has ended."""
        for pid in process_scan.processes(self.init):
            if process_scan.inner_pid(pid) == self.root and process_scan.catches(pid, number):
                os.kill(pid, number)
                return True
        return False

    @property
    def inside(self) -> Path:
        """All that the slot sees, seen from here."""
        return Path(f"/proc/{self.init}/root")

    @property
    def shm(self) -> Path:
        """The slot's own /dev/shm, seen from here."""
        return self.inside / "dev/shm"

    @property
    def proc(self) -> Path:
        """The slot's own /proc, seen from here."""
        return self.inside / "proc"

    def seen(self, path: Path) -> str:
        """The path by which a tool in the slot finds a path in the folder of images. No other process there sees that
        folder."""
        return f"{self._images}/{path.relative_to(self._hidden)}"

    def poll(self) -> int | None:
        """The rank's exit code (128 + signal), None while the slot lives."""
        code = self._process.poll()
        if code is None:
            return None
        reap.forget(self._process)
        return code if code >= 0 else 128 - code

    def wait(self) -> int | None:
        """`poll` of a slot that is about to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDS_S)
        return self.poll()

    def kill(self) -> None:
        """End the slot and everything in it, now."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)  # takes the init along, and the kernel all its processes
            self._process.wait(ANSWER_TIMEOUT_S)
        reap.forget(self._process)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(order) + "\n").encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed(f"is gone ({error})") from None
        while True:
            try:
                answer = self._read()
            except TimeoutError:
                raise self._failed(f"did not answer within {ANSWER_TIMEOUT_S:.0f} s") from None
            if "ended" not in answer:  # else of a tool whose time was over
                return answer

    def _read(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """The next answer. Raises TimeoutError."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError
            data = self._process.stdout.read1(65536)  # type: ignore[attr-defined]
            if not data:
                raise self._failed("ended")
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SlotError(f"slot of rank {self.rank}: {answer['error']}")
        return answer

    def _failed(self, what: str) -> SlotError:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip()
        return SlotError(
            f"slot of rank {self.rank} {what}. {said or 'It said nothing.'} The training container needs the "
            "capabilities SYS_ADMIN, NET_ADMIN, SYS_TIME, SYS_PTRACE, and seccomp Unconfined."
        )


def _features(tools: Tools) -> bytes:
    """Ranks train without it, too: a problem with CRIU concerns only checkpoints."""
    try:
        return tools.features()
    except LauncherError:
        return b""
