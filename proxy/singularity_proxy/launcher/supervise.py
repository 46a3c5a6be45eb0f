"""The launcher's loop: ranks, the sidecar's commands, SIGTERM; ends with the container's exit code."""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..protocol import addresses, exit_codes, names, phases, starters, user_namespace
from ..protocol.messages import Gpus, LauncherCommand, LauncherEvent, Occupied, Plan, Weight
from ..protocol.phases import StartPhases
from . import device, memory, reap, signals, verdict
from .client import SidecarClient
from .errors import CommandError, DumpError, LauncherError, MeetingError, RestoreError, SidecarError, SlotError
from .laps import Laps
from .outbox import Outbox
from .output import last_words, rate_limit, result
from .output.progress import Readout
from .output.rate_limit import LogRate
from .output.tail import Tail
from .paths import Paths
from .ranks import environment, torchrun, user
from .ranks.rank import Rank
from .refusal import Refusals, not_restored
from .snapshot import ended, image, outputs, standstill
from .snapshot.engine import Engine
from .snapshot.page_nowhere import Nowhere
from .snapshot.rank_dump import Order
from .snapshot.restore import RESUME_TIMEOUT_S
from .tools import Tools

TICK_S = 0.05
OUTBOX_S = 10.0
DUMP_S = 600.0
"""Of a sidecar that says no time."""
REPEAT_S = 1.0
FINISHED_AGAIN_S = 5.0
"""A restarted sidecar does not know that the ranks here have ended."""

Started = Callable[[], None]
"""What the loop does once the ranks run."""


def say(message: str) -> None:
    print(f"[launcher] {message}", flush=True)


@dataclass(frozen=True)
class Save:
    """A stop of the ranks, for which a dump was asked. Each change makes a new one, in the loop."""

    dump: str
    """What the sidecar that asked last calls it (`LauncherCommand.dump`)."""
    trial: str
    """Id of its checkpoint, if it is a trial; "": it is none."""
    streamed: bool
    """Pages of it went to a sidecar."""
    ended: LauncherEvent | None = None
    """How it has ended."""


