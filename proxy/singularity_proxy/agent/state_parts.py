"""A rank of the state engine asks its pod's sidecar for what it needs of the checkpoint that it begins with."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ..protocol import names
from ..protocol.messages import FileRange, PartsRequest, to_json

REACH_S = 60.0
"""How long the sidecar may be away, which may just be started anew. There is no limit while it answers."""
RETRY_S = 0.2
ANSWER_S = 60.0
"""Longest wait for one answer; the sidecar's end after 20 s."""
Ranges = Iterable[tuple[str, int, int]]
"""(path below the folder, first byte, byte after the last)."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def bring(root: Path) -> Callable[[Ranges], None] | None:
    """What brings parts of files into `root`; None: they are there, as far as anybody here knows."""
    path, start = os.environ.get(names.ENV_STATE_PARTS), os.environ.get(names.ENV_STATE_FROM)
    if not path or not start or Path(start) != root:
        return None
    return lambda ranges: ask(path, ranges)


def ask(path: str, ranges: Ranges, reach_s: float = REACH_S) -> None:
    """Wait until the sidecar at socket `path` has brought `ranges`.

    Raises OSError: it refuses, or cannot be reached for `reach_s` seconds.
    """
    body = to_json(PartsRequest([FileRange(*each) for each in ranges]))
    heard = time.monotonic()
    while True:
        try:
            with contextlib.closing(_Connection(path)) as connection:
                connection.request("POST", "/v1/parts", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                status, text = response.status, response.read()
            heard = time.monotonic()
            if status == 200:
                return
            if status == 202:
                continue
            problem = f"answers {status}: {text[:500].decode(errors='replace')}"
            if status < 500:
                raise PermissionError(f"the sidecar {problem}")
        except PermissionError:
            raise
        except (OSError, http.client.HTTPException) as error:
            problem = f"cannot be reached: {error!r}"
        if time.monotonic() - heard > reach_s:
            raise TimeoutError(f"the sidecar at {path} {problem}, for {reach_s:.0f} s; see the log of device-proxy")
        time.sleep(RETRY_S)
