"""One rank's slot, seen from the launcher: a PID and mount namespace of its own with a tiny init.

Inside a slot CRIU sees no foreign namespace, /proc is right, and PIDs of different ranks may be the same. The slot
dies with its `unshare` process; that process exits with the rank's exit code.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import reap
from .errors import SlotError
from .user import User

ANSWER_TIMEOUT_S = 30.0
UNSHARE = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")


class Slot:
    """Raises SlotError from every method that talks to the slot's init, when it does not answer."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.root = 0
        """PID of the rank's first process, inside the slot."""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the slot
        self._process = reap.spawn(
            [*UNSHARE, sys.executable, "-m", f"{__package__}.slotinit"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True,
        )  # fmt: skip
        self._pending = b""
        if self._read().get("ready") != 1:
            raise SlotError(f"slot of rank {rank}: its init is not pid 1 of a new PID namespace")
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

    def hold(self, on: bool) -> None:
        """Held, the slot survives the end of its rank (CRIU runs in it)."""
        self._ask({"hold": on})

    def signal(self, number: int) -> None:
        """Send a signal to the rank's first process."""
        self._ask({"signal": int(number)})

    @property
    def shm(self) -> Path:
        """The slot's own /dev/shm, seen from here."""
        return Path(f"/proc/{self.init}/root/dev/shm")

    def inside(self, argv: Sequence[str]) -> list[str]:
        """argv that runs `argv` inside the slot."""
        return ["nsenter", "-t", str(self.init), "-m", "-p", *argv]

    def poll(self) -> int | None:
        """The rank's exit code (128 + signal), None while the slot lives."""
        code = self._process.poll()
        if code is None:
            return None
        reap.forget(self._process)
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """End the slot and everything in it, now."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)  # --kill-child takes the init along, the kernel all its processes
            self._process.wait(ANSWER_TIMEOUT_S)
        reap.forget(self._process)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(order) + "\n").encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed(f"is gone ({error})") from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise self._failed(f"did not answer within {ANSWER_TIMEOUT_S:.0f} s")
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
            "capabilities SYS_ADMIN, NET_ADMIN, SYS_TIME, SYS_PTRACE, seccomp Unconfined, and util-linux in its image."
        )
