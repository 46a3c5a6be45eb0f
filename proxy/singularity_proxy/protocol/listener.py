"""A TCP server that strangers cannot fill: few connections for each address, few in all, and none that says nothing.

Whoever proves that it is one of ours, with a token or a signature, keeps its connection while it has work. When all
places are taken, the oldest connection that has proved nothing makes room for the next.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

MOST: Final = 6000
"""Connections in all. A running job holds two, a pod that starts one."""
MOST_OF_ONE: Final = 1024
"""Connections of one address. Where nodes hide their pods, an address is a node of a hundred pods."""
IDLE_S: Final = 20.0
"""Until the first request is there, and between two."""
HANDSHAKE_S: Final = 5.0
BACKLOG: Final = 1024
"""Connections that wait in the kernel."""
AT_ONCE: Final = 16
"""Connections that are taken from there, and handshakes that begin, between two looks at all connections. After a
restart thousands come at once: if all began, none would be done in time, and each would begin again."""
TLS_BUFFER: Final = 32 * 1024
"""Bytes that a TLS connection holds for reading: two records. asyncio's own 256 KiB are 500 MB for 2,000 jobs."""

_CLOSE_WAIT: Final = 8
"""The state in Linux' `tcp_info` of a connection that the peer has closed."""

Protocols = Callable[[], asyncio.Protocol]
Shortcut = Callable[[bytes], bytes | None]
"""Makes the answer to what has arrived between two requests; None: the handler is to see it."""


class Listener:
    """Accepts the connections of one port."""

    def __init__(
        self,
        most: int = MOST,
        most_of_one: int = MOST_OF_ONE,
        idle_s: float = IDLE_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self.tls: ssl.SSLContext | None = None
        self.shortcut: Shortcut = lambda data: None
        self._most, self._most_of_one = most, most_of_one
        self.idle_s, self.handshake_s = idle_s, handshake_s
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Protocol, Connection] = {}
        self._strangers: dict[Connection, None] = {}  # the oldest first
        self._of: Counter[str] = Counter()
        self._turns: list[Connection] = []
        self.refused = 0
        """Connections that were ended for want of a place."""

    async def start(
        self, protocols: Protocols, port: int, host: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Listen. Raises OSError.

        :param protocols: makes what handles a connection, as `web.AppRunner.server` of aiohttp does
        """
        self.tls = tls
        if tls is not None:
            sslproto.SSLProtocol.max_size = TLS_BUFFER  # type: ignore[attr-defined,unused-ignore]  # not in Python 3.10
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self, protocols()), host, port, reuse_address=True, backlog=AT_ONCE
        )
        for each in self._server.sockets:  # asyncio takes as many at a time as it lets wait
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                same.listen(BACKLOG)

    @property
    def port(self) -> int:
        """The port that the system has chosen for port 0. Raises RuntimeError before `start`."""
        if self._server is None:
            raise RuntimeError("the listener has not been started")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def open(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections.values()):
            connection.abort()

    def known(self, protocol: asyncio.Protocol) -> None:
        """Note that the peer of that protocol has proved who it is."""
        connection = self._connections.get(protocol)
        if connection is not None:
            self._strangers.pop(connection, None)

    @contextmanager
    def busy(self, protocol: asyncio.Protocol) -> Iterator[None]:
        """Let the connection of that protocol last while a request is handled, and be idle from then on."""
        self._wait(protocol, None)
        try:
            yield
        finally:
            self._wait(protocol, self.idle_s)

    def _wait(self, protocol: asyncio.Protocol, seconds: float | None) -> None:
        connection = self._connections.get(protocol)
        if connection is not None:
            connection.wait(seconds)
            connection.between = seconds is not None

    def admit(self, connection: Connection, address: str) -> bool:
        """Give a place to a connection that has arrived."""
        if self._of[address] >= self._most_of_one:
            self.refused += 1
            return False
        if len(self._connections) >= self._most:
            oldest = next(iter(self._strangers), None)
            self.refused += 1
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.abort()
        self._connections[connection.handler] = connection
        self._strangers[connection] = None
        self._of[address] += 1
        connection.address = address
        return True

    def handshake(self, connection: Connection) -> None:
        """Let a connection begin its handshake in its turn. The newest come first: the oldest are about to give up."""
        self._turns.append(connection)
        if len(self._turns) == 1:
            asyncio.get_running_loop().call_soon(self._begin_some)

    def _begin_some(self) -> None:
        begun = 0
        while self._turns and begun < AT_ONCE:
            begun += self._turns.pop().encrypt()
        if self._turns:
            asyncio.get_running_loop().call_soon(self._begin_some)

    def leave(self, connection: Connection) -> None:
        """Take the place of a connection back. Idempotent."""
        if self._connections.pop(connection.handler, None) is None:
            return
        self._strangers.pop(connection, None)
        self._of[connection.address] -= 1
        if not self._of[connection.address]:
            del self._of[connection.address]


class Connection(asyncio.Protocol):
    """Hands everything on to `handler`, once there is a place and, with TLS, the handshake is done."""

    def __init__(self, listener: Listener, handler: asyncio.Protocol) -> None:
        self._listener, self.handler = listener, handler
        self.address = ""
        self._transport: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._begun = False
        self.between = True
        """No request has begun that is not answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer: Any = transport.get_extra_info("peername")
        if not self._listener.admit(self, str(peer[0]) if peer else ""):
            transport.abort()
            return
        if self._listener.tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()
            self._listener.handshake(self)

    def encrypt(self) -> bool:
        """Begin the handshake. False: the peer has gone away while it waited for its turn."""
        raw, tls = self._transport, self._listener.tls
        if not isinstance(raw, asyncio.Transport) or tls is None or raw.is_closing() or _left(raw):
            self.abort()
            return False
        self._handshake = asyncio.get_running_loop().create_task(self._encrypt(raw, tls))
        return True

    async def _encrypt(self, raw: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(
                raw, self, tls, server_side=True, ssl_handshake_timeout=self._listener.handshake_s
            )
        except (OSError, asyncio.CancelledError):  # an `ssl.SSLError` is an OSError
            raw.abort()
            self._listener.leave(self)
            return
        if secure is None:  # the peer went away between the handshake and now
            self._listener.leave(self)
            return
        self._transport = secure
        self._begin(secure)

    def _begin(self, transport: asyncio.BaseTransport) -> None:
        self._begun = True
        self.wait(self._listener.idle_s)
        self.handler.connection_made(transport)

    def wait(self, seconds: float | None) -> None:
        """End the connection in that many seconds; None: not by the clock."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.abort)

    def abort(self) -> None:
        """End the connection now, without a farewell."""
        if self._handshake is not None and not self._begun:
            self._handshake.cancel()
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        # Before `_begin` there is data as soon as the handshake is done, and no way yet to answer it encrypted.
        answer = self._listener.shortcut(data) if self._begun and self.between else None
        if answer is not None and isinstance(self._transport, asyncio.Transport):
            self._listener.known(self.handler)
            self.wait(self._listener.idle_s)
            self._transport.write(answer)
            return
        self.between = False
        self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self.handler.eof_received()

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.wait(None)
        self._listener.leave(self)
        if self._begun:
            self.handler.connection_lost(exc)


def _left(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed a connection that nobody reads: only the kernel knows it then."""
    raw = transport.get_extra_info("socket")
    try:
        return bool(raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT)
    except OSError:
        return True
