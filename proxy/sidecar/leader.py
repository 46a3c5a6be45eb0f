"""The leader (pod 0): the I/O shell around `machine`. One event loop, so every transition is atomic."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

from ..errors import ControllerError, ProxyError, StaleAttemptError
from ..protocol import page
from ..protocol.manifest import Manifest, RankImage
from ..protocol.messages import CheckpointFailure, CheckpointRef, Command, CommitRequest
from ..store import Store
from . import machine, machine_facts
from .config import Config
from .controller import Controller
from .machine import Failure, Heard, State
from .mesh import IDLE_HOLD_S, PACE_S
from .peers import Directive, PodReport
from .pod import Pod, resume_port

TICK_S: Final = 0.1
"""Longest time between two looks at the deadline while a checkpoint runs."""
KEEP: Final = 3
"""Checkpoints of a job that stay in the store, besides the committed and the pinned ones."""
TELL_S: Final = 60.0
"""How long the leader tries to tell the controller of a failure."""
log = logging.getLogger(__name__)


class Leader:
    """Coordinates the pods of one attempt and talks to the controller."""

    def __init__(self, config: Config, controller: Controller, store: Store, pod: Pod) -> None:
        self._config = config
        self._controller = controller
        self._store = store
        self._pod = pod
        self.state = State(config.job, config.attempt, config.workers, config.world_size)
        self.heard: dict[int, Heard] = {}
        self.directive = Directive(op="run", version=1)
        self.news = asyncio.Event()
        """Set whenever state or a report changed; progress reporting clears it."""
        self._turned = asyncio.Event()
        self._images: dict[int, tuple[int, list[RankImage], int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: dict[int, int] = {}
        """Version of the directive that each follower was given last."""
        self._taken: dict[int, int] = {}
        """... and that it has said to have."""
        self._finished_at = 0.0

    def continue_after(self, generation: int, acquired: bool) -> None:
        """This sidecar was restarted beside ranks that know `generation`: number the next stop above it.

        `acquired`: they may be frozen for it, and what became of its checkpoint is not known: all have to go on.
        """
        if generation // page.GENERATIONS_PER_ATTEMPT == self._config.attempt:
            sequence = generation % page.GENERATIONS_PER_ATTEMPT
            self._move(replace(self.state, sequence=sequence, acquired=acquired))

    # --- what comes in --------------------------------------------------------------------------------------------
    async def exchange(self, report: PodReport, seen: int, hold: float) -> Directive:
        """Take in a pod's report and answer what it has to do; waits up to `hold` seconds for something new."""
        self._seen[report.index] = self._taken[report.index] = seen
        self._take(report)
        if seen == self.directive.version and self.state.phase != "barrier":
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._turned.wait(), hold)
        self._seen[report.index] = self.directive.version
        return self.directive

    def command(self, command: Command) -> None:
        """The controller wants a checkpoint."""
        trigger = machine.Trigger(command.reason, time.time(), command.deadline, command.then)
        log.info(
            "checkpoint wanted (%s), %.0f s, then %s", command.reason, command.deadline - time.time(), command.then
        )
        self._move(machine.request(self.state, trigger))
        self._observe()

    def _take(self, report: PodReport) -> None:
        if report.images is not None:
            self._images[report.index] = (report.uploaded, report.images, report.bytes_stored)
        self.heard[report.index] = Heard(replace(report, images=None), time.time())
        self._observe()
        self.news.set()

    def _observe(self) -> None:
        was = self.state.phase
        state, failure = machine.observe(self.state, self.heard, time.time())
        self._move(state)
        if failure is not None:
            self._tell(failure)
        if was != "commit" and state.phase == "commit":
            self._spawn(self._commit())

    def _move(self, state: State) -> None:
        if state.phase != self.state.phase:
            step = max((v.count for v in machine.world(state, self.heard)), default=0)
            log.info("phase %s -> %s, generation %d, step %d", self.state.phase, state.phase, state.generation, step)
        if state.phase == "save" and self.state.phase != "save":
            # Before any other pod hears of it: should this sidecar be started anew, all ranks that froze must go on.
            self._pod.reached(state.generation, state.stop_at, state.anywhere)
        if state.phase == "finished" and not self._finished_at:
            self._finished_at = time.monotonic()
        self.state = state
        now = machine.directive(state)
        if now.op == "save":
            now = replace(now, addresses=sorted({item.report.address for item in self.heard.values()} - {""}))
        if replace(now, version=self.directive.version) != self.directive:
            self.directive = replace(now, version=self.directive.version + 1)
            turned, self._turned = self._turned, asyncio.Event()
            turned.set()
            self.news.set()

    # --- what goes out ----------------------------------------------------------------------------------------------
    async def drive(self) -> None:
        """The leader's own pod, and the clock of the machine. Never returns."""
        pod = self._pod
        while True:
            pod.changed.clear()
            report = pod.report()
            self._take(report)
            pod.delivered(report)
            if self.directive.op != "finish" or self._may_finish():
                await pod.apply(self.directive)
            if self.state.phase == "barrier":
                await asyncio.sleep(PACE_S)
            else:
                limit = TICK_S if self.state.active or self.directive.op == "finish" else IDLE_HOLD_S
                await _first_of(limit, pod.changed, self._turned)

    def _may_finish(self) -> bool:
        """The leader's pod ends last: one that has not heard the last word would take its leader for lost."""
        return self._all_have(self._taken) or time.monotonic() - self._finished_at > machine.GONE_S

    def _all_have(self, versions: dict[int, int]) -> bool:
        return all(versions.get(i) == self.directive.version for i in range(1, self.state.workers))

    async def listen(self) -> None:
        """Follow the controller's commands. Returns when the attempt is stale."""
        after, pause = 0, 0.2
        while True:
            try:
                command = await self._controller.next_command(after)
            except StaleAttemptError as error:
                self.stale(error)
                return
            except ControllerError as error:
                log.warning("%s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret
                pause = min(2.0, pause * 2)
                continue
            pause = 0.2
            if command is not None and command.seq > after:
                after = command.seq
                self.command(command)

    def stale(self, error: StaleAttemptError) -> None:
        """The controller said so: all pods end."""
        log.error("%s", error)
        self._move(machine.stale(self.state))

    async def _commit(self) -> None:
        state = self.state
        assert state.trigger is not None
        deadline = state.trigger.deadline
        try:
            manifest, stored = self._manifest(state)
            await self._write(manifest, max(0.1, deadline - time.time()))
            goes_on = self.state.goes_on
            await self._controller.commit(self._request(state, manifest, stored, goes_on), deadline)
            if goes_on and not self.state.goes_on and self.state.trigger is not None:
                # Told to end meanwhile: the controller takes the attempt for one that goes on, and its hold waits.
                goes_on, deadline = False, self.state.trigger.deadline
                await self._controller.commit(self._request(state, manifest, stored, goes_on), deadline)
        except StaleAttemptError as error:
            self.stale(error)
        except (ProxyError, asyncio.TimeoutError, TimeoutError, ValueError) as error:
            if self.state.phase != "commit":
                log.warning("commit of %s: %s", state.checkpoint_id, error)
                return  # a report was answered with "stale" meanwhile: everything ends
            reason = str(error) or "the store did not take the manifest in time"
            after, failure = machine.cancelled(
                self.state, f"the images of step {state.stop_at} are stored, but the commit failed: {reason}"
            )
            self._move(after)
            self._tell(failure)
        else:
            log.info("committed %s at step %d%s", manifest.id, manifest.step, ", training goes on" if goes_on else "")
            if self.state.phase == "commit":
                self._move(machine.committed(self.state))
            if goes_on:
                self._spawn(self.retain(manifest.id))

    async def _write(self, manifest: Manifest, limit_s: float) -> None:
        """The manifest, or TimeoutError; then none appears later, when nobody would commit it."""
        late = threading.Event()
        try:
            await asyncio.wait_for(asyncio.to_thread(self._store.write_manifest, manifest, late.is_set), limit_s)
        finally:
            late.set()

    async def retain(self, checkpoint: str, fresh: bool = False) -> None:
        """Delete old checkpoints, and what none needs any more; never `checkpoint`. A failure is only logged.

        :param fresh: no pod of this attempt has uploaded yet, and those of earlier ones cannot commit any more
        """
        namespace, job = self._config.namespace, self._config.job

        def work() -> None:
            if fresh:
                self._store.end_uploads(namespace, job)
            gone = self._store.prune(namespace, job, KEEP, frozenset({checkpoint} - {""}))
            done = self._store.collect_garbage(namespace, job)
            log.info("retention: deleted checkpoints %s and %d bytes", gone, done.freed)

        try:
            await asyncio.to_thread(work)
        except ProxyError as error:
            log.warning("old checkpoints stay in the store: %s", error)

    def _manifest(self, state: State) -> tuple[Manifest, int]:
        sets = [self._images[i] for i in range(state.workers)]
        if any(generation != state.generation for generation, _, _ in sets):
            raise ControllerError("images of an older checkpoint were reported")
        manifest = Manifest(
            id=state.checkpoint_id,
            namespace=self._config.namespace,
            job=state.job,
            attempt=state.attempt,
            generation=state.generation,
            step=state.stop_at,
            world_size=state.world_size,
            engine="process",
            created_at=time.time(),
            ranks=sorted((image for _, images, _ in sets for image in images), key=lambda r: r.rank),
            requirements=machine_facts.requirements(),
            master_port=resume_port(state.generation),
        )
        return manifest, sum(stored for _, _, stored in sets)

    def _request(self, state: State, manifest: Manifest, stored: int, goes_on: bool) -> CommitRequest:
        ref = CheckpointRef(
            id=manifest.id,
            generation=manifest.generation,
            attempt=manifest.attempt,
            step=manifest.step,
            world_size=manifest.world_size,
            url=self._store.url,
            bytes=sum(f.size for r in manifest.ranks for f in r.files),
            bytes_stored=stored,
            created_at=manifest.created_at,
            needs=machine_facts.needs(),
        )
        c = self._config
        return CommitRequest(c.namespace, c.job, c.attempt, ref, state.barrier_at, manifest.step - 1, goes_on)

    def _tell(self, failure: Failure) -> None:
        log.warning("no checkpoint: %s", failure.message)
        step = max((v.count for v in machine.world(self.state, self.heard)), default=0)
        c = self._config
        message = CheckpointFailure(
            c.namespace, c.job, c.attempt, failure.message, step, goes_on=failure.goes_on, finishing=failure.finishing
        )
        self._spawn(self._tell_controller(message))

    async def _tell_controller(self, failure: CheckpointFailure) -> None:
        try:
            await self._controller.failure(failure, time.time() + TELL_S)
        except StaleAttemptError as error:
            self.stale(error)
        except ControllerError as error:
            log.error("the controller does not know that there is no checkpoint: %s", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the end ----------------------------------------------------------------------------------------------------
    def settled(self) -> bool:
        """Nothing is under way, and every other pod has heard the last word or has ended."""
        if self.state.active or self._tasks:
            return False
        if self.state.phase == "stopped":
            return self._all_have(self._seen)
        if self.state.phase == "finished":
            return self._may_finish()
        return all(v.state in (page.STATE_FINISHED, page.STATE_ABSENT) for v in machine.world(self.state, self.heard))

    def deadline(self) -> float:
        """Unix seconds until which a checkpoint under way may take; 0 if none is."""
        return self.state.trigger.deadline if self.state.trigger else 0.0


async def _first_of(limit: float, *events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
