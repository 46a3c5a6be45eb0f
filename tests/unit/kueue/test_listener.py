"""Who fills the controller's ports: people without a token, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from waits import LIMIT_S, eventually

from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.sidecar_api.probes import health_app, marked
from singularity_proxy.protocol import listener as listener_module
from singularity_proxy.protocol.listener import Listener, Protocols

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """`/` answers at once, `/known` proves who asks, `/held` is answered when `release` is set."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.release = listener, asyncio.Event()

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
        app = web.Application(middlewares=[marked(self.listener)])
        for path in ("/", "/known", "/held"):
            app.router.add_get(path, self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await self.listener.start(cast(Protocols, runner.server), 0, "127.0.0.1", tls)
        try:
            yield self
        finally:
            self.listener.close()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path == "/known":
            self.listener.known(request.protocol)
        if request.path == "/held":
            await self.release.wait()
        return web.Response(text="yes")

    async def connect(self, source: str = "127.0.0.1") -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.listener.port, local_addr=(source, 0))


async def ask(streams: Streams, path: str = "/") -> bytes:
    """The first line of the answer; b"" from a connection that was ended."""
    reader, writer = streams
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
        await asyncio.wait_for(reader.readexactly(3), 120)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    return head.partition(b"\r\n")[0]


async def ended(streams: Streams) -> None:
    """Returns when the server has ended the connection."""
    with suppress(ConnectionError):
        assert await asyncio.wait_for(streams[0].read(), 120) == b""


async def test_one_address_gets_its_share_and_others_theirs() -> None:
    async with Server(Listener(most=10, most_of_one=2)).running() as server:
        mine = [await server.connect() for _ in range(2)]
        assert [await ask(each) for each in mine] == [b"HTTP/1.1 200 OK"] * 2
        await ended(await server.connect())
        other = await server.connect("127.0.0.2")
        assert await ask(other) == b"HTTP/1.1 200 OK"
        assert server.listener.refused == 1
        mine[0][1].close()
        await eventually(lambda: server.listener.open == 2)
        assert await ask(await server.connect()) == b"HTTP/1.1 200 OK"


async def test_the_oldest_who_has_proved_nothing_makes_room() -> None:
    async with Server(Listener(most=3, most_of_one=3)).running() as server:
        known, old, young = [await server.connect() for _ in range(3)]
        assert await ask(known, "/known") == b"HTTP/1.1 200 OK"
        new = await server.connect("127.0.0.2")
        await ended(old)
        assert [await ask(each, "/known") for each in (known, young, new)] == [b"HTTP/1.1 200 OK"] * 3
        await ended(await server.connect("127.0.0.3"))  # all are known: nobody makes room
        assert server.listener.open == 3


async def test_silence_ends_a_connection_and_work_does_not() -> None:
    async with Server(Listener(idle_s=0.3)).running() as server:
        silent, half, held, asked = [await server.connect() for _ in range(4)]
        half[1].write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: a")
        waiting = asyncio.create_task(ask(held, "/held"))
        assert await ask(asked) == b"HTTP/1.1 200 OK"
        for each in (silent, half, asked):
            await ended(each)
        assert not waiting.done() and server.listener.open == 1
        server.release.set()
        assert await waiting == b"HTTP/1.1 200 OK"
        await ended(held)
        await eventually(lambda: server.listener.open == 0)


@pytest.fixture
def contexts(certificate) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    crt, key = certificate
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context(cafile=crt)
    server.load_cert_chain(crt, key)
    return server, client


