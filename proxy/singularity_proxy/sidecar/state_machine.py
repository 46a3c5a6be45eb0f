"""The checkpoint state machine of the leader: pure functions, no clock, no I/O.

    run -> barrier -> save -> commit -> stopped            (then = "stop")
     ^        |         |       | ^
     |        |         |       v |  then = "stay"; any request brings it back to `commit`, for the same checkpoint
     |        |         |      stay
     +--------+---------+-------+   cancelled, committed with then = "continue", or stayed for long enough

    run -> finished                                       every rank of every pod has ended with 0

A trial is such a stop, too: the ranks are dumped to nowhere and go on, and what comes out is an `Outcome`. A checkpoint
that is asked for meanwhile takes its place: the ranks stand, or are about to, so it is saved at this very stop.

A checkpoint that ranks go on from is saved in the background (`State.background`). With the state engine they go on by
themselves as soon as their state is copied. Others are let go once all of them are dumped (`State.released`), and their
images are stored meanwhile. A request to end that comes then waits for it. After that it has a barrier of its own,
whether the first checkpoint was committed or not. So what is nearly stored is not thrown away, and the job loses some
steps at most if the second one comes too late.

`observe` is called with everything the leader has heard; it returns the next state and what the shell has to tell
the controller. `committed`, `cancelled` and `stale` are how the shell answers phase `commit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from ..protocol import page, ratchet
from ..protocol.messages import SaveCause, Then, Verdict
from ..protocol.ratchet import RankView
from . import wording
from .peers import Directive, Op, PodReport, Stop

SILENCE_S: Final = 15.0
"""A pod that has reported before and is silent for so long during a checkpoint counts as dead."""

GONE_S: Final = 60.0
"""A pod that has reported before and is silent for so long counts as lost for pods that wait for the end of all ranks.
The kubelet restarts a sidecar that died within half of that time."""

Phase = Literal["run", "barrier", "save", "commit", "stay", "stopped", "finished"]
ORDER: Final = get_args(Then)


@dataclass(frozen=True)
class Trigger:
    """The reason for a checkpoint, its deadline, and what follows it. Times are of the leader's monotonic clock, here
    and below."""

    reason: str
    started_at: float
    deadline: float
    then: Then = "stop"
    terminating: bool = False
    """Some pod was asked to end: all end as soon as the checkpoint is committed."""
    stay_s: float = 0.0
    """`then` is `stay`: for so long from the commit on."""
    trial: bool = False
    """Only to see whether the ranks can be saved."""

    @property
    def rank(self) -> int:
        """Of requests that meet, the highest counts."""
        return len(ORDER) if self.terminating else ORDER.index(self.then)


@dataclass(frozen=True)
class Heard:
    """A pod's last report and when it came."""

    report: PodReport
    at: float


