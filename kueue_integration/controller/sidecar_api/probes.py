"""The plain port of the controller: probes and metrics. And what both ports tell their listener."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from singularity_proxy.protocol.listener import Listener

from ..metrics import Metrics

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


class _Scrapes:
    """The text of the metrics, made in a thread of its own, at most once a second however many ask."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._made: asyncio.Future[str] | None = None
        self._at = 0.0

    async def newest(self) -> str:
        if self._made is None or (self._made.done() and time.monotonic() - self._at >= SCRAPE_S):
            self._made = asyncio.get_running_loop().run_in_executor(self._thread, self._text)
            self._made.add_done_callback(self._done)
        return await asyncio.shield(self._made)

    def _done(self, made: asyncio.Future[str]) -> None:
        self._at = time.monotonic()

    async def close(self, app: web.Application) -> None:
        self._thread.shutdown(wait=False)


def health_app(
    ready: Callable[[], str], alive: Callable[[], str], metrics: Metrics, listener: Listener | None = None
) -> web.Application:
    """`ready` and `alive` return what is wrong, "" when nothing is."""

    def probe(check: Callable[[], str]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            problem = check()
            return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")

        return answer

    scrapes = _Scrapes(metrics.text)

    async def numbers(request: web.Request) -> web.StreamResponse:
        text = await scrapes.newest()
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    app = web.Application(middlewares=[marked(listener)] if listener is not None else [])
    app.on_cleanup.append(scrapes.close)
    app.router.add_get("/healthz", probe(alive))
    app.router.add_get("/readyz", probe(ready))
    app.router.add_get("/metrics", numbers)
    return app
