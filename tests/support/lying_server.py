"""An HTTP server before an object store's: it answers what is read with something else than what is there."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class Answer(NamedTuple):
    """Of a store to a GET of an object. `length`: of the whole object."""

    status: int
    first: int
    body: bytes
    length: int

    def sent(self) -> dict[str, str]:
        """The headers that say what the body is."""
        if self.status != http.client.PARTIAL_CONTENT:
            return {}
        return {"Content-Range": f"bytes {self.first}-{self.first + len(self.body) - 1}/{self.length}"}


Lie = Callable[[Answer, bytes], Answer]
"""From the answer that was asked for, and the whole object, to the one that is given."""


class LyingServer:
    """:param port: of the server that has the objects

    `lie` is for what is read of paths with `about` in them; None: the truth.
    """

    def __init__(self, port: int) -> None:
        self.lie: Lie | None = None
        self.about = "/packs/"
        self.told = 0
        """Lies so far."""
        lying = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                lying.answer(self, port, self.rfile.read(size))

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """No answer any more."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, port: int, body: bytes) -> None:
        """Ask the server, and hand its answer on, or a lie."""
        told, headers, content = _ask(port, request, dict(request.headers), body)
        lie = self.lie
        reads = request.command == "GET" and self.about in unquote(urlsplit(request.path).path)
        if lie is not None and reads and told in (200, 206):
            whole = {name: value for name, value in request.headers.items() if name.lower() != "range"}
            full = _ask(port, request, whole, b"")[2]
            first, _, _ = headers.get("Content-Range", "bytes 0-").removeprefix("bytes ").partition("-")
            said = lie(Answer(told, int(first), content, len(full)), full)
            told, content = said.status, said.body
            headers = {name: value for name, value in headers.items() if name.lower() not in _ABOUT_CONTENT}
            headers.update(said.sent())
            self.told += 1
        request.send_response_only(told)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                request.send_header(name, value)
        length = headers.get("Content-Length") if request.command == "HEAD" else str(len(content))
        if told != http.client.NO_CONTENT:
            request.send_header("Content-Length", length or "0")
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)


_ABOUT_CONTENT = ("content-range", "x-goog-hash", "content-md5", "content-encoding")


def _ask(
    port: int, request: BaseHTTPRequestHandler, headers: dict[str, str], body: bytes
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(request.command, request.path, body, headers)
        found = connection.getresponse()
        return found.status, dict(found.headers), found.read()
    finally:
        connection.close()
