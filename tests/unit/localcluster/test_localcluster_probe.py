"""DNS and HTTP questions, asked of real servers on this machine's loopback."""

from __future__ import annotations

import http.server
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localcluster.control_plane import probe


@contextmanager
def dns_server(reply_to: bytes | None = None, address: str = "10.230.0.1") -> Iterator[int]:
    """Answers one question: a CNAME record, then an A record; or with the fixed bytes `reply_to`."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.settimeout(10)

    def serve() -> None:
        query, client = server.recvfrom(512)
        if reply_to is not None:
            server.sendto(reply_to, client)
            return
        header = query[:2] + struct.pack(">HHHHH", 0x8180, 1, 2, 0, 0)
        alias = b"\xc0\x0c" + struct.pack(">HHIH", 5, 1, 5, 4) + b"\x01a\xc0\x0c"
        record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + socket.inet_aton(address)
        server.sendto(header + query[12:] + alias + record, client)

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    thread.join()
    server.close()


def test_address_of_a_name() -> None:
    with dns_server() as port:
        assert probe.resolve("127.0.0.1", "kubernetes.default.svc", port=port, timeout=5) == ["10.230.0.1"]


@pytest.mark.parametrize("reply", [b"", b"\0", b"\0" * 12, b"\xff" * 40])
def test_damaged_replies_are_no_answer(reply: bytes) -> None:
    with dns_server(reply) as port:
        assert probe.resolve("127.0.0.1", "a.b", port=port, timeout=5) == []


def test_reply_cut_short_is_no_answer() -> None:
    query = probe.question(7, "a.b")
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + b"\x0a\x00\x00\x01"
    reply = query[:2] + struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0) + query[12:] + record
    assert probe.answers(reply, 7) == ["10.0.0.1"]
    assert probe.answers(reply, 8) == []
    for length in range(len(reply)):
        assert probe.answers(reply[:length], 7) == []


def test_http() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/ok" else 500)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        assert probe.http_ok(f"{base}/ok")
        assert not probe.http_ok(f"{base}/bad")
        server.shutdown()
    assert not probe.http_ok(f"{base}/ok")
