"""The job's inputs, in this pod before its ranks start: fetched once, also if this sidecar is started anew."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Final

from ..errors import ConfigError, ProxyError
from ..protocol import inputs
from ..protocol.messages import HelloReply
from ..store.inputs import Input
from .config import Config

GIVE_UP_S: Final = 600.0
"""For so long a place that is away is asked again. One that refuses is not: nothing has been trained yet."""
AGAIN_S: Final = 5.0
TELL_EVERY_S: Final = 10.0
log = logging.getLogger(__name__)


def refused(reply: HelloReply) -> None:
    """Raise ConfigError where the platform does not allow one of the places."""
    if reply.inputs_refused:
        raise ConfigError(f"inputs: {reply.inputs_refused}")


async def fetch(config: Config, reply: HelloReply) -> None:
    """All of them, one after the other. Raises ProxyError."""
    if not reply.inputs:
        return
    if not config.inputs_dir.is_dir():
        raise ConfigError(f"{config.inputs_dir} is not there: the pods of this job were made without inputs")
    for name in reply.inputs:
        if not inputs.NAME.fullmatch(name):
            raise ConfigError(f"inputs[{name!r}]: the name cannot be that of a folder")
    cancelled = threading.Event()
    try:
        for name, url in sorted(reply.inputs.items()):
            await _one(name, Input(url, config.inputs_dir / name, cancelled=cancelled.is_set))
    finally:
        cancelled.set()  # a thread that is under way


async def _one(name: str, place: Input) -> None:
    if place.complete:
        log.info("inputs: %s is there", name)
        return
    began = told = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= TELL_EVERY_S:
            told = time.monotonic()
            log.info("inputs: %s: %d of %d bytes from %s", name, done, total, place.url)

    log.info("inputs: fetching %s from %s", name, place.url)
    while True:
        try:
            files, size = await asyncio.to_thread(place.fetch, progress)
        except ProxyError as error:
            if not error.passes or time.monotonic() + AGAIN_S >= began + GIVE_UP_S:
                raise type(error)(f"inputs[{name!r}] = {error}") from error
            log.warning("inputs: %s: %s; trying again", name, error)
            await asyncio.sleep(AGAIN_S)
        else:
            log.info("inputs: %s: %d files, %d bytes in %.1f s", name, files, size, time.monotonic() - began)
            return
