"""Requests that are sent together, against a server that answers them as servers may."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kueue_integration.kube import pipelines
from kueue_integration.kube.pipelines import Answer, Pipelines, request

HEADERS = [("Accept", "application/json")]


def sized(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\nDate: now\r\n\r\n%s" % (status, len(body), body)


def chunked(body: bytes, status: int = 200) -> bytes:
    parts = [body[place : place + 3] for place in range(0, len(body), 3)]
    told = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 %d OK\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % (status, told)


class Server:
    """`answer` makes what is sent for the body of a request; None ends the connection."""

    def __init__(self, answer: Callable[[bytes], bytes | None], pieces: int = 1 << 20) -> None:
        self._answer, self._pieces = answer, pieces
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.heard: list[bytes] = []
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as file:
            while head := file.readline():
                assert re.fullmatch(rb"PATCH /path HTTP/1\.1\r\n", head)
                length = 0
                while (line := file.readline()) != b"\r\n":
                    length = int(line.split(b":")[1]) if line.startswith(b"Content-Length") else length
                body = file.read(length)
                self.heard.append(body)
                answer = self._answer(body)
                if answer is None:
                    return
                for place in range(0, len(answer), self._pieces):
                    connection.sendall(answer[place : place + self._pieces])

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def serving(
    answer: Callable[[bytes], bytes | None], silent_s: float = 5.0, pieces: int = 1 << 20
) -> Iterator[tuple[Server, Pipelines]]:
    server = Server(answer, pieces)
    lines = Pipelines(server.url, None, None, 5.0, silent_s)
    try:
        yield server, lines
    finally:
        lines.close()
        server.close()


def requests(bodies: Sequence[bytes]) -> list[bytes]:
    return [request("PATCH", "server", "/path", HEADERS, body) for body in bodies]


def told(answers: Sequence[Answer | OSError]) -> list[tuple[int, bytes] | None]:
    return [(each.status, each.body) if isinstance(each, Answer) else None for each in answers]


@settings(max_examples=40, deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=200), max_size=30),
    pieces=st.integers(1, 40),
    in_chunks=st.booleans(),
)
def test_each_request_has_its_own_answer_however_it_arrives(bodies: list[bytes], pieces: int, in_chunks: bool) -> None:
    make = chunked if in_chunks else sized
    with serving(lambda body: make(body, 200 + len(body) % 2), pieces=pieces) as (server, lines):
        for _ in range(2):
            assert told(lines.exchange(requests(bodies))) == [(200 + len(body) % 2, body) for body in bodies]
        assert server.connections <= pipelines.CONNECTIONS, "connections are kept"


def test_more_than_the_connections_take_at_once_is_sent_in_turns() -> None:
    bodies = [bytes([65 + number]) * 30_000 for number in range(20)]
    with serving(sized) as (_, lines):
        assert told(lines.exchange(requests(bodies))) == [(200, body) for body in bodies]


def test_what_a_server_did_not_answer_when_it_ended_the_connection_is_sent_once_more() -> None:
    ends = iter([False, False, True] * 5)  # a server that ends connections now and then
    bodies = [b"%d" % number for number in range(12)]
    with serving(lambda body: None if next(ends, False) else sized(body)) as (_, lines):
        assert told(lines.exchange(requests(bodies[:2]))) == [(200, body) for body in bodies[:2]]
        found = lines.exchange(requests(bodies))
        assert [each for each in told(found) if each is not None] == [
            (200, body) for body, each in zip(bodies, found, strict=True) if isinstance(each, Answer)
        ]
        assert told(lines.exchange(requests(bodies))) == [(200, body) for body in bodies], "it goes on afterwards"


def test_connections_that_a_restarted_server_has_forgotten_cost_no_request() -> None:
    first = True

    def answer(body: bytes) -> bytes | None:
        return sized(body) if first or body != b"end" else None

    bodies = [b"%d" % number for number in range(8)]
    with serving(answer) as (server, lines):
        assert None not in told(lines.exchange(requests(bodies)))
        for connection in lines._open:
            connection._socket.shutdown(socket.SHUT_RDWR)
        assert told(lines.exchange(requests(bodies))) == [(200, body) for body in bodies]
        assert server.connections == 2 * pipelines.CONNECTIONS


def test_a_server_that_says_nothing_is_given_up_once() -> None:
    stop = threading.Event()

    def answer(body: bytes) -> bytes:
        stop.wait(30)
        return sized(body)

    with serving(answer, silent_s=0.3) as (server, lines):
        found = lines.exchange(requests([b"a"] * 8))
        assert all(isinstance(each, TimeoutError) for each in found)
        assert len(server.heard) <= pipelines.CONNECTIONS
        stop.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
        b"x" * 100_000,
    ],
)
def test_what_is_no_answer_is_a_problem_of_its_requests(answer: bytes) -> None:
    with serving(lambda body: answer) as (_, lines):
        (found,) = lines.exchange(requests([b"a"]))
        assert isinstance(found, OSError)
        assert not isinstance(found, TimeoutError)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found = Pipelines(f"http://127.0.0.1:{port}", None, None, 1.0, 1.0).exchange(requests([b"a"] * 3))
    assert all(isinstance(each, OSError) for each in found)


def test_no_header_becomes_two() -> None:
    with pytest.raises(ValueError, match="line end"):
        request("PATCH", "server", "/path", [("Authorization", "Bearer a\r\nX: y")], b"")