@dataclass(frozen=True)
class State:
    job: str
    attempt: int
    workers: int
    world_size: int
    nonce: str = ""
    """Part of the ids of its checkpoints: of this Job, this attempt and this leader's pod only."""
    phase: Phase = "run"
    sequence: int = 0
    stop_at: int = 0
    acquired: bool = False
    """The barrier of the current or last generation was reached: its ranks froze."""
    anywhere: bool = False
    """... by stopping them where they were: no rank of this world waits for another."""
    barrier_at: float = 0.0
    overlaps: bool = False
    """The ranks of this engine go on by themselves while they are saved."""
    background: bool = False
    """The ranks of the checkpoint under way go on before it is stored, or have done so."""
    released: bool = False
    """They stood until all of them were dumped."""
    apart: bool = False
    """Ranks of this engine that have ended are saved as ended, and the others go on without them."""
    ended: frozenset[int] = frozenset()
    """Ranks that have ended; those of the current or last stop once its barrier was reached."""
    waiting: Trigger | None = None
    """For a checkpoint in the background to end: a request after which the ranks do not go on by themselves."""
    until: float = 0.0
    """`stay`: the ranks go on then."""
    before: Stop | None = None
    """The newest stop before the current or last one whose barrier was reached."""
    trigger: Trigger | None = None
    exit_now: bool = False
    asked: frozenset[int] = frozenset()
    """Pods that were asked to end and are part of the current checkpoint."""
    answered: frozenset[int] = frozenset()
    """Pods whose wish for a last checkpoint was tried already; they do not trigger another one."""
    unsaved: frozenset[int] = frozenset()
    broken: str = ""
    """Why not every rank of this world can end with 0 any more."""
    storing: bool = False
    """Once all ranks have ended, their outputs are stored: no pod ends before."""

    @property
    def generation(self) -> int:
        """Of the current or last stop; 0 before the first."""
        return page.generation(self.attempt, self.sequence) if self.sequence else 0

    @property
    def checkpoint_id(self) -> str:
        name = f"{self.job[:32].replace('.', '-').rstrip('-')}-a{self.attempt}-g{self.sequence}"
        return f"{name}-{self.nonce}" if self.nonce else name

    @property
    def over(self) -> Stop | None:
        """While no checkpoint is under way: the newest stop whose barrier was reached."""
        if not self.acquired:
            return self.before
        return Stop(self.generation, self.stop_at, self.anywhere, self.checkpoint_id, sorted(self.ended))

    @property
    def goes_on(self) -> bool:
        """The checkpoint under way does not end the attempt."""
        return self.trigger is not None and self.trigger.rank < ORDER.index("stop")

    @property
    def stays(self) -> bool:
        """It does not end the attempt, and yet the ranks stay stopped after it."""
        return self.goes_on and self.trigger is not None and self.trigger.then == "stay"

    @property
    def runs_on(self) -> bool:
        """The ranks go on as soon as they can."""
        return self.goes_on and not self.stays

    @property
    def trial(self) -> bool:
        """The stop under way is for nothing but a trial."""
        return self.trigger is not None and self.trigger.trial

    @property
    def active(self) -> bool:
        """A checkpoint is under way, or ranks stay stopped after one."""
        return self.phase in ("barrier", "save", "commit", "stay")


@dataclass(frozen=True)
class Failure:
    """For the controller: this checkpoint is not possible. `goes_on`: the attempt was to go on after it."""

    message: str
    goes_on: bool = False
    cause: SaveCause = ""
    why: str = ""
    """The first reason alone."""

    @property
    def finishing(self) -> bool:
        """The reason is that ranks have ended by themselves."""
        return self.cause == "ended"


@dataclass(frozen=True)
class Outcome:
    """For the controller: what a trial has shown."""

    verdict: Verdict
    cause: SaveCause = ""
    why: str = ""


SHOWN: Final = frozenset(("program", "ended"))
"""Causes that keep a checkpoint from being made as well as a trial. Others say nothing about the job."""


def directive(state: State) -> Directive:
    """What all pods have to do in `state`. The shell numbers it."""
    if state.phase == "stopped":
        op: Op = "exit" if state.exit_now else "stop"
    elif state.phase == "commit" or state.phase == "stay":
        op = "save"
    elif state.phase == "finished":
        op = "finish"
    else:
        op = state.phase
    return Directive(
        op=op,
        generation=state.generation,
        stop_at=state.stop_at,
        acquired=state.acquired,
        checkpoint_id=state.checkpoint_id if state.sequence else "",
        anywhere=state.anywhere,
        ahead=op == "save" and not state.runs_on,
        background=op == "save" and state.background,
        trial=op == "save" and state.trial,
        over=state.over if state.released or op in ("run", "barrier") else None,
        released=state.released,
        unsaved=sorted(state.unsaved),
        ended=sorted(state.ended) if op == "barrier" else [],
        broken=state.broken,
    )