class Supervisor:
    """:param env: the container's environment
    :param argv: the user's command; empty: it stands in the environment
    """

    def __init__(self, env: Mapping[str, str], paths: Paths, engine: Engine[Any], argv: Sequence[str] = ()) -> None:
        self.env = env
        self.paths = paths
        self.argv = environment.command(env, argv)
        self.user = user.wanted(env, user_namespace.largest())
        self.log_rate = rate_limit.from_env(env)
        self.engine = engine
        self.client = SidecarClient(self.paths.socket)
        self.outbox = Outbox(self.client.post, say)
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """What threads have for the main loop to call."""
        self.plan: Plan | None = None
        self.ranks: dict[int, Rank] = {}
        self.tails: dict[int, Tail] = {}
        self.readout = Readout(self.paths.control(0) / names.PROGRESS_FILE)
        self.refusals = Refusals(self.paths, self.outbox.put)
        self.codes: dict[int, int] = {}
        self._oom_kills = memory.oom_kills()
        self.lost: set[int] = set()
        """Ranks that failed because a rank of another pod was gone."""
        self.stopped: set[int] = set()
        self.ended: int | None = None
        self._late_at: float | None = None
        """When a restore has taken too long, whatever it waits for."""
        self._told_finished: float | None = None
        self.term_at: float | None = None
        self._passing: list[int] = []
        """Signals for the ranks that arrived meanwhile."""
        self._term_told = False
        self._failed_at: float | None = None
        self._noted = False
        self._sent_term = False
        self._dumps = 0
        """Dumps under way."""
        self._saves: dict[int, Save] = {}
        """By generation, until its ranks go on."""
        self._again: LauncherCommand | None = None
        """A dump that a restarted sidecar asks for while its pages still go to the one before, or that a trial gives
        way to."""
        self._postponed: list[LauncherCommand] = []

    # --- the loop -------------------------------------------------------------------------------------------------
    def run(self) -> int:
        """Returns the exit code of the container."""
        for number in signals.STOP:
            signal.signal(number, self._on_term)
        for number in signals.PASSED:
            signal.signal(number, lambda came, _: self._passing.append(came))
        if self.engine.devices.problem:
            say(self.engine.devices.problem)
        device.reader.start(self._tell_gpus, say, Tools(self.paths.tools))
        self._background(self._start)
        while self.ended is None:
            with contextlib.suppress(queue.Empty):
                self.calls.get(timeout=TICK_S)()
            self._tick()
        return self._end(self.ended)

    def _tick(self) -> None:
        reap.orphans()
        for tail in self.tails.values():
            tail.pump()
        reading = self.readout.due(time.monotonic())
        if reading is not None:
            self.outbox.put(LauncherEvent("reading", reading=reading))
        self._poll_ranks()
        self._pass_signals()
        self.engine.due(time.monotonic(), self._living())
        self.refusals.due(time.monotonic(), self._living())
        self._check_term()
        self._check_late()

    def _end(self, code: int) -> int:
        for rank in self.ranks.values():
            rank.kill()
        for tail in self.tails.values():
            tail.pump(final=True)
        if not self.outbox.close(OUTBOX_S):
            say("the sidecar does not take our last events")
        say(f"exit code {code}")
        return code

    def _tell_gpus(self, gpus: Gpus) -> None:
        """Called from the thread that watches the GPUs. The next report repeats the content of a lost one."""
        if self.outbox.idle:
            self.outbox.put(LauncherEvent("gpus", gpus=gpus))

    def _on_term(self, *_: object) -> None:
        if self.term_at is None:
            self.term_at = time.monotonic()

    def _background(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run `work` in a thread; what it returns is called by the loop."""

        def body() -> None:
            try:
                result = work()
            except LauncherError as error:
                result = self._give_up(error)
            except Exception as error:  # a bug must end the container, not leave it waiting
                result = self._give_up(LauncherError(f"{type(error).__name__}: {error}"))
            self.calls.put(result)

        threading.Thread(target=body, daemon=True).start()

    def _give_up(self, error: LauncherError) -> Callable[[], None]:
        def act() -> None:
            say(str(error))
            memory.note(str(error), "platform")
            if isinstance(error, (RestoreError, MeetingError)):
                apart = isinstance(error, MeetingError)
                self.outbox.put(LauncherEvent("restore_failed", code=error.exit_code, message=str(error), apart=apart))
            self.ended = error.exit_code

        return act

    # --- start ----------------------------------------------------------------------------------------------------
    def _start(self) -> Started:
        plan = self.client.plan()
        if plan.mode == "finished":
            return self._complete
        return self._tried(plan, self._begin) if plan.mode == "restore" else self._begin(plan)

    def _tried(self, plan: Plan, work: Callable[[Plan], Started]) -> Started:
        """Restore. What goes wrong never ends the job at once: it has other checkpoints, and other nodes.

        Raises LauncherError. Without a slot nothing of the checkpoint was tried: such an attempt is lost, as one is
        whose node goes, and nothing is passed over.
        """
        try:
            return work(plan)
        except SlotError as error:
            raise LauncherError(f"checkpoint {plan.checkpoint_id} was not tried: {error}", exit_codes.LOST) from error
        except LauncherError:
            raise
        except Exception as error:
            raise RestoreError(f"checkpoint {plan.checkpoint_id}: {type(error).__name__}: {error}") from error

    def _begin(self, plan: Plan) -> Started:
        began, laps = time.monotonic(), self._laps()
        say(f"attempt {plan.attempt}: {plan.mode}, ranks {plan.ranks} of {plan.world_size}")
        restored = plan.mode == "restore"
        over = ended.among(plan, self.paths) if restored else {}
        going = replace(plan, ranks=[rank for rank in plan.ranks if rank not in over])
        positions = self.engine.log_positions(going) if restored else dict.fromkeys(plan.ranks, 0)
        out = sys.stdout.buffer
        see = {0: self.readout.see}
        self.tails = {
            r: Tail(self.paths.log(r), f"[rank {r}] ", out, positions[r], see.get(r), LogRate(self.log_rate))
            for r in going.ranks
        }
        if restored:
            outputs.unpack(self.paths, plan, over)
        if restored and not going.ranks:
            ranks = {}
        elif restored:
            ranks = self._restore(going, laps)
        else:
            ranks = self._start_fresh(plan)
            laps.end("restore")
        seconds = time.monotonic() - began
        return lambda: self._started(plan, ranks, seconds, phases.started(laps.seconds), over)

    def _restore(self, plan: Plan, laps: Laps) -> dict[int, Rank]:
        """Raises LauncherError."""
        self._late_at = time.monotonic() + standstill.limit_s(self.paths.images(plan.checkpoint_id)) + RESUME_TIMEOUT_S
        try:
            return self.engine.restore(plan, lambda: self._start_fresh(plan), say, laps)
        finally:
            self._late_at = None

    def _check_late(self) -> None:
        """A thread that waits for a volume which does not answer cannot be ended in any other way."""
        if self._late_at is not None and time.monotonic() > self._late_at and self.ended is None:
            text = "the restore has not come to its end in the time that checkpoints of this size need at most"
            self._give_up(RestoreError(text, exit_codes.LOST))()

    def _laps(self) -> Laps:
        return Laps(absent=("device",) if self.engine.devices.name == "cpu" else ())

    def _complete(self) -> None:
        say("every rank of the job has ended well already: nothing is left to do for the pod of this index")
        self.ended = exit_codes.FINISHED

    def _start_fresh(self, plan: Plan) -> dict[int, Rank]:
        ranks: dict[int, Rank] = {}
        devices, elastic = self.engine.devices.name != "cpu", self.engine.elastic
        problem = starters.problem(self.argv, plan.world_size)
        if problem:
            raise CommandError(f"command {' '.join(self.argv)!r} {problem}")
        argv = torchrun.unwrapped(self.argv, plan.world_size)
        if argv != self.argv:
            say(f"in torchrun's place, each rank is started as: {' '.join(argv)}")
        try:
            for rank in plan.ranks:
                ranks[rank] = self.engine.rank(rank)
            for rank in plan.ranks:
                workdir = self.env.get(names.ENV_WORKDIR, "")
                cwd = environment.prepare(self.paths, rank, workdir, self.user, plan.outputs)
                own = argv != self.argv
                env = environment.environment(self.env, plan, rank, self.paths, devices, own, elastic)
                env.update(torchrun.environment(self.argv, rank, plan.world_size, self.env))
                env.update(self.user.environment(self.env) if self.user else {})
                env.update(self.engine.environment(rank))
                ranks[rank].start(argv, env, cwd, self.paths.log(rank), self.user)
        except BaseException:
            for each in ranks.values():
                each.kill()
            raise
        return ranks

    def _started(
        self, plan: Plan, ranks: dict[int, Rank], seconds: float, phases: StartPhases, over: Mapping[int, int]
    ) -> None:
        """:param over: rank -> its last step, for those that had ended before"""
        self.plan, self.ranks = plan, ranks
        for rank, step in over.items():
            say(f"rank {rank} had ended well before the checkpoint: it is not started again")
            self.codes[rank] = 0
            ended.tell(self.paths, rank, step)
        restored = self.plan.mode == "restore"
        say(f"ranks {self.plan.ranks} {'restored' if restored else 'started'} in {seconds:.2f} s")
        event = LauncherEvent("restored" if restored else "started", self.plan.generation, seconds=seconds)
        self.outbox.put(replace(event, start=phases))
        for rank in over:
            self.outbox.put(LauncherEvent("exited", rank=rank))
        threading.Thread(target=self._listen, name="commands", daemon=True).start()

    def _not_restored(self, rank: int) -> bool:
        """Whether the rank has ended because its checkpoint is damaged: the job has others, and its beginning."""
        if self.plan is None or self.plan.mode != "restore":
            return False
        why = not_restored(self.paths, rank)
        if not why:
            return False
        self._give_up(RestoreError(f"checkpoint {self.plan.checkpoint_id} was not restored by rank {rank}: {why}"))()
        return True

    # --- ranks ----------------------------------------------------------------------------------------------------
    def _poll_ranks(self) -> None:
        for rank, place in self.ranks.items():
            code = place.poll() if rank not in self.codes else None
            if code is not None:
                self.codes[rank] = code
                self.tails[rank].pump(final=True)
                if rank == 0 and code == 0:
                    self._hand_result()
                if code and self._not_restored(rank):
                    return
                peer = bool(code) and (self.paths.control(rank) / names.LOST_PEER_FILE).exists()
                if peer:
                    self.lost.add(rank)
                why = "a connection to another rank broke" if peer else self._killed(rank, code)
                text = f"rank {rank} ended with code {code}" + (f": {why}" if why else "")
                say(text)
                if not code:
                    ended.tell(self.paths, rank)
                if code and not peer and not self._noted:
                    self._noted = True
                    said = last_words.of_file(self.paths.log(rank)) if not why else ""
                    memory.note(f"{text}: {said}" if said else text, "memory" if why else "program")
                self.outbox.put(LauncherEvent("exited", rank=rank, code=code, message=why))
                if code and self._failed_at is None:
                    self._failed_at = time.monotonic()
        if self.plan is None:
            return
        code = verdict.exit_code(self.codes, len(self.plan.ranks), self.lost, self.stopped)
        if code is not None:
            if code or (len(self.plan.ranks) == self.plan.world_size and not self.plan.outputs):
                self.ended = code
            else:
                self._wait_for_the_world()
            return
        failed_for = None if self._failed_at is None else time.monotonic() - self._failed_at
        action = verdict.stop_signal(failed_for, self._sent_term)
        for rank, place in self.ranks.items():
            if rank in self.codes or action is None:
                continue
            say(f"rank {rank} is stopped with SIG{action}: another rank has failed")
            self.stopped.add(rank)
            if action == "KILL":
                place.kill()
            else:
                with contextlib.suppress(SlotError):
                    place.signal(signal.SIGTERM)
        self._sent_term = self._sent_term or action == "TERM"

    def _hand_result(self) -> None:
        """Before the sidecar hears that rank 0 has ended, and before this container ends."""
        problem = result.hand_over(self.paths.result(0), self.paths.handed_result)
        if problem:
            say(f"what rank 0 has returned is lost: {problem}")

    def _killed(self, rank: int, code: int) -> str:
        if code != 128 + signal.SIGKILL or rank in self.stopped or memory.oom_kills() <= self._oom_kills:
            return ""
        return memory.sentence()

    def _wait_for_the_world(self) -> None:
        """A pod that has ended with 0 is never created again. If the ranks of another pod had to start again, they
        would wait for this pod's ranks for ever. So no pod ends with 0 before all can."""
        if self._told_finished is None:
            more = "; their outputs are stored once all have" if self.plan and self.plan.outputs else ""
            say(f"all ranks of this pod have ended well; waiting for those of the other pods{more}")
            for problem in outputs.hand_over(self.paths, self.plan) if self.plan else ():
                say(problem)
        if self._told_finished is None or time.monotonic() - self._told_finished >= FINISHED_AGAIN_S:
            self._told_finished = time.monotonic()
            self.outbox.put(LauncherEvent("finished"))

    # --- signals --------------------------------------------------------------------------------------------------
    def _pass_signals(self) -> None:
        while self._passing and not self._dumps:  # what is sent in the midst of a dump would come twice or never
            number = signal.Signals(self._passing.pop(0)).name
            got = signals.pass_on(signal.Signals[number], self._living().values())
            say(f"{number} is passed on to ranks {got}" if got else f"{number}: no rank has a handler for it")

    def _check_term(self) -> None:
        if self.term_at is None or self.ended is not None:
            return
        left = float(self.env.get(names.ENV_GRACE) or 30) - (time.monotonic() - self.term_at)
        if self.plan is None:
            say("asked to end before the ranks were started")
            self.ended = exit_codes.STOPPED
        elif not self._term_told:
            self._term_told = True
            say(f"asked to end: {left:.0f} s are left for a checkpoint")
            self.outbox.put(LauncherEvent("terminating", grace_s=left))
        elif left <= verdict.TERM_MARGIN_S:
            say("the grace period is over")
            self.ended = exit_codes.STOPPED

    # --- commands -------------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        after = 0
        while True:
            try:
                command = self.client.next_command(after)
            except SidecarError as error:
                say(f"{error}; training goes on without checkpoints")
                time.sleep(REPEAT_S)  # an answer that cannot be used comes at once: no hot loop beside the ranks
                continue
            if command is not None:
                after = command.seq
                self.calls.put(lambda c=command: self._obey(c))  # type: ignore[misc]

    def _obey(self, command: LauncherCommand) -> None:
        assert self.plan is not None
        say(f"command {command.op}, generation {command.generation}")
        if command.op == "dump":
            self._ask_for(command)
        elif command.op == "weigh":
            self._background(self._weigh)
        elif command.op == "resume":
            self._withdraw(command.generation)
            # For example, the dump was cancelled because another pod failed. CRIU stops the ranks once more when it
            # ends: only then resume.
            self._postponed.append(command)
            self._resume_postponed()
        elif command.op == "finish":
            # Only a pod whose ranks have all ended well can be finished: otherwise the loop ends by itself, with their
            # code.
            if self._told_finished is not None:
                self.ended = 0
        else:
            if command.message:
                say(command.message)
                memory.note(command.message, "platform")
            self.ended = command.exit_code or exit_codes.STOPPED

    def _ask_for(self, command: LauncherCommand) -> None:
        """A restarted sidecar asks again: two dumps of one rank at the same time would disturb each other.

        Pages that were streamed went to the sidecar before it, so they are dumped again.
        """
        generation = command.generation
        save = self._saves.get(generation)
        tried = save is not None and save.trial != "" and not command.trial
        if save is not None:
            self._saves[generation] = replace(save, dump=command.dump)
        if save is not None and save.ended is None:
            self._again = command if command.stream or tried else None
            if tried:
                self._withdraw(generation)
        elif save is None or save.ended is None or save.streamed or tried:
            streamed = command.stream or (save is not None and save.streamed)
            self._saves[generation] = Save(command.dump, command.checkpoint_id if command.trial else "", streamed)
            self._dumps += 1
            self._background(lambda: self._dump(command))
        else:
            self.outbox.put(replace(save.ended, dump=command.dump))

    def _withdraw(self, generation: int) -> None:
        """A trial under way gives way at once."""
        save = self._saves.get(generation)
        if save is not None and save.trial and save.ended is None:
            path = self.paths.withdrawn(save.trial)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def _weigh(self) -> Callable[[], None]:
        try:
            weight = Weight(self.engine.weigh(self._living()), memory.limit())
        except (SlotError, OSError) as error:
            say(f"nobody knows what the ranks hold in memory: {error}")
            return lambda: None
        return lambda: self.outbox.put(LauncherEvent("weighed", weight=weight))

    def _resume_postponed(self) -> None:
        assert self.plan is not None
        while self._postponed and not self._dumps:
            command = self._postponed.pop(0)
            self._saves.pop(command.generation, None)
            address = command.master_addr or self.plan.master_addr
            port = command.master_port or self.plan.master_port
            for line in self.engine.resume(self._living(), command.generation, address, port, command.ended):
                say(line)

    def _living(self) -> dict[int, Rank]:
        return {number: rank for number, rank in self.ranks.items() if number not in self.codes}

    def _occupied(self, command: LauncherCommand, ranks: Iterable[int]) -> list[Occupied]:
        folders = {rank: self.paths.image(command.checkpoint_id, rank) for rank in ranks if not command.trial}
        held = {rank: image.occupied(folder) for rank, folder in folders.items()}
        return [Occupied(rank, texts[: addresses.MOST]) for rank, texts in held.items() if texts]

    def _dump(self, command: LauncherCommand) -> Callable[[], None]:
        began, laps = time.monotonic(), self._laps()
        left = DUMP_S if command.remaining_s is None else command.remaining_s
        deadline = time.monotonic() + left
        try:
            over = dict(self.codes)
            if any(over.values()) or (over and not self.engine.apart):
                raise DumpError(f"ranks {sorted(over)} have ended")
            trial = Nowhere(self.paths.withdrawn(command.checkpoint_id), deadline) if command.trial else None
            order = Order(
                command.generation, command.checkpoint_id, deadline, command.anywhere, command.job, command.stream,
                command.memory, trial,
            )  # fmt: skip
            going = {number: rank for number, rank in self.ranks.items() if number not in over}
            for line in self.engine.dump(going, order, laps) if going or not over else ():
                say(line)
            for number in over if trial is None else ():
                ended.save(self.paths, command.checkpoint_id, number)
            event = LauncherEvent("dumped", command.generation, seconds=time.monotonic() - began)
            event = replace(event, save=phases.saved(laps.seconds), occupied=self._occupied(command, going))
            text = f"{'tried' if command.trial else 'dumped'} {command.checkpoint_id} in {event.seconds:.2f} s"
        except (DumpError, SlotError, OSError) as error:
            late = time.monotonic() >= deadline or (isinstance(error, DumpError) and error.passes)
            event = LauncherEvent("dump_failed", command.generation, message=str(error), late=late)
            text = f"dump failed: {error}"

        def act() -> None:
            say(text)
            if command.trial:
                self.paths.withdrawn(command.checkpoint_id).unlink(missing_ok=True)
            self._dumps -= 1
            save = self._saves[command.generation] = replace(self._saves[command.generation], ended=event)
            again, self._again = self._again, None
            if again is not None and again.generation == command.generation and not self._postponed:
                self._ask_for(again)
                return
            self.outbox.put(replace(event, dump=save.dump))
            self._resume_postponed()

        return act
