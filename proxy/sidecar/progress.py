"""What the controller hears of a running attempt: a pure summary, and the loop that sends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Mapping
from typing import Final, Literal

from ..errors import ControllerError, StaleAttemptError
from ..protocol import page
from ..protocol.messages import Progress, Reading
from . import machine
from .config import Config
from .controller import Controller
from .leader import Leader
from .machine import Heard, State
from .peers import PodReport
from .pod import Pod

EVERY_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
Phase = Literal["starting", "restoring", "running", "barrier", "dumping", "uploading", "finished"]
log = logging.getLogger(__name__)


def summary(
    config: Config,
    state: State,
    heard: Mapping[int, Heard],
    first_step: int,
    restoring: bool,
    reading: Reading | None = None,
) -> Progress:
    """The progress of the whole job, as the leader sees it."""
    views = machine.world(state, heard)
    reports = {index: item.report for index, item in heard.items()}
    everybody = len(reports) == state.workers
    phase = _phase(state, heard, restoring)
    done, total = _uploaded(list(reports.values())) if phase == "uploading" and everybody else (None, None)
    firsts = [r.first_step_at for r in reports.values()]
    reached = [at for at in firsts if at is not None]
    return Progress(
        namespace=config.namespace,
        job=config.job,
        attempt=config.attempt,
        phase=phase,
        step=max(first_step, min(v.count for v in views)),
        first_step=first_step,
        first_step_at=max(reached) if everybody and len(reached) == len(firsts) else None,
        barrier_at=None if state.goes_on else state.barrier_at or None,
        reading=reading,
        bytes_done=done,
        bytes_total=total,
    )


def _uploaded(reports: list[PodReport]) -> tuple[int | None, int | None]:
    """Bytes that the store has and bytes in all, once every pod knows how much it has."""
    if not all(r.bytes_total for r in reports):
        return None, None
    return sum(r.bytes_done for r in reports), sum(r.bytes_total for r in reports)


def _phase(state: State, heard: Mapping[int, Heard], restoring: bool) -> Phase:
    reports = [item.report for item in heard.values()]
    if state.phase == "barrier":
        return "barrier"
    if state.phase == "save":
        dumped = len(reports) == state.workers and all(r.dumped == state.generation for r in reports)
        return "uploading" if dumped else "dumping"
    if state.phase in ("commit", "stopped"):
        return "uploading"
    if all(v.state == page.STATE_FINISHED for v in machine.world(state, heard)):
        return "finished"
    if len(reports) == state.workers and all(r.started for r in reports):
        return "running"
    return "restoring" if restoring else "starting"


class Reporter:
    """Sends progress once a second while the step moves, and at once when the phase changes."""

    def __init__(
        self, config: Config, controller: Controller, leader: Leader, pod: Pod, first_step: int, restoring: bool
    ) -> None:
        self._config = config
        self._controller = controller
        self._leader = leader
        self._pod = pod
        self._first_step = first_step
        self._restoring = restoring
        self._last: Progress | None = None
        self._last_at = 0.0
        self._reachable = True
        self._pause = 0.0
        self._not_before = 0.0

    async def run(self) -> None:
        """Never returns, unless the attempt is stale."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._leader.news.wait(), EVERY_S)
            self._leader.news.clear()
            try:
                await self.flush()
            except StaleAttemptError as error:
                self._leader.stale(error)
                return

    async def flush(self, force: bool = False) -> None:
        """Send what is due (with `force`: whatever is new). Raises StaleAttemptError; an unreachable controller is
        only logged: the next report says the same and more."""
        leader = self._leader
        now = summary(self._config, leader.state, leader.heard, self._first_step, self._restoring, self._pod.reading)
        last = self._last
        urgent = last is None or (now.phase, now.first_step_at) != (last.phase, last.first_step_at)
        due = time.monotonic() - self._last_at >= EVERY_S or force
        if leader.state.phase == "stopped" or now == last or not (urgent or due):
            return
        if time.monotonic() < self._not_before and not force:
            return  # every wake-up is urgent while nothing arrives: the controller is asked in its own time
        try:
            await self._controller.progress(now)
        except ControllerError as error:
            if self._reachable:
                log.warning("%s", error)
            self._reachable = False
            self._last_at = time.monotonic()
            self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause * 2))
            # Jitter: the jobs of a cluster must not meet a controller that comes back in step.
            self._not_before = self._last_at + self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret
            return
        self._last, self._last_at, self._reachable = now, time.monotonic(), True
        self._pause = self._not_before = 0.0
