"""Step boundaries of one rank: publish a counter, and wait where the barrier says so.

Steady state, per optimizer step: one 8-byte store and one 8-byte load on a shared memory page. No system call, no
collective, no lock. The protocol of the page is `protocol.page`, the coordinator's side is `protocol.ratchet`.

Where that does not answer a stop in time (no optimizer, ranks whose steps are not in step, a long evaluation), the
rank also stops at collectives, and at any line of the script when the launcher nudges it: `protocol.cut`.
"""

from __future__ import annotations

import atexit
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from ..protocol import names, page
from . import lost, work

POLL_S = 0.001
"""How often a rank that waits at a boundary looks at the page."""

PATIENCE_S = 3.0
"""So long after a stop was asked for, step boundaries alone may answer it: nothing is in flight at them, and GPUs and
processes hold least there. Longer where a step takes long (`STEPS` of them), shorter where none has been seen."""
STEPS = 3.0
LONGEST_PATIENCE_S = 20.0
NO_STEPS_S = 0.5
_WINDOW = 16
"""Steps over which their duration is measured; a power of two."""

_NEVER = 1 << 62
"""`Boundary.done` of a rank that is stopped from outside, wherever it is."""
_REQUEST = page.W_REQUEST  # one look-up less at each boundary
_UNSAFE = ("torch.distributed.distributed_c10d", "torch.distributed.rendezvous")
"""A nudge that meets a frame of these modules, or of ours, comes again: a group or an operation may be half made."""
_OURS = __name__.rpartition(".")[0] + "."

Freeze = Callable[["Boundary", int], None]


