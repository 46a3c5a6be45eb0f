"""What a pod's sidecar is to its launcher, and its mesh to the barrier: plan, commands and events over a unix socket.

The page is the sidecar's own; the ratchet is the protocol's. Nothing is uploaded: images lie where the launcher has
written them, and are moved to the next pod.
"""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from singularity_proxy.protocol import messages, names, ratchet
from singularity_proxy.sidecar.barrier_page import BarrierPage

from .kit import PartError

POLL_S = 0.002
COMMAND_S = 2.0
"""How long the launcher's question for a command stays open."""
Alive = Callable[[], str]
"""Why a pod can do nothing any more, "" while it can."""


class Endpoint:
    """The unix socket of one pod: a plan, commands, and what the launcher says.

    :param run_dir: RUN_DIR of the pod as this process sees it
    """

    def __init__(self, run_dir: Path, plan: messages.Plan | None) -> None:
        (run_dir / names.SOCKET_FILE).parent.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self.world_ends = True
        """A pod whose ranks have ended well hears at once that those of the other pods have, too."""
        self.events: list[messages.LauncherEvent] = []
        self._commands: list[messages.LauncherCommand] = []
        self._changed = threading.Condition()
        with _inside(run_dir):  # the address of a unix socket has at most 107 bytes
            self._server = _Server(names.SOCKET_FILE, _Handler)
        self._server.endpoint = self
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer_plan(self) -> tuple[int, str]:
        """HTTP status and body."""
        return (425, json.dumps({"error": "not ready"})) if self.plan is None else (200, messages.to_json(self.plan))

    def take(self, event: messages.LauncherEvent) -> None:
        """The launcher has said something."""
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        if event.kind == "finished" and self.world_ends:
            self.command("finish")

    def command(self, op: str, **fields: object) -> None:
        with self._changed:
            made = messages.LauncherCommand(seq=len(self._commands) + 1, op=op, **fields)  # type: ignore[arg-type]
            self._commands.append(made)
            self._changed.notify_all()

    def next_command(self, after: int) -> messages.LauncherCommand | None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._commands) > after, timeout=COMMAND_S)
            return self._commands[after] if len(self._commands) > after else None

    def first(self, kinds: tuple[str, ...], skip: int, patience: Callable[[], None]) -> messages.LauncherEvent:
        """The first event of one of `kinds` after the first `skip` ones; `patience` raises when it is over."""
        with self._changed:
            while True:
                for event in self.events[skip:]:
                    if event.kind in kinds:
                        return event
                patience()
                self._changed.wait(0.2)


class Conductor(Endpoint):
    """An endpoint with the barrier page of its pod."""

    plan: messages.Plan

    def __init__(self, run_dir: Path, plan: messages.Plan) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.page = BarrierPage(run_dir, plan.world_size)
        super().__init__(run_dir, plan)

    def wait(self, kinds: tuple[str, ...], timeout: float, ended: Alive, skip: int = 0) -> messages.LauncherEvent:
        """The first event of one of `kinds` after the first `skip` ones. Raises PartError."""
        deadline = time.monotonic() + timeout

        def patience() -> None:
            why = ended()
            if why:
                raise PartError(f"{why} while {' or '.join(kinds)} was awaited")
            if time.monotonic() > deadline:
                raise PartError(f"no {' or '.join(kinds)} within {timeout:.0f} s")

        return self.first(kinds, skip, patience)


def acquire(pods: Mapping[int, Conductor], generation: int, step: int, timeout: float, ended: Alive) -> int:
    """Stop all ranks at the same boundary, after at least `step`; which one. `pods`: rank -> its pod's conductor.

    Raises PartError.
    """
    deadline = time.monotonic() + timeout
    stop_at = 0

    def views() -> list[ratchet.RankView]:
        return [pod.page.view(rank) for rank, pod in sorted(pods.items())]

    while min(view.count for view in views()) < step:
        _patience(deadline, ended, f"step {step}", views)
    while True:
        decision = ratchet.decide(views(), generation, stop_at)
        if decision.finished:
            raise PartError("a rank had finished before it could be stopped")
        stop_at = decision.stop_at
        for pod in set(pods.values()):
            (pod.page.acquire if decision.acquired else pod.page.ask)(generation, stop_at)
        if decision.acquired:
            return stop_at
        _patience(deadline, ended, "a barrier", views)


def _patience(deadline: float, ended: Alive, what: str, views: Callable[[], list[ratchet.RankView]]) -> None:
    why = ended()
    if why:
        raise PartError(f"{why} while {what} was awaited")
    if time.monotonic() > deadline:
        raise PartError(f"{what} was not reached in time; ranks are at {[view.count for view in views()]}")
    time.sleep(POLL_S)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    endpoint: Endpoint

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):  # a launcher that has ended in its long poll
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/v1/plan":
            self._answer(*self.server.endpoint.answer_plan())
        elif url.path == "/v1/commands":
            command = self.server.endpoint.next_command(int(parse_qs(url.query)["after"][0]))
            self._answer(204 if command is None else 200, "" if command is None else messages.to_json(command))
        else:
            self._answer(404, json.dumps({"error": f"no {url.path}"}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.endpoint.take(messages.from_json(messages.LauncherEvent, body))
        self._answer(200, "{}")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def address_string(self) -> str:
        return "launcher"

    def log_message(self, *args: object) -> None:
        return


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
