"""Progress reports of a running attempt to the controller: a pure summary, and the loop that sends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from ..errors import ControllerError, StaleAttemptError
from ..protocol import gpus, page, phases
from ..protocol.messages import Progress, Reading
from . import state_machine
from .config import Config
from .controller_client import Controller
from .leader import Leader
from .peers import PodReport
from .pod import Pod
from .state_machine import Heard, State

EVERY_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
Phase = Literal["starting", "restoring", "running", "barrier", "dumping", "uploading", "finished"]
_NOT_TRAINING: Final = ("starting", "restoring", "finished")
log = logging.getLogger(__name__)


def summary(
    config: Config,
    state: State,
    heard: Mapping[int, Heard],
    first_step: int,
    restoring: bool,
    reading: Reading | None = None,
    now: float = 0.0,
) -> Progress:
    """The progress of the whole job, as the leader sees it at `now` of its monotonic clock."""
    views = state_machine.world(state, heard)
    reports = {index: item.report for index, item in heard.items()}
    everybody = len(reports) == state.workers
    phase = _phase(state, heard, restoring)
    done, total = _uploaded(list(reports.values())) if phase == "uploading" and everybody else (None, None)
    going = [v for v in views if v.state != page.STATE_ENDED] or views
    training = [i for i in heard.values() if any(words.state != page.STATE_ENDED for words in i.report.ranks)]
    reached = [i.at - i.report.first_step_ago_s for i in training if i.report.first_step_ago_s is not None]
    return Progress(
        namespace=config.namespace,
        job=config.job,
        attempt=config.attempt,
        phase=phase,
        step=max(first_step, min(v.count for v in going)),
        first_step=first_step,
        first_step_ago_s=max(0.0, now - max(reached))
        if everybody and reached and len(reached) == len(training)
        else None,
        free=phase not in _NOT_TRAINING and all(v.state in page.FREE and v.count <= first_step for v in going),
        barrier_ago_s=None if state.goes_on or not state.barrier_at else max(0.0, now - state.barrier_at),
        reading=reading,
        bytes_done=done,
        bytes_total=total,
        gpus=gpus.of_pods({index: r.gpus for index, r in reports.items()}) if everybody else None,
        start=phases.of_job_start(r.start for r in reports.values()) if everybody else None,
        why_state=next(filter(None, (reports[index].why for index in sorted(reports))), ""),
    )


def _facts(progress: Progress | None) -> Progress | None:
    """Without the fields that change by themselves."""
    if progress is None:
        return None
    first = None if progress.first_step_ago_s is None else 0.0
    barrier = None if progress.barrier_ago_s is None else 0.0
    return replace(progress, first_step_ago_s=first, barrier_ago_s=barrier)


def _uploaded(reports: list[PodReport]) -> tuple[int | None, int | None]:
    """Bytes that the store has and bytes in all, once every pod knows the size of its images."""
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
    if state.phase in ("commit", "stay", "stopped"):
        return "uploading"
    if all(v.state in page.OVER for v in state_machine.world(state, heard)):
        return "finished"
    if len(reports) == state.workers and all(r.started for r in reports):
        return "running"
    return "restoring" if restoring else "starting"


class Reporter:
    """Sends progress while the step moves, as often as the controller wants, and at once when the phase changes."""

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
        self._every = EVERY_S
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
        """Send a report if it is due (with `force`: if anything is new). Raises StaleAttemptError. An unreachable
        controller is only logged: the next report contains the same facts and more."""
        leader = self._leader
        at, reading = time.monotonic(), self._pod.reading
        now = summary(self._config, leader.state, leader.heard, self._first_step, self._restoring, reading, at)
        last = self._last
        same_step = last is not None and (now.first_step_ago_s is None) == (last.first_step_ago_s is None)
        urgent = last is None or not same_step or now.phase != last.phase
        due = time.monotonic() - self._last_at >= self._every or force
        if leader.state.phase == "stopped" or _facts(now) == _facts(last) or not (urgent or due):
            return
        if time.monotonic() < self._not_before and not force:
            return  # every wake-up is urgent while nothing arrives: the controller is asked in its own time
        try:
            self._every = max(EVERY_S, (await self._controller.progress(now)).every_s)
        except ControllerError as error:
            if self._reachable:
                log.warning("%s", error)
            self._reachable = False
            self._last_at = time.monotonic()
            self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause * 2))
            # Jitter: the jobs of a cluster must not all reach a controller at the same moment when it comes back.
            self._not_before = self._last_at + self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret
            return
        self._last, self._last_at, self._reachable = now, time.monotonic(), True
        self._pause = self._not_before = 0.0