async def test_a_handshake_that_does_not_come_and_one_that_fails(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with Server(Listener(handshake_s=0.3, idle_s=5)).running(contexts[0]) as server:
        await ended(await server.connect())
        plain = await server.connect()
        assert not (await ask(plain)).startswith(b"HTTP/1.1 2")
        encrypted = await asyncio.open_connection(
            "127.0.0.1", server.listener.port, ssl=contexts[1], server_hostname="localhost"
        )
        assert await ask(encrypted) == b"HTTP/1.1 200 OK"
        encrypted[1].close()
        await eventually(lambda: server.listener.open == 0)


async def test_a_caller_with_a_request_is_answered_beside_thousands_who_say_nothing(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with Server(Listener(most=500, most_of_one=300)).running(contexts[0]) as server:
        crowd = []
        for number in range(2000):
            one = socket.create_connection(("127.0.0.1", server.listener.port), source_address=("127.0.0.1", 0))
            crowd.append(one)
            if number % 10 == 9:  # the kernel holds a thousand, and this thread is the server's, too
                await asyncio.sleep(0)
        await eventually(lambda: server.listener.open + server.listener.refused == 2000)
        assert server.listener.open == 300
        other = await asyncio.open_connection(
            "127.0.0.1", server.listener.port, ssl=contexts[1], server_hostname="localhost",
            local_addr=("127.0.0.2", 0),
        )  # fmt: skip
        assert await ask(other) == b"HTTP/1.1 200 OK"
        for one in crowd:
            one.close()


async def test_a_herd_is_let_in_by_turns_and_who_has_gone_costs_no_handshake(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of jobs come at once after a restart. Those that have given up must not take the time of the others."""
    begun: list[listener_module.Connection] = []
    encrypt = listener_module.Connection._encrypt

    async def counted(self: listener_module.Connection, raw: asyncio.Transport, tls: ssl.SSLContext) -> None:
        begun.append(self)
        await encrypt(self, raw, tls)

    monkeypatch.setattr(listener_module.Connection, "_encrypt", counted)
    async with Server(Listener()).running(contexts[0]) as server:
        for _ in range(60):  # all before the server sees the first
            one = socket.create_connection(("127.0.0.1", server.listener.port))
            one.close()
        alive = [
            asyncio.open_connection("127.0.0.1", server.listener.port, ssl=contexts[1], server_hostname="localhost")
            for _ in range(40)
        ]
        for streams in await asyncio.gather(*alive):
            assert await ask(streams) == b"HTTP/1.1 200 OK"
            streams[1].close()
        assert len(begun) == 40
        await eventually(lambda: server.listener.open == 0)


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_not_answered_in_plain_text() -> None:
    class Raw(asyncio.Transport):
        written = b""

        def write(self, data: bytes) -> None:  # type: ignore[override]
            self.written += data

    class Handler(asyncio.Protocol):
        heard = b""

        def data_received(self, data: bytes) -> None:
            self.heard += data

    listener, handler, raw = Listener(), Handler(), Raw()
    listener.shortcut = lambda data: b"short"
    connection = listener_module.Connection(listener, handler)
    connection._transport = raw
    connection.data_received(b"note")
    assert (raw.written, handler.heard) == (b"", b"note")


async def test_a_tls_connection_holds_two_records(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with Server(Listener()).running(contexts[0]) as server:
        streams = await asyncio.open_connection(
            "127.0.0.1", server.listener.port, ssl=contexts[1], server_hostname="localhost"
        )
        assert await ask(streams) == b"HTTP/1.1 200 OK"
        held = [connection._transport._ssl_protocol for connection in server.listener._connections.values()]
        assert [len(each._ssl_buffer) for each in held] == [listener_module.TLS_BUFFER]
        streams[1].close()


async def test_who_scrapes_often_gets_one_text_a_second_made_in_one_thread() -> None:
    class Slow(Metrics):
        made = 0

        def text(self) -> str:
            type(self).made += 1
            time.sleep(0.2)  # a thread's work, not a wait for somebody
            return super().text()

    runner = web.AppRunner(health_app(lambda: "", lambda: "", Slow()))
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0).start()
    url = f"http://localhost:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def get(path: str) -> str:
            async with session.get(url + path) as response:
                return await response.text()

        began = time.monotonic()
        flood = [asyncio.create_task(get("/metrics")) for _ in range(200)]
        assert await get("/healthz") == "ok\n"
        texts = await asyncio.gather(*flood)
        assert all("singularity_leader 0" in text for text in texts)
        assert 1 <= Slow.made <= 1 + (time.monotonic() - began)
        made = Slow.made

        async def newer() -> bool:
            await get("/metrics")
            return Slow.made > made

        await _until(newer)
    await runner.cleanup()


async def _until(look: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + LIMIT_S
    while not await look():
        assert time.monotonic() < end, "the text is never made again"
