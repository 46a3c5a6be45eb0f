"""How followers reach the leader: plain HTTP on MESH_PORT, bearer = the attempt's peer key (see `peers`)."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import web

from ..errors import MeshError
from ..protocol.messages import MessageError, from_json, to_json
from .peers import Directive, PodReport
from .pod import Pod

IDLE_HOLD_S: Final = 1.0
"""How long the leader holds an answer: the pace of counters while nothing happens."""
PACE_S: Final = 0.004
"""Pause between two exchanges while ranks are on their way to the barrier."""
TRY_S: Final = 5.0
LONGEST_PAUSE_S: Final = 1.0
LARGEST_REPORT: Final = 256 << 20
"""Bytes. A report with images lists every file and pack, about 20 bytes per MiB of image."""
Exchange = Callable[[PodReport, int, float], Awaitable[Directive]]
log = logging.getLogger(__name__)


class MeshServer:
    """The leader's end. `exchange(report, seen, hold)` answers a follower."""

    def __init__(self, peer_key: str, workers: int, exchange: Exchange) -> None:
        self._key = peer_key
        self._workers = workers
        self._exchange = exchange
        self._runner: web.AppRunner | None = None

    async def start(self, port: int, host: str | None = None) -> None:
        """Listen. Raises OSError."""
        app = web.Application(client_max_size=LARGEST_REPORT)
        app.router.add_post("/v1/exchange", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, reuse_address=True).start()

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            return web.json_response({"error": "wrong peer key: not a pod of this attempt"}, status=401)
        try:
            report = from_json(PodReport, await request.read())
            seen, hold = int(request.query.get("seen", "0")), float(request.query.get("hold", "0"))
        except (MessageError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        if not 0 < report.index < self._workers:
            text = f"index = {report.index}: followers of this attempt are 1..{self._workers - 1}"
            return web.json_response({"error": text}, status=400)
        directive = await self._exchange(report, seen, min(max(hold, 0.0), IDLE_HOLD_S))
        return web.Response(text=to_json(directive), content_type="application/json")


class Follower:
    """A follower's end: keeps exchanging until cancelled. An unreachable leader is retried for ever: only the Job
    controller may decide that this pod is of no use any more."""

    def __init__(self, pod: Pod, leader: str, port: int, peer_key: str) -> None:
        self._pod = pod
        self._url = f"http://{f'[{leader}]' if ':' in leader else leader}:{port}/v1/exchange"
        self._headers = {"Authorization": f"Bearer {peer_key}", "Content-Type": "application/json"}

    async def run(self) -> None:
        """Never returns."""
        pause = 0.1
        lost = False
        since = 0.0
        async with aiohttp.ClientSession(headers=self._headers) as session:
            while True:
                try:
                    await self._turn(session)
                except MeshError as error:
                    if not lost:
                        log.warning("%s; trying on", error)
                        since = time.monotonic()
                    lost = True
                    await self._pod.abandoned(time.monotonic() - since)
                    # After the last word the leader may end first: a pod that is asked to end later has heard it.
                    if self._pod.directive.op in ("stop", "exit", "finish"):
                        await self._pod.apply(self._pod.directive)
                    await asyncio.sleep(pause)
                    pause = min(LONGEST_PAUSE_S, pause * 2)
                    continue
                if lost:
                    log.info("the leader can be reached again")
                lost, pause = False, 0.1

    async def _turn(self, session: aiohttp.ClientSession) -> None:
        pod = self._pod
        barrier = pod.directive.op == "barrier"
        pod.changed.clear()
        report = pod.report()
        request = asyncio.ensure_future(
            self.post(session, report, pod.directive.version, 0 if barrier else IDLE_HOLD_S)
        )
        news = asyncio.ensure_future(pod.changed.wait())
        try:
            await asyncio.wait({request, news}, return_when=asyncio.FIRST_COMPLETED, timeout=TRY_S + 1)
            if not request.done():
                return  # something happened here: say it at once instead of waiting out the hold
            directive = request.result()
        finally:
            for task in (request, news):
                task.cancel()
            await asyncio.gather(request, news, return_exceptions=True)  # and never swallow our own cancellation
        pod.delivered(report)
        await pod.apply(directive)
        if directive.op == "barrier":
            await asyncio.sleep(PACE_S)

    async def post(self, session: aiohttp.ClientSession, report: PodReport, seen: int, hold: float) -> Directive:
        """One exchange. Raises MeshError."""
        try:
            async with session.post(
                self._url,
                data=to_json(report),
                params={"seen": str(seen), "hold": str(hold)},
                timeout=aiohttp.ClientTimeout(total=TRY_S),
            ) as response:
                body = await response.read()
                if response.status != 200:
                    raise MeshError(
                        f"leader {self._url} answers {response.status}: {body[:300].decode(errors='replace')}"
                    )
                return from_json(Directive, body)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise MeshError(f"leader {self._url} cannot be reached: {error or type(error).__name__}") from error
        except MessageError as error:
            raise MeshError(f"leader {self._url} cannot be understood: {error}") from error
