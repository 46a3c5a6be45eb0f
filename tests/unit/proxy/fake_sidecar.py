"""The launcher's contract fake: speaks the unix-socket protocol and drives page and ratchet as a sidecar would.

One `FakeSidecar` per pod; one `Coordinator` over all pods of a job takes the place of the mesh. Nothing is uploaded:
images lie where the launcher wrote them and tests copy them to the next pod.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from proxy.protocol import messages, page, ratchet


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    sidecar: FakeSidecar

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):  # a launcher that ended in its long poll
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        sidecar = self.server.sidecar
        if url.path == "/v1/plan":
            if sidecar.refuse:
                self._answer(sidecar.refuse_with, json.dumps({"error": sidecar.refuse}))
            elif sidecar.plan is None:
                self._answer(425, json.dumps({"error": "not ready"}))
            else:
                self._answer(200, messages.to_json(sidecar.plan))
        elif url.path == "/v1/commands":
            command = sidecar.next_command(int(parse_qs(url.query)["after"][0]))
            self._answer(204 if command is None else 200, "" if command is None else messages.to_json(command))
        else:
            self._answer(404, json.dumps({"error": f"no {url.path}"}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.sidecar.take(messages.from_json(messages.LauncherEvent, body))
        self._answer(200, "{}")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def address_string(self) -> str:
        return "launcher"

    def log_message(self, *args: object) -> None:
        pass


class Page:
    """The barrier page as its creator sees it."""

    def __init__(self, run_dir: Path, world_size: int) -> None:
        path = run_dir / "page"
        path.write_bytes(bytes(page.PAGE_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), page.PAGE_SIZE)
        self.words = memoryview(self._map).cast("q")
        self.words[page.W_MAGIC], self.words[page.W_VERSION] = page.MAGIC, page.VERSION
        self.words[page.W_WORLD] = world_size

    def rank(self, rank: int) -> ratchet.RankView:
        count, blocked, state = (self.words[page.rank_word(rank, w)] for w in (0, 1, 2))
        return ratchet.RankView(count, blocked, state)

    def publish(self, request: int, stop_at: int, acquired: int) -> None:
        self.words[page.W_ACQUIRED] = acquired
        self.words[page.W_STOP_AT] = stop_at
        self.words[page.W_REQUEST] = request


class FakeSidecar:
    """:param run_dir: RUN_DIR of the pod as this process sees it"""

    def __init__(self, run_dir: Path, world_size: int, plan: messages.Plan | None = None) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.page = Page(run_dir, world_size)
        self.plan = plan
        self.refuse = ""
        self.refuse_with = 422
        self.world_ends = True
        """A pod whose ranks have ended well is told at once that those of the other pods have, too."""
        self.events: list[messages.LauncherEvent] = []
        self._commands: list[messages.LauncherCommand] = []
        self._changed = threading.Condition()
        # A unix socket address has at most 107 bytes: bind it by its name in its own directory.
        with _inside(run_dir):
            self._server = _Server("sidecar.sock", _Handler)
        self._server.sidecar = self
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, event: messages.LauncherEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        if event.kind == "finished" and self.world_ends:
            self.command("finish")

    def command(self, op: str, **fields: object) -> None:
        with self._changed:
            command = messages.LauncherCommand(seq=len(self._commands) + 1, op=op, **fields)  # type: ignore[arg-type]
            self._commands.append(command)
            self._changed.notify_all()

    def next_command(self, after: int) -> messages.LauncherCommand | None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._commands) > after, timeout=2)
            return self._commands[after] if len(self._commands) > after else None

    def wait_event(
        self, *kinds: str, timeout: float = 120, alive: Callable[[], bool] = lambda: True, skip: int = 0
    ) -> messages.LauncherEvent:
        """The first event of one of `kinds` after the first `skip` events."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for event in self.events[skip:]:
                    if event.kind in kinds:
                        return event
                assert alive(), f"the launcher ended while {kinds} was awaited; events: {self.events}"
                assert time.monotonic() < deadline, f"no {kinds} within {timeout} s; events: {self.events}"
                self._changed.wait(0.2)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Coordinator:
    """Barrier over all pods. `sidecars`: rank -> sidecar of its pod."""

    def __init__(self, sidecars: dict[int, FakeSidecar]) -> None:
        self.sidecars = sidecars

    def views(self) -> list[ratchet.RankView]:
        return [sidecar.page.rank(rank) for rank, sidecar in sorted(self.sidecars.items())]

    def wait_count(self, count: int, timeout: float = 120, alive: Callable[[], bool] = lambda: True) -> None:
        """Until every rank has passed `count` boundaries."""
        deadline = time.monotonic() + timeout
        while min(view.count for view in self.views()) < count:
            assert alive(), "a launcher ended"
            assert time.monotonic() < deadline, f"no rank set at step {count} within {timeout} s: {self.views()}"
            time.sleep(0.005)

    def acquire(self, generation: int, timeout: float = 60) -> int:
        """Stop all ranks at the same step, which is returned."""
        deadline = time.monotonic() + timeout
        stop_at = 0
        while True:
            decision = ratchet.decide(self.views(), generation, stop_at)
            assert not decision.finished, "a rank has finished"
            stop_at = decision.stop_at
            for sidecar in set(self.sidecars.values()):
                sidecar.page.publish(generation, stop_at, generation if decision.acquired else 0)
            if decision.acquired:
                return stop_at
            assert time.monotonic() < deadline, f"no barrier within {timeout} s: {self.views()}"
            time.sleep(0.002)
