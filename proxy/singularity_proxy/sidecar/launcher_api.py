"""The unix socket that the launcher of this pod talks to (`protocol.messages`): plan, commands, events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp import web

from ..errors import ProxyError
from ..protocol import exit_codes, names
from ..protocol.decode import Unreadable, whole
from ..protocol.messages import LauncherCommand, LauncherEvent, MessageError, Plan, Refusal, from_json, to_json

POLL_S: Final = 20.0
LARGEST_EVENT: Final = 1 << 20
"""Bytes; aiohttp reads no more of a request."""
log = logging.getLogger(__name__)


class LauncherApi:
    """Serves RUN_DIR/launcher/sidecar.sock.

    :param on_event: called in the event loop with every event of the launcher
    """

    def __init__(self, run_dir: Path, on_event: Callable[[LauncherEvent], None], poll_s: float = POLL_S) -> None:
        self._path = run_dir / names.SOCKET_FILE
        self._on_event = on_event
        self._poll_s = poll_s
        self._plan: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()
        self._plan.add_done_callback(lambda f: f.exception())  # a refusal nobody asks about is no error of the loop
        self._told = asyncio.Event()
        self.asked = False
        """The launcher runs, and wants a plan."""
        self._commands: list[tuple[LauncherCommand, float]] = []
        """Each with its time of sending, by the monotonic clock."""
        self._more = asyncio.Condition()
        # Milliseconds since the node's start: the same for all containers of the pod, and never less. So a restarted
        # sidecar goes on above the numbers that its predecessor gave to the same launcher.
        self._seq = int(time.monotonic() * 1000)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises OSError."""
        app = web.Application()
        app.router.add_get("/v1/plan", self._get_plan)
        app.router.add_get("/v1/commands", self._get_commands)
        app.router.add_post("/v1/events", self._post_events)
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
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

    async def refused(self) -> None:
        """Wait until the launcher has received a refusal."""
        await self._told.wait()

    async def send(self, command: LauncherCommand) -> None:
        """Queue a command; its `seq` is set here."""
        async with self._more:
            self._seq += 1
            self._commands.append((replace(command, seq=self._seq), time.monotonic()))
            self._more.notify_all()
        log.info("launcher: %s generation %d %s", command.op, command.generation, command.checkpoint_id)

    async def _get_plan(self, request: web.Request) -> web.Response:
        self.asked = True
        try:
            plan = await asyncio.wait_for(asyncio.shield(self._plan), self._poll_s)
        except (TimeoutError, asyncio.TimeoutError):
            return _error(425, "not ready yet: ask again")
        except Exception as error:
            self._told.set()
            code = error.exit_code if isinstance(error, ProxyError) else exit_codes.PROTOCOL
            return web.Response(text=to_json(Refusal(str(error), code)), status=422, content_type="application/json")
        return web.Response(text=to_json(plan), content_type="application/json")

    async def _get_commands(self, request: web.Request) -> web.Response:
        after = whole(request.query.get("after", "0"))
        if isinstance(after, Unreadable):
            return _error(400, f"after = {request.query['after'][:40]!r}: {after.why}")

        def next_one() -> LauncherCommand | None:
            return next((_now(*item) for item in self._commands if item[0].seq > after), None)

        # The launcher never asks again for a command that it has received.
        self._commands = [item for item in self._commands if item[0].seq > after]
        async with self._more:
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._more.wait_for(lambda: next_one() is not None), self._poll_s)
        command = next_one()
        if command is None:
            return web.Response(status=204)
        return web.Response(text=to_json(command), content_type="application/json")

    async def _post_events(self, request: web.Request) -> web.Response:
        try:
            event = from_json(LauncherEvent, await request.read(), LARGEST_EVENT)
        except MessageError as error:
            return _error(400, str(error))
        self._on_event(event)
        return web.json_response({})


def _now(command: LauncherCommand, sent: float) -> LauncherCommand:
    """The command as the launcher gets it now, which may be long after it was sent."""
    if command.remaining_s is None:
        return command
    return replace(command, remaining_s=max(0.0, command.remaining_s - (time.monotonic() - sent)))


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
