"""State engine: a pod gets the parts of a checkpoint that its ranks ask for, and no more.

What every rank needs comes before the launcher gets its plan. Shards of tensors come when `attach` of a rank knows
which ones it needs, over a socket beside the ranks (`names.PARTS_FILE`):

    POST /v1/parts   PartsRequest -> 200 {} when they are there, 202 "ask again", 400 with a reason

A failure ends the pod: the rank gets no answer, as it could only end with an error of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from ..errors import ProxyError, StoreError
from ..protocol import names
from ..protocol.decode import Unreadable, json_value
from ..protocol.messages import PARTS_BYTES, MessageError, PartsRequest, from_json
from ..store import Parts, Range

POLL_S: Final = 20.0
MANIFEST_BYTES: Final = 256 << 20
FORMAT, VERSION = "singularity-state", 1
"""Of `singularity_train.storage`, whose manifest has `tensors` with `pieces`."""
log = logging.getLogger(__name__)


def shards(text: bytes) -> frozenset[str]:
    """Blobs that hold nothing but shards, by a manifest of `singularity_train.storage`. Pure.

    A tensor that several ranks had whole is needed by every rank, whatever their number. One that was saved by a single
    rank may be either. Empty where that is not known: everything is needed then.
    """
    data = json_value(text, MANIFEST_BYTES)
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        if isinstance(data, Unreadable) or (data["format"], data["version"]) != (FORMAT, VERSION):
            return frozenset()
        whole = {each["blob"] for each in data["objects"].values()}
        parted = set[str]()
        for tensor in data["tensors"].values():
            pieces = tensor["pieces"]
            (parted if len(pieces) > 1 else whole).update(piece["blob"] for piece in pieces)
        return frozenset(parted - whole)
    return frozenset()


def ahead(parts: Parts, text: bytes, own: list[int], world: int, saved_by: int) -> frozenset[str]:
    """Paths that the ranks `own` of `world` need for sure.

    :param text: the library's manifest
    :param saved_by: ranks that have saved it; as many ranks have the same shards
    """
    later = {f"{names.STATE_BLOBS}/{name}" for name in shards(text)}
    if len(own) == world:
        return parts.paths()
    return (parts.paths() - later) | (parts.paths(own) if world == saved_by else frozenset())


class PartsServer:
    """Serves RUN_DIR/PARTS_FILE.

    :param parts: makes what it serves, once; called in a thread. Raises ProxyError
    :param give_up: called once with the first failure; it ends the pod
    """

    def __init__(
        self,
        run_dir: Path,
        parts: Callable[[], Parts],
        give_up: Callable[[ProxyError], Awaitable[None]],
        poll_s: float = POLL_S,
    ) -> None:
        self._path = run_dir / names.PARTS_FILE
        self._make, self._give_up, self._poll_s = parts, give_up, poll_s
        self._parts: Parts | None = None
        self._once = asyncio.Lock()
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._failed = False
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises OSError."""
        app = web.Application(client_max_size=PARTS_BYTES)
        app.router.add_post("/v1/parts", self._post)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._path)).start()

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        for task in self._tasks.values():
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    async def parts(self) -> Parts:
        """Raises ProxyError."""
        async with self._once:
            if self._parts is None:
                self._parts = await asyncio.to_thread(self._make)
            return self._parts

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            wanted = from_json(PartsRequest, body, PARTS_BYTES)
        except MessageError as error:
            return web.json_response({"error": str(error)}, status=400)
        ranges = [Range(each.path, each.begin, each.end) for each in wanted.ranges]
        # Who asks again after a while asks with the same words: what is under way is not begun again.
        task = self._tasks.get(body)
        if task is None:
            task = self._tasks[body] = asyncio.create_task(self._bring(ranges))
        try:
            await asyncio.wait_for(asyncio.shield(task), self._poll_s)
        except (TimeoutError, asyncio.TimeoutError):
            return web.json_response({}, status=202)
        except StoreError as error:
            return web.json_response({"error": str(error)}, status=400)
        finally:
            if task.done():
                self._tasks.pop(body, None)
        return web.json_response({})

    async def _bring(self, ranges: list[Range]) -> None:
        """Raises StoreError: there is no such part."""
        try:
            parts = await self.parts()
            problem = parts.problem(ranges)
            if not problem:
                got = await asyncio.to_thread(parts.fetch, ranges)
                log.info("fetched %d bytes that a rank has asked for, %d in all", got, parts.bytes_fetched)
        except ProxyError as error:
            if not self._failed:
                self._failed = True
                await self._give_up(error)
            await asyncio.Event().wait()  # the rank ends with its pod
        if problem:
            raise StoreError(problem)


def manifest_of(folder: Path, paths: frozenset[str]) -> bytes:
    """The library's manifest, of the one checkpoint that `folder` has; b"" if there is not exactly one."""
    found = [
        path for path in paths if path.startswith(f"{names.STATE_CHECKPOINTS}/") and path.endswith("/manifest.json")
    ]
    if len(found) != 1:
        return b""
    with contextlib.suppress(OSError):
        return (folder / found[0]).read_bytes()
    return b""


def is_part(path: str) -> bool:
    """Of a rank's image, what belongs to the checkpoint of all ranks."""
    return path.startswith((f"{names.STATE_BLOBS}/", f"{names.STATE_CHECKPOINTS}/"))
