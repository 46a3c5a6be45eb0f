"""Events for the sidecar, sent in order by a thread of their own: the loop never waits for the sidecar."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from ..protocol.messages import LauncherEvent
from .errors import SidecarError


class Outbox:
    """:param post: sends one event, raises SidecarError; :param say: logs a line"""

    def __init__(self, post: Callable[[LauncherEvent], None], say: Callable[[str], None]) -> None:
        self._post = post
        self._say = say
        self._queue: queue.SimpleQueue[LauncherEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, event: LauncherEvent) -> None:
        self._queue.put(event)

    @property
    def idle(self) -> bool:
        """Nothing waits to be sent."""
        return self._queue.empty()

    def close(self, timeout_s: float) -> bool:
        """Send what is left. False when that took longer than `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self._post(event)
            except SidecarError as error:
                self._say(f"event {event.kind} is lost: {error}")
