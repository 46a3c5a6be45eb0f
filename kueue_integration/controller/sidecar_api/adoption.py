"""Adoption by label: the API server's question about a new Job, on the port of the sidecars.

The API server proves nothing, so anybody may ask, and is told nothing that is not public. Few are read at a time, each
for a short time: whoever asks for nothing good delays adoption only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from singularity_proxy.protocol import decode

from ...adoption.review import PATH, reviewed
from ...spec.platform_config import PlatformConfig
from ..errors import RefusedError

MOST = 3 << 20
"""Bytes of a question: the API server takes a Job of 1.5 MiB at most, and sends it with its `managedFields`."""
AT_ONCE = 8
READ_S = 5.0


class Adoption:
    """`platform` gives what the controller publishes for those who submit; None while it is not known."""

    def __init__(self, platform: Callable[[], PlatformConfig | None]) -> None:
        self._platform = platform
        self._places = asyncio.Semaphore(AT_ONCE)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adoption")

    def attach(self, app: web.Application) -> None:
        """Let the application answer the API server, and its middlewares make answers of errors."""
        app.router.add_post(PATH, self.handle)
        app.on_cleanup.append(self._close)

    async def handle(self, request: web.Request) -> web.Response:
        """Raises RefusedError."""
        platform = self._platform()
        if platform is None:
            raise RefusedError(503, "adoption is off, or the platform's authorities are not known yet: try again")
        try:
            await asyncio.wait_for(self._places.acquire(), READ_S)
        except asyncio.TimeoutError:
            raise RefusedError(503, "adoption has too many questions at once: try again") from None
        try:
            text = await asyncio.wait_for(_read(request), READ_S)
            answer = await asyncio.get_running_loop().run_in_executor(self._thread, _answer, text, platform)
        except asyncio.TimeoutError:
            raise RefusedError(408, f"the review did not come within {READ_S:.0f} s") from None
        finally:
            self._places.release()
        return web.Response(body=answer, content_type="application/json")

    async def _close(self, app: web.Application) -> None:
        self._thread.shutdown(wait=False)


async def _read(request: web.Request) -> bytes:
    """The body, which may be larger than that of a pod's message. Raises RefusedError."""
    parts, size = [], 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > MOST:
            raise RefusedError(413, f"a review must have {MOST} bytes at most")
        parts.append(part)
    return b"".join(parts)


def _answer(text: bytes, platform: PlatformConfig) -> bytes:
    """Raises RefusedError, whatever stands there: it may be from anybody."""
    found = decode.json_value(text, MOST)
    if isinstance(found, decode.Unreadable):
        raise RefusedError(400, f"the review is unreadable: {found.why}")
    try:
        return json.dumps(reviewed(found, platform)).encode()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(400, f"the review has no Job as the API server sends it: {error!r}") from None
