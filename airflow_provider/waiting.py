"""Waiting for a Job in the worker (`deferrable=False`), with the trigger that else waits in a triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .compat import AirflowTaskTimeout
from .triggers import SingularityJobTrigger

LOOK_S = 1.0


def here(trigger: SingularityJobTrigger, ti: Any, look: Callable[[], None]) -> dict[str, Any]:
    """The trigger's event. Raises what `look` raises, which is called every LOOK_S seconds in a thread."""
    trigger.task_instance = ti
    try:
        return asyncio.run(_first(trigger, look))
    except AirflowTaskTimeout:
        return trigger.out_of_time()


async def _first(trigger: SingularityJobTrigger, look: Callable[[], None]) -> dict[str, Any]:
    events: Any = trigger.run()
    first = asyncio.ensure_future(anext(events))
    try:
        while not first.done():
            await asyncio.wait({first}, timeout=LOOK_S)
            await asyncio.to_thread(look)
        found: dict[str, Any] = first.result().payload
        return found
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await events.aclose()
