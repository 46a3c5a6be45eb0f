"""What stands in place of the leader pod of an attempt: its sidecar, and all ranks of the job.

It speaks to the real controller as the sidecars do: hello, long polls for commands, progress, commit, failure. Between
them it comes, trains and leaves in the time that the simulator gives to it. Nothing is saved but the number of the
step. The next attempt gets it from the controller, with its checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from singularity_proxy.errors import ControllerError, StaleAttemptError
from singularity_proxy.protocol import page
from singularity_proxy.protocol.messages import (
    CheckpointFailure,
    CheckpointRef,
    Command,
    CommitRequest,
    HelloReply,
    Progress,
    Reading,
)

from ..model import Costs, Job
from .attempts import Attempt

REPORT_S = 5.0
"""The sidecars' second is not compressed either: it would have the API server do little else on a small machine."""
PATIENCE_S = 60.0
"""For an answer of the controller, however busy the machine is."""
AGAIN_S = 0.5
Phase = Literal["starting", "restoring", "running", "finished"]


class Line(Protocol):
    """What is used of the sidecars' client (`singularity_proxy.sidecar.controller_client.Controller`).

    Deadlines are of the monotonic clock.
    """

    async def hello(self, deadline: float, restarted: bool = False) -> HelloReply: ...

    async def next_command(self, after: int) -> Command | None: ...

    async def progress(self, progress: Progress) -> object: ...

    async def commit(self, request: CommitRequest, deadline: float) -> None: ...

    async def failure(self, failure: CheckpointFailure, deadline: float) -> None: ...


@dataclass
class Told:
    """What has happened to one attempt, in seconds of the clock; None: it has not.

    :param coming_s: that the law gives to its start, and `leaving_s` to its end
    :param done_s: work that is done
    """

    job: int
    attempt: int
    workers: int
    hello_at: float
    coming_s: float = 0.0
    trains_at: float | None = None
    asked_at: float | None = None
    leaving_s: float = 0.0
    saved_at: float | None = None
    finished_at: float | None = None
    began_s: float = 0.0
    done_s: float = 0.0