def request(state: State, trigger: Trigger) -> State:
    """A checkpoint is requested. The request joins a running checkpoint: `stop` wins with its deadline, and `stay` over
    `continue`, otherwise the earlier deadline wins. All but `continue` wait for a checkpoint in the background.

    Ranks that stay stopped are saved already: their checkpoint is committed once more, for this request.
    """
    if state.phase in ("stopped", "finished"):
        return state
    if state.phase == "stay":
        assert state.trigger is not None
        asked = replace(trigger, then="stay", stay_s=state.trigger.stay_s) if trigger.rank == 0 else trigger
        until = state.until if trigger.rank == 0 else 0.0
        return replace(state, phase="commit", trigger=replace(asked, started_at=state.trigger.started_at), until=until)
    if state.background and trigger.rank > 0:
        return replace(state, waiting=_joined(state.waiting, trigger) if state.waiting else trigger)
    if state.trigger is None:
        return replace(
            state,
            phase="barrier",
            sequence=state.sequence + 1,
            before=state.over,
            stop_at=0,
            acquired=False,
            anywhere=False,
            barrier_at=0.0,
            until=0.0,
            ended=frozenset(),
            trigger=trigger,
            asked=frozenset(),
        )
    return replace(state, trigger=_joined(state.trigger, trigger))


def _joined(old: Trigger, trigger: Trigger) -> Trigger:
    if old.trial:
        return trigger
    # A checkpoint after which training goes on may have an early deadline. A checkpoint for which an eviction waits has
    # its own deadline.
    stop = ORDER.index("stop")
    most = max(min(old.rank, stop), min(trigger.rank, stop))
    return replace(
        old,
        deadline=min(t.deadline for t in (old, trigger) if min(t.rank, stop) == most),
        then=max(old.then, trigger.then, key=ORDER.index),
        terminating=old.terminating or trigger.terminating,
        stay_s=max(old.stay_s, trigger.stay_s),
    )


def resume(state: State) -> State:
    """Nobody is about to end the attempt any more: no rank stays stopped for that. Other requests stand."""
    if state.waiting is not None and state.waiting.then == "stay":
        waiting = replace(state.waiting, then="stop") if state.waiting.terminating else None
        state = replace(state, waiting=waiting)
    if not state.stays or state.trigger is None:
        return state
    return _over(state) if state.phase == "stay" else replace(state, trigger=replace(state.trigger, then="continue"))


def _over(state: State) -> State:
    """The checkpoint under way has ended, and the ranks go on: with a request that has waited, to the next barrier."""
    after = replace(state, phase="run", trigger=None, barrier_at=0.0, until=0.0, waiting=None)
    after = replace(after, background=False, released=False)
    return after if state.waiting is None else replace(request(after, state.waiting), asked=state.asked)


def observe(state: State, heard: Mapping[int, Heard], now: float) -> tuple[State, Failure | Outcome | None]:
    """Process the reports of the pods. At most one failure at a time; only the shell ends phase `commit`."""
    state = _terminating(state, heard, now)
    if state.phase == "barrier":
        return _barrier(state, heard, now)
    if state.phase == "save":
        return _save(state, heard, now)
    if state.phase == "run":
        return _run(state, heard, now), None
    if state.phase == "stay" and now >= state.until:
        return _over(state), None
    return state, None


def committed(state: State, now: float = 0.0) -> State:
    """The controller has the checkpoint."""
    assert state.trigger is not None
    if state.runs_on:
        return _over(state)
    if state.stays:
        return replace(state, phase="stay", until=state.until or now + state.trigger.stay_s)
    return replace(state, phase="stopped", exit_now=state.trigger.terminating, trigger=None)


def stale(state: State) -> State:
    """This attempt is not the current one: everything ends, nothing more is written."""
    return replace(state, phase="stopped", exit_now=True, trigger=None)


