"""A rank as an ordinary child of the launcher, in its namespaces: it needs no right that the pod lacks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import reap
from ..errors import SlotError
from . import process_scan
from .user import User

CANNOT_EXEC = 127
"""As a shell has it, and as ranks in slots have it."""
KILL_S = 30.0


class PlainRank:
    """A session of its own, so that all of it can be killed. What leaves the session ends with the container."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, whom: User | None = None
    ) -> None:
        """Start the rank, as the launcher's own user. Raises SlotError for `whom`: nobody here may become another."""
        if whom is not None:
            raise SlotError(f"rank {self.rank} cannot run as uid {whom.uid}: the pod's securityContext says who it is")
        with log.open("ab") as out:
            try:
                self._process = reap.spawn(
                    list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                out.write(f"{argv[0]}: cannot be executed: {error.strerror}\n".encode())
                self._code = CANNOT_EXEC

    def signal(self, number: int) -> None:
        """Send a signal to the rank's first process, if it has not ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def pass_on(self, number: int) -> bool:
        """The same, if that process has a handler for it."""
        caught = self._process is not None and process_scan.catches(self._process.pid, number)
        if caught:
            self.signal(number)
        return caught

    def processes(self) -> list[int]:
        """PIDs of what is in its session."""
        return [] if self._process is None or self._code is not None else process_scan.session(self._process.pid)

    def poll(self) -> int | None:
        """The rank's exit code (128 + signal), None while its first process lives."""
        if self._process is not None and self._code is None:
            code = self._process.poll()
            if code is not None:
                self._end()
                self._code = code if code >= 0 else 128 - code
        return self._code

    def kill(self) -> None:
        """End the rank and everything in its session, now."""
        if self._process is not None:
            self._end()
            self._process.wait(KILL_S)

    def _end(self) -> None:
        """What its first process has left behind ends, too, as in a slot."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.poll() is not None:
            reap.forget(self._process)
