"""The unix socket that the launcher of this pod talks to (`proxy.protocol.messages`): plan, commands, events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from ..errors import ProxyError
from ..protocol import names
from ..protocol.messages import LauncherCommand, LauncherEvent, MessageError, Plan, from_json, to_json

POLL_S: Final = 20.0
log = logging.getLogger(__name__)


class LauncherApi:
    """Serves RUN_DIR/sidecar.sock.

    :param on_event: called in the event loop with every event of the launcher
    """

    def __init__(self, run_dir: Path, on_event: Callable[[LauncherEvent], None], poll_s: float = POLL_S) -> None:
        self._path = run_dir / names.SOCKET_FILE
        self._on_event = on_event
        self._poll_s = poll_s
        self._plan: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()
        self._plan.add_done_callback(lambda f: f.exception())  # a refusal nobody asks about is no error of the loop
        self._told = asyncio.Event()
        self._commands: list[LauncherCommand] = []
        self._more = asyncio.Condition()
        # Milliseconds: a restarted sidecar goes on above the numbers its predecessor gave to the same launcher.
        self._seq = int(time.time() * 1000)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises OSError."""
        app = web.Application()
        app.router.add_get("/v1/plan", self._get_plan)
        app.router.add_get("/v1/commands", self._get_commands)
        app.router.add_post("/v1/events", self._post_events)
        self._path.unlink(missing_ok=True)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._path)).start()

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._runner is not None:
            await self._runner.cleanup()

    def publish_plan(self, plan: Plan) -> None:
        """Answer the launcher's question."""
        if not self._plan.done():
            self._plan.set_result(plan)

    def refuse_plan(self, error: Exception) -> None:
        """There will be no plan: the launcher gets the sentence and ends."""
        if not self._plan.done():
            self._plan.set_exception(error)

    async def refused(self, limit_s: float) -> None:
        """Wait until the launcher was told of a refusal, at most `limit_s` seconds."""
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(self._told.wait(), limit_s)

    async def send(self, command: LauncherCommand) -> None:
        """Queue a command; its `seq` is set here."""
        async with self._more:
            self._seq += 1
            self._commands.append(LauncherCommand(**{**command.__dict__, "seq": self._seq}))
            self._more.notify_all()
        log.info("launcher: %s generation %d %s", command.op, command.generation, command.checkpoint_id)

    async def _get_plan(self, request: web.Request) -> web.Response:
        try:
            plan = await asyncio.wait_for(asyncio.shield(self._plan), self._poll_s)
        except (TimeoutError, asyncio.TimeoutError):
            return _error(425, "not ready yet: ask again")
        except Exception as error:
            self._told.set()
            return _error(424 if isinstance(error, ProxyError) and error.passes else 422, str(error))
        return web.Response(text=to_json(plan), content_type="application/json")

    async def _get_commands(self, request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("after", "0"))
        except ValueError:
            return _error(400, f"after = {request.query['after']!r}: not a whole number")

        def next_one() -> LauncherCommand | None:
            return next((c for c in self._commands if c.seq > after), None)

        async with self._more:
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._more.wait_for(lambda: next_one() is not None), self._poll_s)
        command = next_one()
        if command is None:
            return web.Response(status=204)
        return web.Response(text=to_json(command), content_type="application/json")

    async def _post_events(self, request: web.Request) -> web.Response:
        try:
            event = from_json(LauncherEvent, await request.read())
        except MessageError as error:
            return _error(400, str(error))
        self._on_event(event)
        return web.json_response({})


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