class Leader:
    """:param steps: in a second of work; where a save cuts a step, it is made again
    :param store: URL, of the Job
    """

    def __init__(
        self,
        attempt: Attempt,
        job: Job,
        costs: Costs,
        line: Line,
        steps: float,
        store: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attempt, self._job, self._costs, self._line = attempt, job, costs, line
        self._steps, self._store, self._clock = steps, store, clock
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._flavor = next(iter(job.speeds))
        self._saves = 0
        self._from = 0.0, 0.0
        """Seconds of work that were done when it began, or went on; and when that was."""
        self.told = Told(job.id, attempt.number, attempt.workers, clock())

    async def run(self) -> bool:
        """Until the work is done (True) or the attempt is over.

        :raises ControllerError: the controller does not answer, or does not understand
        """
        reply = await self._line.hello(time.monotonic() + PATIENCE_S)
        if reply.finished:
            return True
        if reply.checkpoint is not None:
            self.told.began_s = self.told.done_s = reply.checkpoint.step / self._steps
        helpers = [asyncio.ensure_future(self._listen()), asyncio.ensure_future(self._report())]
        own = asyncio.ensure_future(self._live())
        try:
            await asyncio.wait([own, *helpers], return_when=asyncio.FIRST_COMPLETED)
            return own.result() if own.done() else False
        finally:
            for task in (own, *helpers):
                task.cancel()
            results = await asyncio.gather(own, *helpers, return_exceptions=True)
            for one in results:
                if isinstance(one, Exception) and not isinstance(one, StaleAttemptError):
                    raise one

    # --- the law ------------------------------------------------------------------------------------------------
    async def _live(self) -> bool:
        told, job, workers = self.told, self._job, self._attempt.workers
        told.coming_s = self._costs.coming(job, workers, first=told.done_s == 0)
        command = await self._until(self._clock() + told.coming_s)
        if command is not None:
            return await self._leave_unsaved()
        told.trains_at = self._clock()
        self._from = told.done_s, told.trains_at
        await self._tell("running")
        while True:
            done, since = self._from
            command = await self._until(since + (job.work_s - done) / self._rate)
            told.done_s = self._done()
            if command is None:
                told.finished_at = self._clock()
                await self._tell("finished")
                return True
            if await self._leave(command):
                return False
            self._from, told.asked_at = (told.done_s, self._clock()), None  # nobody has ended it: it goes on

    @property
    def _rate(self) -> float:
        return self._job.rate(self._attempt.workers, self._flavor, True)

    def _done(self) -> float:
        """Seconds of work: as long as it trains, by the clock."""
        told = self.told
        if told.trains_at is None or told.asked_at is not None or told.finished_at is not None:
            return told.done_s
        done, since = self._from
        return min(done + (self._clock() - since) * self._rate, self._job.work_s)

    async def _until(self, moment: float) -> Command | None:
        """A command that ends the attempt; None: none has come by `moment`."""
        while True:
            try:
                command = await asyncio.wait_for(self._commands.get(), max(0.0, moment - self._clock()))
            except (asyncio.TimeoutError, TimeoutError):
                return None
            if command.op == "resume":
                continue
            if command.then == "stop" or (command.then == "stay" and self.told.trains_at is not None):
                self.told.done_s = self._done()
                self.told.asked_at = self._clock()
                return command
            # Whoever asks for a save in between costs the job nothing: no study has such saves.
            await self._commit(self._done(), 0.0, goes_on=True)

    async def _leave(self, command: Command) -> bool:
        """Whether the attempt is over: saved for good, or saved to be ended, and then ended in time."""
        told = self.told
        told.leaving_s = self._costs.leaving(self._job, self._attempt.workers)
        await asyncio.sleep(told.leaving_s)
        if command.then == "stay":
            ref = await self._commit(told.done_s, told.leaving_s, goes_on=True, stays=True)
            end: Command | None = command
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                end = await asyncio.wait_for(self._commands.get(), command.stay_s)
            if end is None or end is command or end.op == "resume" or end.then == "continue":
                return False
            told.leaving_s = 0.0  # of the eviction, which has come after the save
            await self._commit(told.done_s, told.leaving_s, again=ref)
        else:
            await self._commit(told.done_s, told.leaving_s)
        told.saved_at = self._clock()
        return True

    async def _leave_unsaved(self) -> bool:
        """It had not begun to train: all that it would save is what it has come with."""
        a, told = self._attempt, self.told
        told.leaving_s = self._costs.evict_s
        await asyncio.sleep(told.leaving_s)
        text = "the ranks had not started"
        await self._line.failure(
            CheckpointFailure(a.namespace, a.name, a.number, text, self._step(told.done_s)),
            time.monotonic() + PATIENCE_S,
        )
        return False

    # --- words ----------------------------------------------------------------------------------------------------
    async def _listen(self) -> None:
        """Returns when the attempt is over."""
        after = 0
        while True:
            try:
                command = await self._line.next_command(after)
            except StaleAttemptError:
                return
            except ControllerError:
                await asyncio.sleep(AGAIN_S)
                continue
            if command is not None:
                after = command.seq
                self._commands.put_nowait(command)

    async def _report(self) -> None:
        """Returns when the attempt is over."""
        while True:
            told = self.told
            phase: Phase = "running" if told.trains_at else "restoring" if told.began_s else "starting"
            if told.asked_at is None and told.finished_at is None:
                try:
                    await self._tell(phase)
                except StaleAttemptError:
                    return
            await asyncio.sleep(REPORT_S)

    async def _tell(self, phase: Phase) -> None:
        """Once; the next report is a moment away."""
        a, told, step = self._attempt, self.told, self._step(self._done())
        trains = told.trains_at is not None
        total = max(step + 1, self._step(self._job.work_s * self._job.misjudged))
        message = Progress(
            a.namespace,
            a.name,
            a.number,
            phase,
            step,
            first_step=self._step(told.began_s) if trains else None,
            first_step_ago_s=self._clock() - told.trains_at if told.trains_at is not None else None,
            reading=Reading(step, total) if trains else None,
        )
        with contextlib.suppress(ControllerError):
            await self._line.progress(message)

    async def _commit(
        self,
        done_s: float,
        ago_s: float,
        goes_on: bool = False,
        stays: bool = False,
        again: CheckpointRef | None = None,
    ) -> CheckpointRef:
        """`again`: that one, and the attempt ends with it."""
        a, step = self._attempt, self._step(done_s)
        ref = self._made(step) if again is None else again
        request = CommitRequest(a.namespace, a.name, a.number, ref, ago_s, step - 1, goes_on, stays)
        await self._line.commit(request, time.monotonic() + PATIENCE_S)
        return ref

    def _made(self, step: int) -> CheckpointRef:
        a = self._attempt
        self._saves += 1
        name = f"{a.name}-{a.number}-{self._saves}"
        return CheckpointRef(
            id=name,
            generation=a.number * page.GENERATIONS_PER_ATTEMPT + self._saves,
            attempt=a.number,
            step=step,
            world_size=max(self._job.most, self._job.workers),
            url=self._store,
            bytes=1,
            bytes_stored=1,
            created_at=time.time(),
            sha256=hashlib.sha256(name.encode()).hexdigest(),
        )

    def _step(self, done_s: float) -> int:
        return int(done_s * self._steps + 1e-6)