class Boundary:
    """The rank's view of the barrier page. Slots, as every step of the script reads and writes them.

    :param rank_dir: `RUN_DIR/rank-<r>`; the page lies beside it
    :param rank: global rank
    :param freeze: called with (self, generation) when every rank of the world waits at this boundary; returns when
        the rank goes on, possibly in another pod
    """

    __slots__ = (
        "_agreed", "_asked", "_at", "_durations", "_freeze", "_lock", "_map", "_marked", "_since", "_talk", "_words",
        "count", "done", "rank", "rank_dir",
    )  # fmt: skip

    def __init__(self, rank_dir: Path, rank: int, freeze: Freeze) -> None:
        if not 0 <= rank < page.MAX_WORLD:
            raise ValueError(f"RANK = {rank}: the barrier page has room for ranks 0..{page.MAX_WORLD - 1}")
        self.rank_dir = rank_dir
        self.rank = rank
        self.count = 0
        self.done = 0
        """Newest generation this rank has frozen for and come back from."""
        self._freeze = freeze
        self._at = page.rank_word(rank, 0)
        self._map: mmap.mmap | None = None
        self._words: memoryview | None = None
        self._lock = threading.Lock()
        self._agreed = 0
        """COUNT as the last cut left it: above it are steps that this rank has made."""
        self._marked = 0.0
        self._durations = (0.0, 0.0)
        """Seconds per step in the last two windows, of which one may contain an evaluation; 0: not known."""
        self._asked = 0
        """Generation that `_since`, when we saw it first, and `_talk` belong to."""
        self._since = 0.0
        self._talk: Any = None

    def open(self) -> None:
        """Map the page and state who we are. Raises OSError, or ValueError for a page of another layout or owner."""
        with open(self.rank_dir.parent / names.PAGE_FILE, "r+b") as file:
            mapping = mmap.mmap(file.fileno(), page.PAGE_SIZE)
        words = memoryview(mapping).cast("q")
        try:
            if words[page.W_MAGIC] != page.MAGIC or words[page.W_VERSION] != page.VERSION:
                raise ValueError(f"barrier page has version {words[page.W_VERSION]}, wanted {page.VERSION}")
            owner = words[self._at + page.R_PID]
            if owner not in (0, os.getpid()) and Path(f"/proc/{owner}").exists():
                raise ValueError(f"process {owner} is rank {self.rank} already")
        except ValueError:
            words.release()
            mapping.close()
            raise
        words[self._at + page.R_COUNT] = self.count
        words[self._at + page.R_BLOCKED] = 0
        words[self._at + page.R_PID] = os.getpid()
        words[self._at + page.R_STATE] = page.STATE_ALONE if self.done == _NEVER else page.STATE_RUNNING
        self._marked, self._durations = 0.0, (0.0, 0.0)
        self._map, self._words = mapping, words

    def close(self, state: int) -> None:
        """Leave `state` in the page and unmap it (a mapped page would have to exist, same size, at a restore)."""
        if self._words is not None and self._map is not None:
            self._words[self._at + page.R_STATE] = state
            self._words.release()
            self._map.close()
        self._map = self._words = None

    def step(self) -> None:
        """One step boundary."""
        self.count = count = self.count + 1
        words = self._words
        if words is None:
            return
        words[self._at] = count  # R_COUNT is word 0 of the rank
        if not count % _WINDOW:
            self._mark()
        if words[_REQUEST] > self.done:
            self._wait(words)

    def _mark(self) -> None:
        now = time.monotonic()
        if self._marked:
            self._durations = (self._durations[1], (now - self._marked) / _WINDOW)
        self._marked = now

    def asked(self) -> bool:
        """Is a stop asked for that we have not come back from?"""
        words = self._words
        return words is not None and words[_REQUEST] > self.done

    def _wait(self, words: memoryview) -> None:
        """Wait at a step boundary while the barrier says so; after some patience, meet the others by what was issued.

        Returns when the stop was cancelled, moved beyond us, or after a freeze.
        """
        waits_for = 0
        while True:
            request = words[page.W_REQUEST]
            acquired = words[page.W_ACQUIRED]
            # Whoever waited when the barrier was acquired freezes, even if it was cancelled a moment later: the other
            # ranks may be frozen already, and all must rebuild communication together.
            if 0 < waits_for <= acquired:
                self._stop(acquired)
                return
            late = request > self.done and self._late(request)
            if request <= self.done or late or self.count < words[page.W_STOP_AT]:
                words[self._at + page.R_BLOCKED] = 0
                # Blocked is only taken back with the leader's knowledge, which then lets us go one step further.
                if late and (not waits_for or self._leave(words, waits_for)):
                    self.meet("")
                return
            if not waits_for and work.messages():
                return  # what the peer sends after this step may be asked for already: only `meet` knows
            waits_for = request
            words[self._at + page.R_BLOCKED] = request
            time.sleep(POLL_S)

    def _leave(self, words: memoryview, waits_for: int) -> bool:
        """After taking BLOCKED back: wait for the leader to have seen it. False: it had not, and we have frozen."""
        while 0 < words[page.W_REQUEST] == waits_for and words[page.W_STOP_AT] <= self.count:
            if waits_for <= words[page.W_ACQUIRED]:
                break
            time.sleep(POLL_S)
        if waits_for <= words[page.W_ACQUIRED]:
            words[self._at + page.R_BLOCKED] = waits_for
            self._stop(words[page.W_ACQUIRED])
            return False
        return True

    def _stop(self, generation: int) -> None:
        self.done = generation
        if self._talk is not None:
            self._talk.close()
        self._freeze(self, generation)

    def _late(self, request: int) -> bool:
        """Have step boundaries had their time to answer `request`?"""
        now = time.monotonic()
        if self._asked != request:
            self._asked, self._since, self._talk = request, now, None
        usual = min((d for d in self._durations if d), default=0.0)
        patience = min(max(PATIENCE_S, STEPS * usual), LONGEST_PATIENCE_S) if self.count > self._agreed else NO_STEPS_S
        return now - self._since >= patience

    def meet(self, issue: str) -> None:
        """A place between step boundaries, before the operation on channel `issue` ('': none), while a stop is asked.

        Returns when we are to go on: at once until the time of the step boundaries is over.
        """
        with self._lock:  # another thread of the script that comes along waits, too
            words = self._words
            if words is None or not self._late(words[_REQUEST]):
                return
            talk = self._talk or self._open_talk(words)
            if talk is not None:
                self._meet(words, talk, issue)

    def _open_talk(self, words: memoryview) -> Any:
        from . import comm, cut, hooks

        world = words[page.W_WORLD]
        store = comm.stores[-1].inner if comm.stores else None
        if world == 1 or store is not None:
            try:
                self._talk = cut.Talk(self._asked, self.rank, world, store if world > 1 else None)
            except RuntimeError as error:  # the server has gone: the script will notice soon enough
                hooks.report(f"rank {self.rank} cannot ask the others where to stop: {error}")
        return self._talk

    def _meet(self, words: memoryview, talk: Any, issue: str) -> None:
        request = self._asked
        talk.publish(self.count, True, issue)
        while words[_REQUEST] == request:
            verdict = talk.verdict()
            if verdict == "settled":
                if not self._settled(words, talk):
                    return
                continue
            if verdict == "pass":
                break
            time.sleep(talk.pace)
        talk.publish(self.count, False, issue)

    def _settled(self, words: memoryview, talk: Any) -> bool:
        """Say that we are blocked until every rank is. True: somebody went on after all. False: the stop is over."""
        request, at = self._asked, self._at
        words[at + page.R_BLOCKED] = request
        while True:
            # Ranks whose steps are not in step have one number from here on. BLOCKED is set first: a leader that saw
            # the higher count alone would move the bound beyond it.
            self.count = self._agreed = max(self.count, talk.highest(), words[page.W_STOP_AT])
            words[at] = self.count
            if request <= words[page.W_ACQUIRED]:
                self._stop(words[page.W_ACQUIRED])
                return False
            if words[_REQUEST] != request:
                words[at + page.R_BLOCKED] = 0
                return False
            if talk.verdict() != "settled":
                words[at + page.R_BLOCKED] = 0
                return self._leave(words, request)
            time.sleep(talk.pace)


