"""The leader (pod 0): the I/O shell around `machine`. One event loop, so every transition is atomic."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from ..errors import ControllerError, ProxyError, StaleAttemptError
from ..protocol import addresses, names, page, phases, user_namespace
from ..protocol.manifest import Manifest, RankImage
from ..protocol.messages import (
    CheckpointFailure,
    CheckpointRef,
    Command,
    CommitRequest,
    Engine,
    Origin,
    Through,
    TrialReport,
)
from ..store import Store
from . import hardware, restore, state_machine
from .config import Config
from .controller_client import Controller
from .mesh import IDLE_HOLD_S, PACE_S
from .outputs import OutputsOfJob
from .peers import Directive, PodReport
from .pod import Pod, resume_port
from .retention import needs, superseded
from .state_machine import Failure, Heard, Outcome, State, Trigger

TICK_S: Final = 0.1
"""Longest time between two looks at the deadline while a checkpoint runs."""
MOST_WORDS: Final = 240
"""Of the sentence which ranks cannot share a pod: it stands in an annotation."""
TELL_S: Final = 60.0
"""How long the leader tries to report a failure to the controller."""
log = logging.getLogger(__name__)


class Leader:
    """Coordinates the pods of one attempt and talks to the controller."""

    def __init__(
        self,
        config: Config,
        controller: Controller,
        store: Store,
        pod: Pod,
        nonce: str = "",
        committed: Sequence[CheckpointRef] = (),
        origin: Origin | None = None,
        outputs: str = "",
    ) -> None:
        self._origin = origin
        self._committed = [*committed]
        """Of this job, newest first."""
        self._config = config
        self._controller = controller
        self._store = store
        self._pod = pod
        overlaps, apart = config.engine == names.ENGINE_STATE, config.engine == names.ENGINE_PROCESS
        world = config.workers, config.world_size
        self.state = State(config.job, config.attempt, *world, nonce, overlaps=overlaps, apart=apart)
        self.outputs: OutputsOfJob | None = None
        if outputs:
            told = self._standing, self._outputs_turned, self.stale
            self.outputs = OutputsOfJob(config, outputs, controller, *told)
            self.state = replace(self.state, storing=True)
        self.heard: dict[int, Heard] = {}
        self.directive = Directive(op="run", version=1)
        self.news = asyncio.Event()
        """Set whenever state or a report changed; progress reporting clears it."""
        self._turned = asyncio.Event()
        self._images: dict[int, tuple[int, list[RankImage], int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: dict[int, int] = {}
        """Version of the last directive sent to each follower."""
        self._made: CheckpointRef | None = None
        """The last one whose manifest is written."""
        self._taken: dict[int, int] = {}
        """... and of the directive that the follower has confirmed."""
        self._finished_at = 0.0
        self._weigh = False
        self.shown = False
        """A checkpoint or a trial of this attempt has shown whether it can be saved, or is about to."""

    def continue_after(self, generation: int, acquired: bool, ended: Collection[int] = ()) -> None:
        """This sidecar was restarted beside ranks that know `generation`: number the next stop above it.

        `acquired`: they may be frozen for it, and the result of its checkpoint is unknown. So all have to go on.
        `ended`: the ranks that had ended by then.
        """
        if generation // page.GENERATIONS_PER_ATTEMPT == self._config.attempt:
            sequence = generation % page.GENERATIONS_PER_ATTEMPT
            self.shown = sequence > 0
            self._move(replace(self.state, sequence=sequence, acquired=acquired, ended=frozenset(ended)))

    # --- what comes in --------------------------------------------------------------------------------------------
    async def exchange(self, report: PodReport, seen: int, hold: float) -> Directive:
        """Process a pod's report and answer with its directive. Waits up to `hold` seconds for something new."""
        self._seen[report.index] = self._taken[report.index] = seen
        self._take(report)
        if seen == self.directive.version and self.state.phase != "barrier":
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._turned.wait(), hold)
        self._seen[report.index] = self.directive.version
        return self._said()

    def _said(self) -> Directive:
        """The directive as it is sent now."""
        left = self.state.trigger.deadline - time.monotonic() if self.state.trigger else 0.0
        return replace(self.directive, remaining_s=max(0.0, left))

    def command(self, command: Command) -> None:
        """The controller wants a checkpoint, or no rank to stay stopped any more."""
        was = self.state.phase
        if command.op == "resume":
            log.info("no rank is to stay stopped any more: %s", command.reason)
            self._move(state_machine.resume(self.state))
        else:
            now = time.monotonic()
            trigger = Trigger(command.reason, now, now + command.remaining_s, command.then, stay_s=command.stay_s)
            log.info("checkpoint wanted (%s), %.0f s, then %s", command.reason, command.remaining_s, command.then)
            self.shown = True
            self._move(state_machine.request(self.state, trigger))
        self._observe(was)

    def weigh(self) -> None:
        """All pods have to report what their ranks hold."""
        self._weigh = True
        self._move(self.state)

    def try_save(self, limit_s: float) -> None:
        """Stop the ranks for nothing but a trial, for at most `limit_s` seconds."""
        now = time.monotonic()
        log.info("trial: whether the ranks can be saved")
        self.shown = True
        self._move(state_machine.request(self.state, Trigger("trial", now, now + limit_s, "continue", trial=True)))
        self._observe()

    def _take(self, report: PodReport) -> None:
        if report.images is not None:
            self._images[report.index] = (report.uploaded, report.images, report.bytes_stored)
        before = self.heard.get(report.index)
        if self.state.released and before is not None and not report.occupied:
            report = replace(report, occupied=before.report.occupied)  # a sidecar that was restarted does not know it
        self.heard[report.index] = Heard(replace(report, images=None), time.monotonic())
        self._observe()
        if self.outputs is not None:
            self.outputs.see({index: item.report for index, item in self.heard.items()})
        self.news.set()

    def _standing(self) -> tuple[int, str]:
        """Steps that are done, and the last checkpoint."""
        step = max((view.count for view in state_machine.world(self.state, self.heard)), default=0)
        return step, self._committed[0].id if self._committed else ""

    def _outputs_turned(self) -> None:
        stored = self.outputs is not None and self.outputs.stored
        self._move(replace(self.state, storing=self.state.storing and not stored))
        self._observe()

    def _observe(self, was: str = "") -> None:
        """`was`: the phase before, where that is over already."""
        was = was or self.state.phase
        state, told = state_machine.observe(self.state, self.heard, time.monotonic())
        self._move(state)
        if isinstance(told, Outcome):
            self.tell_outcome(told)
        elif told is not None:
            self._tell(told)
        if was != "commit" and state.phase == "commit":
            self._spawn(self._commit())

    def _move(self, state: State) -> None:
        if state.phase != self.state.phase:
            step = max((v.count for v in state_machine.world(state, self.heard)), default=0)
            log.info("phase %s -> %s, generation %d, step %d", self.state.phase, state.phase, state.generation, step)
        if state.phase == "save" and self.state.phase != "save":
            # Before any other pod gets the directive: if this sidecar is restarted, all ranks that froze must go on.
            self._pod.reached(state.generation, state.stop_at, state.anywhere, state.background)
        if state.phase == "finished" and not self._finished_at:
            self._finished_at = time.monotonic()
            self._spawn(self._leave())
        self.state = state
        now = state_machine.directive(state)
        if len(self.heard) == state.workers:
            now = replace(now, addresses=[self.heard[index].report.address for index in range(state.workers)])
        now = replace(now, through=agreed(self.heard, state.workers), weigh=self._weigh)
        if self.outputs is not None:
            now = replace(now, outputs=self.outputs.skipped, unstored=self.outputs.unstored)
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
                await pod.apply(self._said())
            if self.state.phase == "barrier":
                await asyncio.sleep(PACE_S)
            else:
                limit = TICK_S if self.state.active or self.directive.op == "finish" else IDLE_HOLD_S
                await _first_of(limit, pod.changed, self._turned)

    def _may_finish(self) -> bool:
        """The leader's pod ends last: a pod that has not received the last directive would believe that its leader is
        lost."""
        return self._all_have(self._taken) or time.monotonic() - self._finished_at > state_machine.GONE_S

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
        self._move(state_machine.stale(self.state))

    async def _commit(self) -> None:
        state = self.state
        assert state.trigger is not None
        deadline = state.trigger.deadline
        again = self._made is not None and self._made.generation == state.generation
        try:
            ref = self._made if again else None
            if ref is None:
                manifest, stored = self._manifest(state)
                sha256 = await self._write(manifest, max(0.1, deadline - time.monotonic()))
                ref = self._made = self._ref(manifest, sha256, stored)
            told = self.state
            await self._controller.commit(self._request(state, ref, told), deadline)
            while self.state.trigger is not None and _ends_more(self.state, told):
                # SIGTERM came meanwhile, say: the controller believes that the attempt goes on, and its hold waits.
                told, deadline = self.state, self.state.trigger.deadline
                await self._controller.commit(self._request(state, ref, told), deadline)
        except StaleAttemptError as error:
            self.stale(error)
        except (ProxyError, asyncio.TimeoutError, TimeoutError, ValueError) as error:
            if self.state.phase != "commit":
                log.warning("commit of %s: %s", state.checkpoint_id, error)
                return  # a report was answered with "stale" meanwhile: everything ends
            reason = str(error) or "the store did not take the manifest in time"
            after, failure = state_machine.cancelled(
                self.state, f"the images of step {state.stop_at} are stored, but the commit failed: {reason}", "store"
            )
            self._move(after)
            assert isinstance(failure, Failure), "a trial is never committed"
            self._tell(failure)
        else:
            then = "" if not told.goes_on else ", the ranks stay stopped" if told.stays else ", training goes on"
            log.info("committed %s at step %d%s", ref.id, ref.step, then)
            if not again:
                self._committed.insert(0, ref)
            if self.state.phase == "commit":
                self._move(state_machine.committed(self.state, time.monotonic()))
            if told.goes_on and not again:
                self._spawn(self.retain())

    async def _write(self, manifest: Manifest, limit_s: float) -> str:
        """Write the manifest; its digest. After a TimeoutError no manifest appears later, when nobody would commit
        it."""
        late = threading.Event()
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._store.write_manifest, manifest, late.is_set), limit_s)
        finally:
            late.set()

    async def retain(self, ended: Sequence[str] = ()) -> None:
        """Delete old checkpoints, and content that no checkpoint needs any more. A failure is only logged.

        :param ended: announcements of uploads that cannot be committed any more
        """
        namespace, job = self._config.namespace, self._config.job

        def work() -> None:
            self._store.withdraw_uploads(namespace, job, ended)
            listed = self._store.list_checkpoints(namespace, job)
            # Read after the list: so a checkpoint that is listed while its commit runs is known here.
            gone = superseded(listed, [*self._committed], self.state.checkpoint_id)
            self._store.drop(namespace, job, gone)
            self._let_go()
            done = self._store.collect_garbage(namespace, job)
            log.info("retention: deleted checkpoints %s and %d bytes", gone, done.freed)

        try:
            await asyncio.to_thread(work)
        except ProxyError as error:
            log.warning("old checkpoints stay in the store: %s", error)

    async def _leave(self) -> None:
        """The job has ended well and starts no more: nothing is held for it any longer."""
        try:
            await asyncio.to_thread(self._let_go, True)
        except ProxyError as error:
            log.warning("what was held for this job stays held in the store: %s", error)

    def _let_go(self, ended: bool = False) -> None:
        """Checkpoints that were held for this job (`Store.hold`), and that its own have replaced. Raises StoreError.

        :param ended: the job starts no more
        """
        namespace, job, start = self._config.namespace, self._config.job, self._config.checkpoint
        origin = self._origin
        own = restore.maker(self._config, origin, start) == job
        if start and own and (ended or any(ref.attempt == self._config.attempt for ref in self._committed)):
            self._store.release(namespace, job, start, names.HOLD_REWIND)
        if origin is not None and (ended or not needs(self._committed, origin.checkpoint)):
            self._store.release(namespace, origin.job, origin.checkpoint, job)

    def _manifest(self, state: State) -> tuple[Manifest, int]:
        sets = [self._images[i] for i in range(state.workers)]
        if any(generation != state.generation for generation, _, _ in sets):
            raise ControllerError("images of an older checkpoint were reported")
        made_with = _engine(self._config.engine, [image for _, images, _ in sets for image in images])
        # For whoever looks: a checkpoint goes on with the privileges of either kind.
        labels = {} if made_with == names.ENGINE_STATE else {user_namespace.LABEL: user_namespace.level()}
        manifest = Manifest(
            id=state.checkpoint_id,
            namespace=self._config.namespace,
            job=state.job,
            attempt=state.attempt,
            generation=state.generation,
            step=state.stop_at,
            world_size=state.world_size,
            engine=made_with,
            created_at=time.time(),
            ranks=sorted((image for _, images, _ in sets for image in images), key=lambda r: r.rank),
            requirements=hardware.requirements(),
            master_port=resume_port(state.generation),
            labels=labels,
        )
        return manifest, sum(stored for _, _, stored in sets)

    def _ref(self, manifest: Manifest, sha256: str, stored: int) -> CheckpointRef:
        held = {rank.rank: rank.addresses for item in self.heard.values() for rank in item.report.occupied}
        fewest, crowded = addresses.fewest_pods(manifest.world_size, self.state.workers, held)
        return CheckpointRef(
            id=manifest.id,
            generation=manifest.generation,
            attempt=manifest.attempt,
            step=manifest.step,
            world_size=manifest.world_size,
            url=self._store.url,
            bytes=sum(f.size for r in manifest.ranks for f in r.files),
            bytes_stored=stored,
            created_at=manifest.created_at,
            sha256=sha256,
            needs=hardware.needs() if manifest.engine == names.ENGINE_PROCESS else None,
            engine=cast(Engine, manifest.engine),
            fewest=fewest if crowded else 0,
            crowded=crowded[:MOST_WORDS],
        )

    def _request(self, state: State, ref: CheckpointRef, now: State) -> CommitRequest:
        """`now`: what is to follow, as far as is known."""
        c = self._config
        ago = time.monotonic() - state.barrier_at
        save = None
        if not now.goes_on and state.trigger is not None:
            saved = (item.report.save for item in self.heard.values())
            save = phases.of_job_save(saved, state.barrier_at - state.trigger.started_at)
        return CommitRequest(c.namespace, c.job, c.attempt, ref, ago, ref.step - 1, now.goes_on, now.stays, save)

    def _tell(self, failure: Failure) -> None:
        log.warning("no checkpoint: %s", failure.message)
        step = max((v.count for v in state_machine.world(self.state, self.heard)), default=0)
        c = self._config
        message = CheckpointFailure(c.namespace, c.job, c.attempt, failure.message, step, failure.goes_on)
        message = replace(message, finishing=failure.finishing, cause=failure.cause, why=failure.why)
        self._spawn(self._tell_controller(message))

    def tell_outcome(self, outcome: Outcome) -> None:
        """What a trial has shown, or why there is none."""
        log.info("trial: %s %s", outcome.verdict, outcome.why)
        c = self._config
        report = TrialReport(c.namespace, c.job, c.attempt, outcome.verdict, outcome.cause, outcome.why)
        self._spawn(self._tell_trial(report))

    async def _tell_trial(self, report: TrialReport) -> None:
        try:
            await self._controller.trial(report, time.monotonic() + TELL_S)
        except StaleAttemptError as error:
            self.stale(error)
        except ControllerError as error:
            log.warning("the controller does not know how the trial has ended: %s", error)

    async def _tell_controller(self, failure: CheckpointFailure) -> None:
        try:
            await self._controller.failure(failure, time.monotonic() + TELL_S)
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
        """No checkpoint is under way, and every other pod has received the last directive or has ended."""
        if self.state.active or self._tasks:
            return False
        if self.state.phase == "stopped":
            return self._all_have(self._seen)
        if self.state.phase == "finished":
            return self._may_finish()
        return all(v.state in (*page.OVER, page.STATE_ABSENT) for v in state_machine.world(self.state, self.heard))

    def deadline(self) -> float:
        """Deadline of the last checkpoint that is asked for, by the monotonic clock; 0 if there is none."""
        last = self.state.waiting or self.state.trigger
        return last.deadline if last else 0.0


def _ends_more(now: State, told: State) -> bool:
    """Whether more follows the checkpoint than the controller was told: ranks stay stopped, or end."""
    return (told.goes_on and not now.goes_on) or (told.runs_on and now.stays)


def _engine(job: Engine, ranks: Sequence[RankImage]) -> Engine:
    """What a checkpoint of these images is for. Before `attach` there is no state yet."""
    if job != names.ENGINE_BOTH or any(file.path.startswith(f"{names.STATE_PART}/") for r in ranks for file in r.files):
        return job
    return "process"


def agreed(heard: Mapping[int, Heard], workers: int) -> Through | None:
    """What the pods of an attempt go on from; None as long as one has not said what it can."""
    can = {item.report.through for item in heard.values()}
    if len(heard) < workers or None in can:
        return None
    return "state" if "state" in can else "process"


async def _first_of(limit: float, *events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
