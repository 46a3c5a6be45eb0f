"""The launcher's side of the sidecar API: HTTP over the unix socket."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from pathlib import Path

from ..protocol import decode, exit_codes, messages
from .errors import SidecarAwayError, SidecarError

REACH_S = 60.0
"""How long the sidecar may be unreachable before the launcher gives up, seconds."""
RETRY_S = 0.2
ANSWER_S = 60.0
"""Longest wait for one answer; the sidecar's long polls end after 20 s."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class SidecarClient:
    """Thread-safe: one connection per request."""

    def __init__(self, path: Path, reach_s: float = REACH_S) -> None:
        self._path = path
        self._reach_s = reach_s

    def _request(self, method: str, target: str, body: str = "") -> tuple[int, bytes]:
        connection = _UnixConnection(self._path, ANSWER_S)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, target, body or None, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def _persistent(self, method: str, target: str, body: str = "") -> tuple[int, bytes]:
        """Retry while the sidecar cannot be reached or answers 5xx. Raises SidecarAwayError after `reach_s`."""
        deadline = time.monotonic() + self._reach_s
        while True:
            try:
                status, data = self._request(method, target, body)
                if status < 500:
                    return status, data
                problem = f"answers {status}: {_reason(data)}"
            except (OSError, http.client.HTTPException) as error:
                problem = f"cannot be reached ({error!r})"
            if time.monotonic() > deadline:
                raise SidecarAwayError(
                    f"{method} {target}: the sidecar at {self._path} {problem}, for {self._reach_s:.0f} s; see the "
                    "log of container device-proxy"
                )
            time.sleep(RETRY_S)

    def plan(self) -> messages.Plan:
        """What to do. Waits as long as the sidecar says "not ready yet". Raises SidecarError."""
        while True:
            status, data = self._persistent("GET", "/v1/plan")
            if status == 200:
                try:
                    return messages.from_json(messages.Plan, data)
                except messages.MessageError as error:
                    raise SidecarError(f"the sidecar's plan makes no sense: {error}") from None
            if status == 422:
                raise _refusal(data)
            if status != 425:
                raise SidecarError(f"the sidecar answers {status} where a plan was asked for: {_reason(data)}")
            time.sleep(RETRY_S)

    def next_command(self, after: int) -> messages.LauncherCommand | None:
        """The next command after number `after`, None when there is none yet. Raises SidecarError."""
        status, data = self._persistent("GET", f"/v1/commands?after={after}")
        if status == 204:
            return None
        if status != 200:
            raise SidecarError(f"the sidecar has no commands for us ({status}): {_reason(data)}")
        try:
            return messages.from_json(messages.LauncherCommand, data)
        except messages.MessageError as error:
            raise SidecarError(f"the sidecar's command makes no sense: {error}") from None

    def post(self, event: messages.LauncherEvent) -> None:
        """Tell the sidecar. Raises SidecarError."""
        status, data = self._persistent("POST", "/v1/events", messages.to_json(event))
        if status >= 300:
            raise SidecarError(f"the sidecar refuses event {event.kind} ({status}): {_reason(data)}")


def _refusal(data: bytes) -> SidecarError:
    try:
        refusal = messages.from_json(messages.Refusal, data)
    except messages.MessageError:
        return SidecarError(f"the sidecar refuses to give a plan: {_reason(data)}")
    again = ". This attempt ends here, the next one tries again" if refusal.exit_code in exit_codes.IGNORED else ""
    return SidecarError(f"the sidecar refuses to give a plan: {refusal.error}{again}", refusal.exit_code)


def _reason(data: bytes) -> str:
    told = decode.json_value(data)
    if isinstance(told, dict) and "error" in told:
        return str(told["error"])
    return data.decode(errors="replace")[:500] or "no reason given"
