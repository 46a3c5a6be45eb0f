"""How followers reach the leader: plain HTTP on MESH_PORT, signed with the attempt's peer key (see `signed`)."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, cast

import aiohttp
from aiohttp import web
from yarl import URL

from ..errors import MeshError
from ..protocol import decode
from ..protocol.decode import Unreadable
from ..protocol.listener import Listener, Protocols
from ..protocol.messages import MessageError, from_json, to_json
from . import signed
from .peers import Directive, PodReport
from .pod import Pod

IDLE_HOLD_S: Final = 1.0
"""How long the leader holds an answer: the pace of counters while nothing happens."""
PACE_S: Final = 0.004
"""Pause between two exchanges while ranks are on their way to the barrier."""
TRY_S: Final = 5.0
LONGEST_PAUSE_S: Final = 0.2
TRIES: Final = 3
"""Tries of one exchange: from the first try, a follower learns the leader's session."""
LARGEST_REPORT: Final = 256 << 20
"""Bytes. A report with images lists every file and pack, about 20 bytes per MiB of image."""
STRANGERS: Final = 64
"""Connections of one address, and of all who are no followers."""
Exchange = Callable[[PodReport, int, float], Awaitable[Directive]]
log = logging.getLogger(__name__)


class MeshServer:
    """The leader's end. `exchange(report, seen, hold)` answers a follower."""

    def __init__(self, peer_key: str, workers: int, exchange: Exchange) -> None:
        self._key = peer_key
        self._workers = workers
        self._exchange = exchange
        self._numbers = signed.Numbers()
        self._runner: web.AppRunner | None = None
        # A follower keeps one connection. Any pod of the cluster may knock.
        self._listener = Listener(most=STRANGERS + 2 * workers, most_of_one=STRANGERS)

    async def start(self, port: int, host: str | None = None) -> None:
        """Listen. Raises OSError."""
        app = web.Application(client_max_size=LARGEST_REPORT)
        app.router.add_post("/v1/exchange", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await self._listener.start(cast(Protocols, self._runner.server), port, host)

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        with self._listener.busy(request.protocol):
            return await self._answered(request)

    async def _answered(self, request: web.Request) -> web.Response:
        body = b""
        known = signed.authentic(self._key, request.headers, request.path_qs)
        if known:
            body = await request.read()
            known = signed.whole(request.headers, body)
        if not known:
            # This answer is not signed: the client has not proved that it has the key.
            return web.json_response({"error": "wrong signature: not a pod of this attempt"}, status=401)
        self._listener.known(request.protocol)
        status, text = await self._answer(request, body)
        mac = signed.answer_mac(self._key, request.headers[signed.MAC], status, text.encode())
        return web.Response(text=text, status=status, content_type="application/json", headers={signed.MAC: mac})

    async def _answer(self, request: web.Request, body: bytes) -> tuple[int, str]:
        """Status and JSON text for an authentic request."""
        try:
            report = from_json(PodReport, body, LARGEST_REPORT)
        except MessageError as error:
            return _error(str(error))
        seen, hold = decode.whole(request.query.get("seen", "0")), decode.number(request.query.get("hold", "0"), 0)
        if isinstance(seen, Unreadable) or isinstance(hold, Unreadable):
            return _error(f"seen or hold of {request.query_string[:200]!r} is no number")
        if not 0 < report.index < self._workers:
            return _error(f"index = {report.index}: followers of this attempt are 1..{self._workers - 1}")
        current = self._numbers.take(report.index, request.headers)
        if current is not None:
            return signed.CONFLICT, to_json(current)
        return 200, to_json(await self._exchange(report, seen, min(hold, IDLE_HOLD_S)))


def _error(text: str) -> tuple[int, str]:
    return 400, json.dumps({"error": text})


class Follower:
    """A follower's end: keeps exchanging until cancelled. It retries an unreachable leader for ever: only the Job
    controller may decide that this pod is not needed any more."""

    def __init__(self, pod: Pod, leader: str, port: int, peer_key: str) -> None:
        self._pod = pod
        self._url = f"http://{f'[{leader}]' if ':' in leader else leader}:{port}/v1/exchange"
        self._signer = signed.Signer(peer_key)

    async def run(self) -> None:
        """Never returns."""
        pause = 0.1
        lost = False
        since = 0.0
        async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
            while True:
                try:
                    await self._turn(session)
                except MeshError as error:
                    if not lost:
                        log.warning("%s; trying on", error)
                        since = time.monotonic()
                    lost = True
                    await self._pod.abandoned(time.monotonic() - since)
                    # After the last directive the leader may end first: a pod that is asked to end later has already
                    # received it.
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
        body = to_json(report).encode()
        url = URL(self._url).with_query(seen=str(seen), hold=str(hold))
        try:
            for _ in range(TRIES):
                status, answer = await self._post(session, url, body)
                if status == 200:
                    return from_json(Directive, answer)
                self._signer.learn(from_json(signed.Current, answer))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise MeshError(f"leader {self._url} cannot be reached: {error or type(error).__name__}") from error
        except MessageError as error:
            raise MeshError(f"leader {self._url} cannot be understood: {error}") from error
        raise MeshError(f"leader {self._url} takes no request of this pod: another one of the same index speaks to it")

    async def _post(self, session: aiohttp.ClientSession, url: URL, body: bytes) -> tuple[int, bytes]:
        """Status (200 or 409) and body of an authentic answer. Raises MeshError for any other."""
        headers = self._signer.sign(url.raw_path_qs, body)
        limit = aiohttp.ClientTimeout(total=TRY_S)
        async with session.post(url, data=body, headers=headers, timeout=limit) as response:
            answer = await response.read()
            words = f"leader {self._url} answers {response.status}"
            if not self._signer.check(headers, response.status, response.headers, answer):
                raise MeshError(f"{words} without our key: {answer[:300].decode(errors='replace')}")
            if response.status not in (200, signed.CONFLICT):
                raise MeshError(f"{words}: {answer[:300].decode(errors='replace')}")
            return response.status, answer
