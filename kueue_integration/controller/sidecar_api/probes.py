"""The plain port of the controller: probes and metrics. And what both ports tell their listener."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from singularity_proxy.protocol.listener import Listener

from ..metrics import Metrics

_NAMES = re.compile(r'[{,]namespace="')
"""A label of a series; in a label's value the quotation mark would follow a backslash."""
SCRAPE_S = 1.0
"""Age of the metrics' text at which it is made again."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def marked(listener: Listener) -> Middleware:
    """Tells the listener which connections have work."""

    @web.middleware
    async def with_mark(request: web.Request, handler: Handler) -> web.StreamResponse:
        with listener.busy(request.protocol):
            return await handler(request)

    return with_mark


@dataclass(frozen=True)
class _Text:
    """:param public: without the series that name a namespace"""

    whole: bytes
    public: bytes


def _texts(whole: str) -> _Text:
    public = "".join(line for line in whole.splitlines(keepends=True) if not _NAMES.search(line))
    return _Text(whole.encode(), public.encode())


class _Scrapes:
    """The text of the metrics, made in a thread of its own, at most once a second however many ask."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._made: asyncio.Future[_Text] | None = None
        self._at = 0.0

    async def newest(self) -> _Text:
        if self._made is None or (self._made.done() and time.monotonic() - self._at >= SCRAPE_S):
            self._made = asyncio.get_running_loop().run_in_executor(self._thread, lambda: _texts(self._text()))
            self._made.add_done_callback(self._done)
        return await asyncio.shield(self._made)

    def _done(self, made: asyncio.Future[_Text]) -> None:
        self._at = time.monotonic()

    async def close(self, app: web.Application) -> None:
        self._thread.shutdown(wait=False)


def health_app(
    ready: Callable[[], str],
    alive: Callable[[], str],
    metrics: Metrics,
    listener: Listener | None = None,
    token: Callable[[], str] = lambda: "",
) -> web.Application:
    """`ready` and `alive` return what is wrong, "" when nothing is. `token` returns what a client has to show that may
    see names of namespaces and jobs; "" for nobody may."""

    def probe(check: Callable[[], str]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            problem = check()
            return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")

        return answer

    scrapes = _Scrapes(metrics.text)

    async def numbers(request: web.Request) -> web.StreamResponse:
        text = await scrapes.newest()
        wanted, shown = token(), request.headers.get("Authorization", "")
        may = wanted != "" and hmac.compare_digest(shown.encode(), f"Bearer {wanted}".encode())
        body = text.whole if may else text.public
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    app = web.Application(middlewares=[marked(listener)] if listener is not None else [])
    app.on_cleanup.append(scrapes.close)
    app.router.add_get("/healthz", probe(alive))
    app.router.add_get("/readyz", probe(ready))
    app.router.add_get("/metrics", numbers)
    return app