def cancelled(state: State, message: str, cause: SaveCause, why: str = "") -> tuple[State, Failure | Outcome]:
    """Give the checkpoint up: the ranks go on. Pods that were asked to end do so now, unless ranks have `ended`."""
    if state.trial:
        return _over(state), Outcome("no" if cause in SHOWN else "not tried", cause, why or message)
    failure = Failure(message, state.goes_on, cause, why)
    if state.waiting is not None:
        return _over(state), failure
    unsaved = state.unsaved if failure.finishing else state.unsaved | state.asked
    state = replace(state, answered=state.answered | state.asked, unsaved=unsaved)
    after = replace(state, phase="run", trigger=None, background=False, released=False)
    if state.goes_on:
        after = replace(after, barrier_at=0.0)
    return replace(after, asked=frozenset()), failure


def world(state: State, heard: Mapping[int, Heard]) -> list[RankView]:
    """The view of every rank, in order; a rank without a report is absent."""
    views = [RankView(count=0, blocked=0, state=page.STATE_ABSENT)] * state.world_size
    for item in heard.values():
        for words in item.report.ranks:
            if 0 <= words.rank < state.world_size:
                views[words.rank] = RankView(words.count, words.blocked, words.state)
    return views


def _terminating(state: State, heard: Mapping[int, Heard], now: float) -> State:
    for index in sorted(heard):
        left = heard[index].report.terminating_in_s
        if left is None or index in state.answered or index in state.asked:
            continue
        if state.phase in ("stopped", "finished"):
            continue
        trigger = Trigger(f"pod {index} was asked to end", now, heard[index].at + left, terminating=True)
        state = request(state, trigger)
        state = replace(state, asked=state.asked | {index})
    return state


def _run(state: State, heard: Mapping[int, Heard], now: float) -> State:
    reports = [item.report for item in heard.values()]
    if len(reports) == state.workers and all(r.done for r in reports) and not state.storing:
        return replace(state, phase="finished", broken="")
    failed = next((f"pod {r.index}: {r.broken}" for r in reports if r.broken), "")
    gone = [index for index, item in heard.items() if now - item.at > GONE_S]
    silent = f"{wording.pods(gone)} not heard for {GONE_S:.0f} s" if gone else ""
    return replace(state, broken=failed or silent)


def _barrier(state: State, heard: Mapping[int, Heard], now: float) -> tuple[State, Failure | Outcome | None]:
    assert state.trigger is not None
    views = world(state, heard)
    where = wording.positions(views, state.generation)
    if not any(item.report.started for item in heard.values()):
        return cancelled(state, "no rank runs yet in this attempt: nothing new to save", "early")
    if state.apart:
        state = replace(state, ended=frozenset(r for r, v in enumerate(views) if v.state == page.STATE_ENDED))
    if _free(state, heard, views):
        state = replace(state, stop_at=_furthest(views), anywhere=True)
        return replace(state, phase="save", acquired=True, barrier_at=now), None
    decision = ratchet.decide(views, state.generation, state.stop_at)
    if decision.finished or _cannot_go_on(state, heard, views):
        only = "" if state.apart else ". Only the process engine saves the others without it"
        return cancelled(state, f"a rank has ended already: {where}{only}", "ended")
    state = replace(state, stop_at=decision.stop_at)
    if decision.acquired:
        background = state.overlaps and state.runs_on and not state.trial
        return replace(state, phase="save", acquired=True, barrier_at=now, background=background), None
    assert state.trigger is not None
    if now >= state.trigger.deadline:
        waited = max(0.0, state.trigger.deadline - state.trigger.started_at)
        about_to_end = any(v.state == page.STATE_FINISHED for v in views)
        text = f"no step boundary within {waited:.0f} s: {where}"
        return cancelled(state, text, "ended" if about_to_end else "time")
    failed = _failed(state, heard)
    if failed:
        return cancelled(state, f"{_all(failed)}: {where}", *failed[0])
    silent = _silent(state, heard, now)
    return cancelled(state, f"{silent}: {where}", "pods") if silent else (state, None)


def _failed(state: State, heard: Mapping[int, Heard]) -> list[tuple[SaveCause, str]]:
    """Why pods could not do their part: what kind of reason, and the reason."""
    reports = (item.report for _, item in sorted(heard.items()))
    return [(r.cause, f"pod {r.index}: {r.message}") for r in reports if r.failed == state.generation]