_boundary: Boundary | None = None
_off = False
_step: Callable[[], None]
"""What a boundary does now: claims the page at first, then counts. One call per step of the script, no decision."""


def current() -> Boundary | None:
    """The rank's boundary, once this process has claimed the page."""
    return _boundary


def claim() -> Boundary | None:
    """Make this process the rank, on its first sign of training. None where it is not (a worker, another process)."""
    global _boundary, _off, _step
    if _boundary is not None or _off:
        return _boundary
    from . import freeze, hooks

    try:
        boundary = Boundary(Path(os.environ[names.ENV_RANK_DIR]), int(os.environ["RANK"]), freeze.freeze)
        if os.environ.get(names.ENV_ALONE):
            boundary.done = _NEVER
        boundary.open()
    except (OSError, ValueError, KeyError) as error:
        _off, _step = True, _nothing
        if not os.environ.get(names.ENV_ALONE):  # there it is one of several that train in one slot
            hooks.report(f"process {os.getpid()} takes no part in checkpoints: {error}")
        return None
    _boundary, _step = boundary, boundary.step
    _listen()
    atexit.register(_finish, boundary, os.getpid())
    os.register_at_fork(after_in_child=_forget)
    return boundary


def stranger(rank: int, world_size: int) -> str:
    """Why a process that is about to meet others as `rank` of `world_size` (-1: as the environment says) is none of the
    job's ranks, but one that such a rank has started. "" if it is one.

    In a job of several ranks only: where there is one, whatever it starts is saved with it.
    """
    if _boundary is not None or _off:
        return ""
    folder = Path(os.environ[names.ENV_RANK_DIR])
    own = int(folder.name.rpartition("-")[2])
    with open(folder.parent / names.PAGE_FILE, "rb") as file:
        file.seek(8 * page.W_WORLD)
        world = int.from_bytes(file.read(8), sys.byteorder)
    met = world_size if world_size >= 0 else int(os.environ.get("WORLD_SIZE", world))
    if met != world:
        return f"it meets a world of {met} ranks, the job has {world}"
    processes = sys.modules.get("multiprocessing.process")
    child = processes is not None and processes.parent_process() is not None
    if child and rank >= 0 and rank != own:
        return f"it is rank {rank} of the script's own, started by rank {own} of the job"
    return ""


def stand_aside(why: str) -> None:
    """This process takes no part in checkpoints."""
    global _off, _step
    from . import hooks

    _off, _step = True, _nothing
    hooks.report(
        f"process {os.getpid()} takes no part in checkpoints, and its job cannot be saved: {why}. Give the job as many "
        "ranks as the script starts (the launcher starts them as torchrun would), or one rank that starts them all"
    )


def _listen() -> None:
    """Be nudged by the launcher, unless the script has its own use of the signal, which does nothing by default."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGURG) == signal.SIG_DFL:
        signal.signal(signal.SIGURG, _nudged)
        signal.siginterrupt(signal.SIGURG, False)  # calls of the script's libraries go on by themselves


def _nudged(number: int, frame: FrameType | None) -> None:
    """A stop is asked for and step boundaries are not coming: is this line a place to stop at?"""
    boundary = _boundary
    if boundary is None or not boundary.asked():
        return
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_OURS) or name in _UNSAFE:
            return
        frame = frame.f_back
    boundary.meet("")


def _finish(boundary: Boundary, pid: int) -> None:
    if os.getpid() == pid:
        lost.note(boundary.rank_dir)
        boundary.close(page.STATE_FINISHED)


def _forget() -> None:
    """A forked child is not the rank, whatever it trains."""
    global _boundary, _off, _step
    _boundary, _off, _step = None, True, _nothing


def _nothing() -> None:
    pass


def _first_step() -> None:
    boundary = claim()
    if boundary is not None:
        boundary.step()


_step = _first_step


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    _step()


def install(module: ModuleType) -> None:
    """Count a boundary after each step of any optimizer. `module` is torch.optim.optimizer."""
    module.register_optimizer_step_post_hook(_after_step)
