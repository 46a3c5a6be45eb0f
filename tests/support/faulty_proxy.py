"""A TCP proxy before a store's server: it answers errors, slows down, cuts connections, or falls silent, and counts."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

SIZE = 1 << 16


class FaultyProxy:
    """Set a fault with `fail`, take it away with `heal`; `fired` counts what it did to requests.

    Faults: an HTTP status (`503`) is the answer to whatever is sent; `cut` resets a connection in the middle of a
    request or an answer; `silence` swallows what comes and never answers; `rate` (bytes per second) is for each
    connection and direction; `delay` (seconds) is for each piece of an answer.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", listen: str = "127.0.0.1") -> None:
        """`host` and `port` are the server's; `listen` is the address that clients reach."""
        self._upstream = (host, port)
        self._listener = socket.create_server((listen, 0))
        self.url = f"http://{listen}:{self._listener.getsockname()[1]}"
        self.fired: Counter[str] = Counter()
        self.received = 0
        """Bytes that came from clients."""
        self.sent = 0
        """Bytes that came from the server."""
        self.rate = self.delay = 0.0
        self._fault = ""
        self._after = 0
        self._times = 0
        self._spreads = False
        self._about = b""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, fault: str, after: int = 0, times: int = 1 << 30, spreads: bool = False, about: bytes = b"") -> None:
        """From now on `fault`, in requests or answers of which more than `after` bytes have passed, `times` times.

        An answer that is under way cannot become a status: give `about` where a status is to meet what is read.

        :param spreads: once it has fired, everything meets it
        :param about: only requests with these words in their first packet
        """
        with self._lock:
            self._fault, self._after, self._times, self._spreads = fault, after, times, spreads
            self._about = about

    def heal(self) -> None:
        """No faults any more."""
        self.fail("")

    def wait_fired(self, fault: str, count: int = 1, seconds: float = 120.0) -> None:
        """Until `fault` has fired `count` times."""
        self.wait(lambda: self.fired[fault] >= count, seconds)

    def wait(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        """Until `condition` holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited {seconds} s; fired so far: {dict(self.fired)}"
            time.sleep(0.01)

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for one in left:
            _reset(one)

    def _takes(self, passed: int, request: bytes) -> str:
        """The fault that is due after `passed` bytes of a message, counted; "" if none. `request`: how it begins."""
        with self._lock:
            if not self._fault or passed <= self._after or self._times <= 0 or self._about not in request:
                return ""
            self._times -= 1
            self._after, self._about = (0, b"") if self._spreads else (self._after, self._about)
            self.fired[self._fault] += 1
            return self._fault

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._upstream)
        except OSError:
            client.close()
            return
        with self._lock:
            self._open |= {client, server}
        passed = {client: 0, server: 0}
        threading.Thread(target=self._pump, args=(server, client, passed, False), daemon=True).start()
        self._pump(client, server, passed, True)

    def _pump(
        self, source: socket.socket, target: socket.socket, passed: dict[socket.socket, int], request: bool
    ) -> None:
        """One direction. A message ends where one of the other direction begins."""
        head = b""
        try:
            for data in _chunks(source):
                head = data if request and not passed[source] else head
                passed[source], passed[target] = passed[source] + len(data), 0
                if request:
                    self.received += len(data)
                else:
                    self.sent += len(data)
                fault = self._takes(passed[source], head)
                if fault == "cut":
                    _reset(source)
                    _reset(target)
                    return
                if fault == "silence":
                    for _ in _chunks(source):
                        pass
                    break
                if fault and request:
                    _answer(source, fault, bodiless=head.startswith(b"HEAD "))
                    break
                if self.rate:
                    time.sleep(len(data) / self.rate)
                if self.delay and not request:
                    self.fired["delay"] += 1
                    time.sleep(self.delay)
                target.sendall(data)
        except OSError:
            pass  # one of the two has gone
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            with self._lock:
                self._open.discard(one)


def _chunks(source: socket.socket) -> Iterator[bytes]:
    while data := source.recv(SIZE):
        yield data


def _answer(client: socket.socket, status: str, bodiless: bool) -> None:
    """An answer before the end of the request, as a busy load balancer gives it."""
    body = b'{"error": {"code": %s, "message": "injected"}}' % status.encode()
    head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    client.sendall(f"{head}Connection: close\r\n\r\n".encode() + (b"" if bodiless else body))
    client.shutdown(socket.SHUT_WR)
    for _ in _chunks(client):
        pass  # a reset now could overtake the answer


def _reset(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RD)
    one.close()
