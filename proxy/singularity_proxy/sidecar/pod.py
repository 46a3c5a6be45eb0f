"""What every pod does, leader or not: turns directives into page words and launcher commands, and reports back.

All methods run in the event loop; uploads run in threads. `changed` is set whenever the report has something new that
the leader should hear at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from ..errors import MeshError, ProxyError
from ..protocol import exit_codes, gpus, image_room, names, page, placement
from ..protocol.manifest import RankImage
from ..protocol.messages import Gpus, LauncherCommand, LauncherEvent, Occupied, Reading, SaveCause, Through, Weight
from ..protocol.ratchet import RankView
from ..store import Arena, PagesSocket, Store, Trust, memory
from . import state_machine
from .barrier_page import BarrierPage
from .config import Config
from .outputs import OutputsOfPod
from .peers import Directive, PodReport, RankWords, Stop, Tried, Unstored
from .pod_phases import PodPhases

MARGIN_S: Final = 4.0
"""Part of a pod's grace period that is reserved for an orderly end after the commit: the launcher gives up 2 s before
its end."""
ALONE_S: Final = 15.0
"""How long a pod that was asked to end waits for its leader: without a leader there is no checkpoint."""
WATCH_S: Final = 0.02
AGREE_S: Final = 600.0
"""As long as ranks wait for those of other pods: their images may be pulled meanwhile."""
log = logging.getLogger(__name__)


def beside_ranks(config: Config, barrier: BarrierPage) -> bool:
    """Whether ranks run already: this sidecar was restarted."""
    if not barrier.adopted:
        return False
    return config.started_file.exists() or any(v.state != page.STATE_ABSENT for v in barrier.views(config.ranks))


def resume_port(generation: int) -> int:
    """MASTER_PORT of ranks that go on in place after stop `generation`: never the port in use before (TIME_WAIT)."""
    return names.MASTER_PORT + 1 + (generation % page.GENERATIONS_PER_ATTEMPT - 1) % 999


class Pod:
    """One pod of the attempt.

    :param send: hands a command to the launcher
    :param first_step: number of the first step this attempt runs
    :param phases: of this pod's start, which has begun
    :param restore_failed: called with why the launcher has not restored the ranks, and whether that passes
    :param trust: which packs its uploads rely on; None: all of the job's folder
    :param outputs: URL for what the ranks write to `$OUTPUTS`; "": the job has none
    """

    def __init__(
        self,
        config: Config,
        barrier: BarrierPage,
        store: Store,
        send: Callable[[LauncherCommand], Awaitable[None]],
        leader_ip: str,
        first_step: int,
        phases: PodPhases | None = None,
        restore_failed: Callable[[str, bool], None] = lambda why, passes: None,
        trust: Trust | None = None,
        outputs: str = "",
    ) -> None:
        self._trust = trust
        self._arena = Arena(config.memory) if config.memory and config.engine != names.ENGINE_STATE else None
        self._restore_failed = restore_failed
        self._config = config
        self._phases = phases or PodPhases()
        self._page = barrier
        self._store = store
        self._send = send
        self._leader_ip = leader_ip
        self._first_step = first_step
        self.changed = asyncio.Event()
        self.outputs = OutputsOfPod(config, outputs, self.changed.set) if outputs else None
        self._heard = asyncio.Event()
        self._agreed = asyncio.Event()
        """The directive says what all pods go on from."""
        self._addressed = asyncio.Event()
        """The directive says where all pods are."""
        self._through: Through | None = None
        self._why = ""
        self.directive = Directive(op="run")
        self.reading: Reading | None = None
        """The last progress that rank 0 printed, in the pod of rank 0."""
        self._gpus: Gpus | None = None
        self.started = beside_ranks(config, barrier)
        """The launcher has started or restored the ranks; true at once beside ranks of a sidecar that is gone."""
        self._first_step_at: float | None = None
        self._terminating_at: float | None = None
        self._deadline = 0.0
        """Of the checkpoint under way. All times here are of this machine's monotonic clock."""
        self._failed_ranks: set[int] = set()
        """Ranks that have not ended with 0."""
        self._done = False
        self._broken = ""
        self._saving = self._dumped = self._uploading = self._uploaded = self._failed = 0
        self._resumed = self._settled = 0
        """Newest stops after which the ranks here were told to go on, and of which nothing is to be stored any more."""
        self._trial = False
        """The dump that was asked for last is for nothing but a trial."""
        self._tried: Tried | None = None
        self._weight: Weight | None = None
        self._occupied: list[Occupied] = []
        self._weighs = False
        self._dump = ""
        """What this sidecar calls the dump that it has asked for."""
        self._message = ""
        self._failed_for: SaveCause = ""
        self._cause = ""
        """Why the upload under way failed: a dump that streams to it fails for no other reason."""
        self._bytes_stored = 0
        self._progress = (0, 0)
        self._images: list[RankImage] | None = None
        self._exit_sent = False
        self._upload: asyncio.Task[None] | None = None
        self._ends: set[asyncio.Task[None]] = set()
        self._restarted = self.started
        """An upload of the sidecar before this one may be unknown here."""
        self._cancel = threading.Event()
        self._images_whole = threading.Event()
        """Of the generation that is saved: its dump has ended."""
        self._winding_up = False

    # --- reporting ------------------------------------------------------------------------------------------------
    def views(self) -> list[RankView]:
        """The page's view of this pod's ranks."""
        return self._page.views(self._config.ranks)

    def report(self) -> PodReport:
        """Everything the leader has to know."""
        words = [
            RankWords(rank, v.count, v.blocked, page.STATE_FINISHED if rank in self._failed_ranks else v.state)
            for rank, v in zip(self._config.ranks, self.views(), strict=True)
        ]
        now = time.monotonic()
        return PodReport(
            index=self._config.index,
            ranks=words,
            address=self._config.pod_ip,
            started=self.started,
            first_step_ago_s=None if self._first_step_at is None else now - self._first_step_at,
            done=self._done,
            broken=self._broken,
            terminating_in_s=None if self._terminating_at is None else max(0.0, self._terminating_at - now),
            dumped=self._dumped,
            uploaded=self._uploaded,
            bytes_stored=self._bytes_stored,
            bytes_done=self._progress[0],
            bytes_total=self._progress[1],
            failed=self._failed,
            message=self._message,
            cause=self._failed_for,
            tried=self._tried,
            weight=self._weight,
            occupied=self._occupied,
            apart=self._page.apart(self._config.ranks),
            images=self._images,
            gpus=self._gpus,
            start=self._phases.start,
            save=self._phases.save,
            through=self._through,
            why=self._why,
            outputs=None if self.outputs is None else self.outputs.report(),
        )

    def can_go_on(self, through: Through, why: str) -> None:
        """This pod can restore that, or has done so; why not the processes."""
        self._through, self._why = through, why
        self.changed.set()

    async def agree(self, through: Through, why: str) -> Through:
        """What all pods go on from: one that restores processes and one that starts anew would never meet.

        :param through: what this pod can, and `why` not from the processes
        Raises MeshError: a pod has not said within AGREE_S what it can.
        """
        self.can_go_on(through, why)
        try:
            await asyncio.wait_for(self._agreed.wait(), AGREE_S)
        except (asyncio.TimeoutError, TimeoutError):
            raise MeshError(
                f"not all pods have said within {AGREE_S:.0f} s whether their nodes can take the checkpoint's processes"
            ) from None
        assert self.directive.through is not None  # else `apply` would not have set it
        return self.directive.through

    def delivered(self, report: PodReport) -> None:
        """The leader has received `report`: its images need not be sent again."""
        if report.images is self._images:
            self._images = None
        self._heard.set()

    async def saved(self) -> None:
        """Wait until an upload under way has ended, or nobody needs it any more. From here on no early upload
        begins."""
        self._winding_up = True
        if not self._images_whole.is_set():
            self._cancel.set()  # the launcher is gone: what it was dumping will never be whole
        while self._upload is not None and not self._upload.done() and time.monotonic() < self._deadline:
            await asyncio.sleep(WATCH_S)

    async def flush(self, limit_s: float) -> None:
        """Send the newest report to the leader, if that takes no more than `limit_s` seconds."""
        self._heard.clear()
        self.changed.set()
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(self._heard.wait(), limit_s)

    async def watch(self) -> None:
        """Notice what ranks do by themselves: the first step of the attempt, the end of a rank. Never returns."""
        states: list[int] = []
        while True:
            views = self.views()
            going = [v for v in views if v.state != page.STATE_ENDED]
            if self._first_step_at is None and going and all(v.count > self._first_step for v in going):
                self._first_step_at = time.monotonic()
                self.changed.set()
                log.info("first step of this attempt: step %d is complete on all ranks here", self._first_step)
            now = [v.state for v in views]
            if now != states and not set(page.OVER).isdisjoint(now):
                self.changed.set()
            if not self.started and any(state != page.STATE_ABSENT for state in now):
                self._ranks_run()  # the launcher said so to a sidecar that is gone
                self.changed.set()
            states = now
            self._withdraw_when_frozen(views)
            await asyncio.sleep(WATCH_S)

    # --- events of the launcher -------------------------------------------------------------------------------------
    def on_event(self, event: LauncherEvent) -> None:
        """Take in an event of this pod's launcher."""
        if event.kind == "reading":
            self.reading = event.reading  # goes along with the next report, which the steps make due
            return
        if event.kind == "gpus":
            self._take_gpus(event.gpus)
            return
        if event.kind == "weighed":
            self._weight = event.weight
            self.changed.set()
            return
        if event.kind == "finished" and self._done:
            return
        if event.kind in ("dumped", "dump_failed") and event.dump not in ("", self._dump):
            log.info("the end of a dump that the sidecar before this one asked for: %s %s", event.kind, event.message)
            return
        log.info("launcher says %s %s", event.kind, event.message or f"generation {event.generation}")
        if event.kind in ("started", "restored"):
            self._phases.run(event)
            self._ranks_run()
            if event.kind == "restored":
                self._tidy(self._config.checkpoint)
        elif self._trial and event.kind in ("dumped", "dump_failed") and event.generation == self._saving:
            self._images_whole.set()
            cause: SaveCause = "time" if event.late else "program"
            self._tried = Tried(event.generation, event.message if event.kind == "dump_failed" else "", cause)
        elif event.kind == "dumped" and event.generation == self._saving:
            self._dumped, self._occupied = event.generation, event.occupied
            self._phases.dumped(event)
            self._images_whole.set()
            if self._uploading != event.generation:
                self._begin_upload(self.directive)
        elif event.kind == "dump_failed" and self._restarted and event.generation != self._saving:
            pass  # of a dump whose pages went to the sidecar before this one: it is made again, once it is asked for
        elif event.kind in ("dump_failed", "restore_failed"):
            self._cancel.set()
            if event.kind == "restore_failed" and (self._addressed.is_set() or not event.apart):
                # Ranks that wait for a pod which was never there show nothing about their checkpoint.
                self._restore_failed(event.message, event.code == exit_codes.LOST)
            why = self._cause or event.message or event.kind.replace("_", " ")
            cause = "store" if self._cause else "time" if event.late else "program"
            self._fail(event.generation or self._saving, why, cause)
        elif event.kind == "exited":
            if event.code:
                self._failed_ranks.add(event.rank)
                ended = f"rank {event.rank} ended with code {event.code} {event.message}".rstrip()
                self._broken = self._broken or ended
        elif event.kind == "finished":
            self._done = True
            if self.outputs is not None:
                self.outputs.ranks_ended()
        elif event.kind == "terminating" and self._terminating_at is None:
            self._terminating_at = time.monotonic() + max(0.0, event.grace_s - MARGIN_S)
        self.changed.set()

    def _take_gpus(self, now: Gpus | None) -> None:
        """The next report contains it. An error is reported at once: ranks that lost a GPU make no steps."""
        events = gpus.events(now)
        if events > gpus.events(self._gpus) and now is not None:
            log.warning("%d Xids of the driver so far, the first ones %s", events, now.faults)
            self.changed.set()
        self._gpus = now

    def _ranks_run(self) -> None:
        self.started = True
        threading.Thread(target=self._warm_up, daemon=True).start()  # before the first upload has to wait for it
        try:
            self._config.started_file.touch()
        except OSError as error:
            log.warning("a restarted sidecar will not know that ranks run: %s", error)

    def _warm_up(self) -> None:
        memory.load()
        if self._arena is not None:
            self._arena.warm()

    def _begin_upload(self, directive: Directive, pages: PagesSocket | None = None) -> None:
        self._uploading = directive.generation
        work = self._save(directive.generation, directive.checkpoint_id, self._upload, pages)
        self._upload = asyncio.create_task(work)

    async def _save(
        self, generation: int, checkpoint: str, before: asyncio.Task[None] | None, pages: PagesSocket | None
    ) -> None:
        """Upload what was, or is being, dumped for `generation`.

        :param before: the upload before this one, cancelled, may still run
        :param pages: where the launcher brings pages
        """
        cancel, whole = self._cancel, self._images_whole
        if before is not None:
            await asyncio.wait([before])
        folder = self._config.image_dir / checkpoint
        folders = {rank: folder / f"rank-{rank}" for rank in self._config.ranks}
        began = time.monotonic()
        try:
            put = await asyncio.to_thread(
                self._store.put_ranks,
                self._config.namespace,
                self._config.job,
                checkpoint,
                folders,
                part=(self._config.index, self._config.workers),
                cancelled=cancel.is_set,
                progress=self._uploaded_so_far,
                growing=lambda: not whole.is_set(),
                below=self._config.image_dir,
                pages=pages,
                trust=self._trust,
            )
        except asyncio.CancelledError:
            cancel.set()  # the thread would follow a dump that nobody ends, and keep this process from ending
            raise
        except (ProxyError, OSError) as error:
            self._cause = f"upload: {error}"
            while not whole.is_set() and not cancel.is_set():
                await asyncio.sleep(WATCH_S)  # the launcher would not hear that the ranks may go on
            if generation == self._saving and self._failed != generation:
                self._fail(generation, f"upload: {error}", "store")
            return
        seconds = time.monotonic() - began
        log.info(
            "uploaded %s: %d bytes, %d of them new, in %.1f s, %d bytes during the dump",
            checkpoint, put.bytes, put.bytes_stored, seconds, put.bytes_ahead,
        )  # fmt: skip
        if generation != self._saving:
            return  # the next one has begun: nobody waits for this any more
        self._phases.uploaded()
        self._images, self._bytes_stored, self._uploaded = put.images, put.bytes_stored, generation
        self.changed.set()

    def _uploaded_so_far(self, done: int, total: int) -> None:
        """Called from the upload's thread, and read by `report`."""
        self._progress = (done, total)

    def _fail(self, generation: int, message: str, cause: SaveCause) -> None:
        log.warning("generation %d: %s", generation, message)
        self._failed, self._message, self._failed_for = generation, message, cause
        self.changed.set()

    # --- directives -------------------------------------------------------------------------------------------------
    async def apply(self, directive: Directive) -> None:
        """Do what the leader says. Idempotent; directives may be skipped, never reordered."""
        if directive.op != self.directive.op or directive.generation != self.directive.generation:
            step = max(v.count for v in self.views())
            log.info("%s: generation %d, highest step here %d", directive.op, directive.generation, step)
        self.directive, self._deadline = directive, time.monotonic() + directive.remaining_s
        if directive.through is not None:
            self._agreed.set()
        if directive.addresses:
            self._addressed.set()
        if directive.over is not None:
            await self._go_on(directive.over, stored=not directive.released)
        if directive.weigh and not self._weighs:
            self._weighs = True
            await self._send(LauncherCommand(seq=0, op="weigh"))
        if directive.op == "barrier":
            self._page.end([*{*directive.ended} - {*self._config.ranks}])
            self._page.ask(directive.generation, directive.stop_at)
        elif directive.op == "save":
            await self._start_saving(directive)
        elif directive.op == "run" and not directive.acquired:
            self._page.withdraw()
        if self.outputs is not None:
            self.outputs.choose(directive.outputs)
        terminating = self._terminating_at is not None
        unsaved = directive.op == "run" and self._config.index in directive.unsaved
        if directive.op == "finish":
            await self._finish()
        elif directive.op == "exit" or (terminating and (directive.op == "stop" or unsaved)):
            await self._exit()
        elif self._done and directive.unstored is not None:
            await self._unstored(directive.unstored)
        elif self._done and directive.broken:
            await self._leave(directive.broken)

    async def _start_saving(self, directive: Directive) -> None:
        if self._saving == directive.generation and not (self._trial and not directive.trial):
            return
        if directive.released:
            # A sidecar before this one has reported the dump. Its images on the disk are whole; the upload misses pages
            # that went to that sidecar.
            self._saving = self._dumped = directive.generation
            self._images_whole.set()
            self._begin_upload(directive)
            return
        self.reached(directive.generation, directive.stop_at, directive.anywhere, directive.background)
        self._saving, self._trial = directive.generation, directive.trial
        self._cancel.set()  # an upload that nobody waits for any more
        self._cancel, self._images_whole = threading.Event(), threading.Event()
        self._progress, self._cause, self._dump = (0, 0), "", uuid.uuid4().hex
        command = LauncherCommand(
            seq=0,
            op="dump",
            generation=directive.generation,
            checkpoint_id=directive.checkpoint_id,
            anywhere=directive.anywhere,
            remaining_s=directive.remaining_s,
            job=[*filter(None, directive.addresses)],
            dump=self._dump,
            trial=directive.trial,
        )
        # Ranks that go on wait for their dump alone: it goes to memory or to the disk, and is stored afterwards. Beside
        # a launcher that is ending, a streamed dump would never end, and nobody would cancel it.
        arena = None if directive.ahead or directive.trial else self._arena
        pages = self._pages_socket(arena) if (directive.ahead or arena) and not self._winding_up else None
        if pages is None:
            await self._send(command)  # the upload begins after the dump
            return
        await self._send(replace(command, stream=True, memory=arena.size if arena is not None else 0))
        self._begin_upload(directive, pages)

    def _pages_socket(self, arena: Arena | None) -> PagesSocket | None:
        """None: nothing streams. Ranks of the state engine write their state to the disk themselves."""
        if self._config.engine == names.ENGINE_STATE:
            return None
        try:
            self._config.image_dir.mkdir(parents=True, exist_ok=True)
            room = image_room.of(self._config.image_dir, self._config.image_room)
            return PagesSocket(self._config.run_dir / names.PAGES_FILE, room.spill, arena)
        except OSError as error:
            log.warning("pages go over the pod's disk, as no socket can be made: %s", error)
            return None

    def reached(self, generation: int, stop_at: int, anywhere: bool, background: bool = False) -> None:
        """Publish that the barrier is reached: ranks freeze, and a restarted sidecar knows it."""
        if anywhere:
            self._page.pass_over(generation)
        else:
            self._page.acquire(generation, stop_at, background)

    async def _go_on(self, stop: Stop, stored: bool) -> None:
        """Ranks of other pods may be frozen. Even if this pod missed the barrier's end, its ranks have to freeze and
        rebuild communication together with them.

        :param stored: nothing of this stop is stored any more: it is committed, or was given up
        """
        settles = stored and stop.generation != self._settled
        if settles:
            self._cancel.set()
        if stop.generation != self._resumed:
            await self._resume(stop)
        if settles:
            self._settle(stop)

    async def _resume(self, stop: Stop) -> None:
        generation = self._resumed = stop.generation
        if not stop.anywhere and self._page.acquired < generation:
            self._page.acquire(generation, stop.stop_at)
        command = LauncherCommand(
            seq=0,
            op="resume",
            generation=generation,
            checkpoint_id=stop.checkpoint_id,
            master_addr=self._meeting_place(stop.ended),
            master_port=resume_port(generation),
            ended=stop.ended,
        )
        await self._send(command)

    def _settle(self, stop: Stop) -> None:
        generation = self._settled = stop.generation
        tried = self._tried is not None and self._tried.generation == generation
        if tried or generation in (self._uploaded, self._failed):
            self._tidy(stop.checkpoint_id)
        if generation == self._uploading or self._restarted:
            task = asyncio.create_task(self._end_upload(stop.checkpoint_id, self._upload))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    def _meeting_place(self, ended: Sequence[int]) -> str:
        """Address of the pod whose rank serves the others' store: the first that has not ended."""
        config, addresses = self._config, self.directive.addresses
        first = next((rank for rank in range(config.world_size) if rank not in ended), 0)
        index = placement.index_of(first, config.workers, config.world_size)
        return (addresses[index] if index and index < len(addresses) else "") or self._leader_ip

    async def meeting_place(self, ended: Sequence[int]) -> str:
        """The same before a restore: the leader tells where all pods are. Raises MeshError: not within AGREE_S."""
        if ended:
            try:
                await asyncio.wait_for(self._addressed.wait(), AGREE_S)
            except (asyncio.TimeoutError, TimeoutError):
                raise MeshError(
                    f"not all pods have been heard within {AGREE_S:.0f} s, to know where ranks meet"
                ) from None
        return self._meeting_place(ended)

    async def _end_upload(self, checkpoint: str, upload: asyncio.Task[None] | None) -> None:
        """Whether it was committed or given up: garbage collection need not wait for it any more."""
        if upload is not None:
            await asyncio.wait([upload])
        config = self._config
        try:
            end = self._store.end_uploads
            await asyncio.to_thread(end, config.namespace, config.job, checkpoint, config.index)
        except ProxyError as error:
            log.warning("old checkpoints stay in the store until the next attempt: %s", error)

    async def abandoned(self, seconds: float) -> None:
        """The leader has been unreachable for this long. A pod that was asked to end ends soon; a pod that waits for
        the others ends later."""
        if self._terminating_at is not None and seconds >= ALONE_S:
            await self._exit()
        elif self._done and seconds >= state_machine.GONE_S:
            await self._leave(f"the leader cannot be reached for {state_machine.GONE_S:.0f} s")

    async def _leave(self, why: str) -> None:
        """These ranks have ended well, but the world cannot end well any more. So their index has to run again."""
        if not self._exit_sent:
            log.warning("the ranks here have ended well, but not all of their world can: %s", why)
        await self._exit()

    async def _unstored(self, unstored: Unstored) -> None:
        """The training is over, and the work since its last checkpoint is done again only to store what it left."""
        saved = self.directive.checkpoint_id or self._config.checkpoint
        kept = f"checkpoint {saved} has what was written up to it" if saved else "no checkpoint has them"
        why = f"the program has ended well, but its outputs could not be stored: {unstored.why}; {kept}"
        await self._last_word(LauncherCommand(seq=0, op="exit", exit_code=unstored.exit_code, message=why))

    async def _exit(self) -> None:
        await self._last_word(LauncherCommand(seq=0, op="exit", exit_code=exit_codes.STOPPED))

    async def _finish(self) -> None:
        await self._last_word(LauncherCommand(seq=0, op="finish"))

    async def _last_word(self, command: LauncherCommand) -> None:
        if not self._exit_sent:
            self._exit_sent = True
            await self._send(command)

    def _withdraw_when_frozen(self, views: list[RankView]) -> None:
        """REQUEST may be cleared once no rank needs it to freeze any more: each is frozen, has gone on already, or has
        ended."""
        if self._page.request and self._page.request == self._page.acquired:
            stop_at = self.directive.stop_at
            if all(v.state in (page.STATE_FROZEN, *page.OVER) or v.count > stop_at for v in views):
                self._page.withdraw()

    def _tidy(self, checkpoint: str) -> None:
        """Delete images that nobody needs any more: they fill the pod's disk."""
        if checkpoint:
            folder = self._config.image_dir / checkpoint
            asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(folder, ignore_errors=True))