def _all(failed: Sequence[tuple[SaveCause, str]]) -> str:
    return "; ".join(text for _, text in failed)


def _trial(state: State, heard: Mapping[int, Heard]) -> tuple[State, Failure | Outcome] | None:
    """Its end, None while it lasts."""
    ends = {i: item.report.tried for i, item in sorted(heard.items()) if item.report.tried is not None}
    mine = {index: tried for index, tried in ends.items() if tried.generation == state.generation}
    failed = [(tried.cause, f"pod {index}: {tried.problem}") for index, tried in mine.items() if tried.problem]
    if failed:
        # One that says nothing about the job does not hide one that does.
        return cancelled(state, _all(failed), *min(failed, key=lambda found: found[0] not in SHOWN))
    return (_over(state), Outcome("yes")) if len(mine) == state.workers else None


def _save(state: State, heard: Mapping[int, Heard], now: float) -> tuple[State, Failure | Outcome | None]:
    assert state.trigger is not None
    ended = _trial(state, heard) if state.trial else None
    if ended is not None:
        return ended
    reports = {index: item.report for index, item in heard.items()}
    failed = _failed(state, heard)
    if failed:
        text = f"the barrier was reached at step {state.stop_at}, but saving failed: {_all(failed)}"
        return cancelled(state, text, *failed[0])
    pods = range(state.workers)
    dumping = [i for i in pods if i not in reports or reports[i].dumped != state.generation]
    uploading = [i for i in pods if i not in dumping and reports[i].uploaded != state.generation]
    if not dumping and not state.released:
        # Ranks that are stopped anywhere take some steps more until they stand.
        state = replace(state, stop_at=_furthest(world(state, heard)) if state.anywhere else state.stop_at)
        if uploading and state.runs_on and not state.background:
            return replace(state, background=True, released=True), None
    if not dumping and not uploading:
        return replace(state, phase="commit"), None
    behind = ", ".join(
        f"pod {wording.numbers(which)} still {doing}"
        for which, doing in ((dumping, "dumping"), (uploading, "uploading"))
        if which
    )
    deadline = min(t.deadline for t in (state.trigger, state.waiting) if t is not None)
    if now >= deadline:
        waited = max(0.0, deadline - state.barrier_at)
        text = f"the barrier was reached at step {state.stop_at}, but not saved within {waited:.0f} s: {behind}"
        return cancelled(state, text, "time")
    silent = _silent(state, heard, now)
    return cancelled(state, f"{silent}: {behind}", "pods") if silent else (state, None)


def _free(state: State, heard: Mapping[int, Heard], views: list[RankView]) -> bool:
    """Every pod has just said that none of its ranks takes part in anything with others."""
    assert state.trigger is not None
    asked_at = state.trigger.started_at
    news = len(heard) == state.workers and all(i.report.started and i.at >= asked_at for i in heard.values())
    going = [v for rank, v in enumerate(views) if rank not in state.ended]
    return news and bool(going) and all(v.state in page.FREE for v in going)


def _cannot_go_on(state: State, heard: Mapping[int, Heard], views: list[RankView]) -> bool:
    """A rank is over, and the others cannot be saved without it: it has failed, or they need it for their own."""
    if not any(v.state in page.OVER for v in views):
        return False
    reports = [item.report for item in heard.values()]
    return not state.apart or any(r.broken or not r.apart for r in reports)


def _furthest(views: list[RankView]) -> int:
    """Of the ranks that have not ended."""
    return max((v.count for v in views if v.state != page.STATE_ENDED), default=0)


def _silent(state: State, heard: Mapping[int, Heard], now: float) -> str:
    assert state.trigger is not None
    for index, item in sorted(heard.items()):
        since = now - max(item.at, state.trigger.started_at)
        if since > SILENCE_S:
            return f"pod {index} has not been heard for {since:.0f} s"
    return ""
