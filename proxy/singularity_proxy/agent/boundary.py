"""Step boundaries of one rank: publish a counter, and wait where the barrier says so.

Steady state, per optimizer step: one 8-byte store and one 8-byte load on a shared memory page. No system call, no
collective, no lock. The protocol of the page is `protocol.page`, the coordinator's side is `protocol.ratchet`.

That may not answer a stop in time: no optimizer, ranks that are not at the same step, a long evaluation. Then the rank
also stops at collectives, and at any line of the script when the launcher nudges it: `protocol.cut`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ..protocol import cut, names, page
from . import gate, guard, work
from .cut import Talk
from .store import stores

POLL_S = 0.001
"""How often a rank that waits at a boundary looks at the page."""

PATIENCE_S = 3.0
"""For this time after a stop request, only step boundaries may answer it. Nothing is in flight at them, and GPUs and
processes hold least there. Longer where a step takes long (`STEPS` of them), shorter where none has been seen."""
STEPS = 3.0
LONGEST_PATIENCE_S = 20.0
NO_STEPS_S = 0.5
FREEZES = 4
"""How often a stop begins again after an error between its steps, before the process ends."""
OTHERS_S = 1.0
"""How long to wait for other threads of this rank that have to issue the operations that other ranks have issued."""
_WINDOW = 16
"""Steps over which their duration is measured; a power of two."""

NEVER = 1 << 62
"""`Boundary.done` of a rank that is stopped from outside, wherever it is."""
_REQUEST = page.W_REQUEST  # one look-up less at each boundary

Freeze = Callable[["Boundary", int], None]


class NoRank(ValueError):
    """This process is none of the job's ranks, but one that a rank has started."""


class Boundary:
    """The rank's view of the barrier page. Slots, as every step of the script reads and writes them.

    :param rank_dir: `RUN_DIR/rank-<r>`; the page lies beside it
    :param rank: global rank
    :param freeze: called with (self, generation) when every rank of the world waits at this boundary. It returns when
        the rank goes on, possibly in another pod
    """

    __slots__ = (
        "_agreed", "_asked", "_at", "_durations", "_first_behind", "_freeze", "_leading", "_map", "_marked", "_since",
        "_talk", "_words", "count", "done", "frozen_for", "in_loop", "met_for", "order", "rank", "rank_dir", "refused",
        "unsaid",
    )  # fmt: skip

    def __init__(self, rank_dir: Path, rank: int, freeze: Freeze) -> None:
        if not 0 <= rank < page.MAX_WORLD:
            raise ValueError(f"RANK = {rank}: the barrier page has room for ranks 0..{page.MAX_WORLD - 1}")
        self.rank_dir = rank_dir
        self.rank = rank
        self.count = 0
        self.done = 0
        """Newest generation that this rank has come back from, or takes no part in."""
        self.frozen_for = 0
        """Generation of the stop that it is frozen for."""
        self.order: dict[str, Any] = {}
        """To go on; of the stop that it is frozen for."""
        self.met_for = 0
        """Generation of the last stop after which it has met the other ranks again."""
        self.refused = 0
        """Newest generation that it cannot be saved for."""
        self.unsaid = ""
        """... why, as long as the launcher does not know it."""
        self.in_loop = False
        """All ranks come to the boundaries of one loop, so they can wait there and need no other place to stop."""
        self._freeze = freeze
        self._at = page.rank_word(rank, 0)
        self._map: mmap.mmap | None = None
        self._words: memoryview | None = None
        self._leading = threading.RLock()
        """One thread at a time looks for the place to stop at."""
        self._agreed = 0
        """COUNT as the last cut left it: above it are steps that this rank has made."""
        self._marked = 0.0
        self._durations = (0.0, 0.0)
        """Seconds per step in the last two windows, of which one may contain an evaluation; 0: not known."""
        self._asked = 0
        """Generation that `_since`, when we saw it first, `_talk` and `_first_behind` belong to."""
        self._since = 0.0
        self._talk: Any = None
        self._first_behind: dict[str, tuple[int, float]] = {}
        """Channel that we were behind on -> what we had issued on it, and when that was seen first."""

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
                raise NoRank(f"process {owner} is rank {self.rank} already")
        except BaseException:
            words.release()
            mapping.close()
            raise
        words[self._at + page.R_COUNT] = self.count
        words[self._at + page.R_BLOCKED] = 0
        words[self._at + page.R_PID] = os.getpid()
        words[self._at + page.R_REFUSED] = self.refused
        words[self._at + page.R_APART] = 1
        words[self._at + page.R_STATE] = page.STATE_ALONE if self.done == NEVER else page.STATE_RUNNING
        self._marked, self._durations = 0.0, (0.0, 0.0)
        self._map, self._words = mapping, words

    def close(self, state: int) -> None:
        """Leave `state` in the page and unmap it (a mapped page would have to exist, same size, at a restore)."""
        if self._words is not None:
            self._words[self._at + page.R_STATE] = state
            self._words.release()
        self._words = None
        if self._map is not None:
            self._map.close()
        self._map = None

    def goes_on(self, generation: int) -> bool:
        """Whether the rank goes on from the stop `generation` while its state is saved."""
        words = self._words
        return words is not None and bool(words[page.W_BACKGROUND] == generation)

    def unblock(self) -> None:
        """The stop is over for this rank, which has not left the page."""
        if self._words is not None:
            self._words[self._at + page.R_BLOCKED] = 0

    def lead_by_loop(self, count: int, freeze: Freeze) -> None:
        """From here on the boundaries are those of a loop that has made `count` steps."""
        self.in_loop, self.count, self._freeze = True, count, freeze
        if self._words is not None:
            self._words[self._at] = count

    def step(self) -> None:
        """One step boundary."""
        gate.lead = gate.identity()
        self.count = count = self.count + 1
        words = self._words
        if words is None:
            return
        words[self._at] = count  # R_COUNT is word 0 of the rank
        if not count % _WINDOW:
            self._mark()
        if words[_REQUEST] > self.done:
            self._guarded(self._at_boundary)

    def _mark(self) -> None:
        now = time.monotonic()
        if self._marked:
            self._durations = (self._durations[1], (now - self._marked) / _WINDOW)
        self._marked = now

    def asked(self) -> int:
        """Generation of the stop that is asked for and that we have not come back from, or 0.

        Also of one that is asked for no more, but was acquired while we were blocked: the others freeze for it.
        """
        words = self._words
        if words is None:
            return 0
        asked: int = words[_REQUEST]  # first: who cancels a stop writes it last
        if asked <= self.done:
            asked = words[page.W_ACQUIRED]
            blocked = words[self._at + page.R_BLOCKED]
            if not 0 < blocked <= asked or asked <= self.done:
                return 0
        return asked

    def _may_stop(self) -> bool:
        """A rank that cannot be saved takes no part in a stop to which it has not agreed. It may have lost what it
        needs to meet the others again."""
        words = self._words
        request = words[_REQUEST] if words is not None else 0
        if self.done < request <= self.refused:
            self.done = request
        return bool(self.asked())

    # --- errors of ours -------------------------------------------------------------------------------------------
    def refuse(self, message: str) -> None:
        """The rank cannot be saved: for the stop under way, the one that is asked for, or, without any, from now on."""
        self._refuse(self.frozen_for or self.asked() or page.ALWAYS, message)

    def refuse_always(self, message: str) -> None:
        self._refuse(page.ALWAYS, message)

    def refuse_past(self, generation: int, message: str) -> None:
        """The rank has gone on from the stop `generation`, and could not be saved for it. From any thread: the page is
        written by its file. Raises OSError."""
        if generation <= self.refused:
            return
        self.refused = generation
        guard.write_json(self.rank_dir / names.REFUSED_FILE, {"message": message[:1000]})
        guard.write_word(self.rank_dir.parent / names.PAGE_FILE, self._at + page.R_REFUSED, generation)

    def _refuse(self, generation: int, message: str) -> None:
        if generation > self.refused:
            self.refused, self.unsaid = generation, message
            self.say_refused()

    def say_refused(self) -> None:
        """Tell the launcher. Raises OSError; to be called again then."""
        if not self.unsaid:
            return
        with contextlib.suppress(Exception):
            guard.write_json(self.rank_dir / names.REFUSED_FILE, {"message": self.unsaid[:1000]})
        words = self._words
        if words is not None:
            words[self._at + page.R_REFUSED] = self.refused
        else:
            guard.write_word(self.rank_dir.parent / names.PAGE_FILE, self._at + page.R_REFUSED, self.refused)
        self.unsaid = ""

    def _guarded(self, place: Callable[..., None], *arguments: Any) -> None:
        """Go to `place`. Whatever goes wrong there ends what this rank has to do with the stop that was asked for."""
        words = self._words
        request = words[_REQUEST] if words is not None else 0
        try:
            place(*arguments)
        except Exception as error:
            try:
                guard.took(error, "at a place to stop")
            finally:
                self._ride_out(request)

    def _ride_out(self, request: int) -> None:
        """Take part in the stop no more, unless the others may have frozen, trusting that we are blocked."""
        words = self._words
        blocked = words[self._at + page.R_BLOCKED] if words is not None else 0
        while words is not None and blocked > words[page.W_ACQUIRED] and words[_REQUEST] == blocked:
            with contextlib.suppress(Exception):
                time.sleep(POLL_S)
        if words is not None and 0 < blocked <= words[page.W_ACQUIRED]:
            self.frozen_for = self.frozen_for or words[page.W_ACQUIRED]
        elif words is not None:
            words[self._at + page.R_BLOCKED] = 0
        if not self.frozen_for:
            # Not before: other threads of the script would issue operations that the other ranks, which have frozen,
            # never answer.
            gate.standing = gate.blocked = False
        failed: Exception | None = None
        for _ in range(FREEZES):
            if not self.frozen_for:
                self.done = max(self.done, request)
                return
            try:
                self._stop(self.frozen_for)
            except Exception as error:
                failed = error
        guard.end_process(self.rank, self.rank_dir, failed or RuntimeError("no reason"))

    # --- step boundaries ------------------------------------------------------------------------------------------
    def _at_boundary(self) -> None:
        with self._leading:  # another thread of the script that comes along waits, too
            words = self._words
            if words is None or not self._may_stop():
                return
            with gate.lock:
                gate.standing = True
            self._wait(words)
            gate.standing = gate.blocked = False

    def _wait(self, words: memoryview) -> None:
        """Wait at a step boundary while the barrier says so; after some patience, meet the others by what was issued.

        Returns when the stop was cancelled, moved beyond us, or after a freeze.
        """
        waits_for = 0
        while True:
            request = words[page.W_REQUEST]
            acquired = words[page.W_ACQUIRED]
            # A rank that waited when the barrier was acquired freezes, even if the barrier was cancelled a moment
            # later. Other ranks may be frozen already, and all must rebuild communication together.
            if 0 < waits_for <= acquired:
                self._stop(acquired)
                return
            late = request > self.done and self._late(request)
            if request <= self.done or late or self.count < words[page.W_STOP_AT]:
                words[self._at + page.R_BLOCKED] = 0
                # BLOCKED is only cleared with the leader's knowledge. The leader then lets us go one step further.
                if late and (not waits_for or self._leave(words, waits_for)):
                    self._compare(words)
                return
            if not waits_for and gate.sided:
                self._compare(words)  # other threads have issued something: what exactly, only the others can tell
                return
            if not waits_for and work.messages():
                return  # what the peer sends after this step may be asked for already: only `_compare` knows
            waits_for = request
            self._block(words, request)
            time.sleep(POLL_S)

    def _block(self, words: memoryview, request: int) -> None:
        """Say that we are blocked. From then on no other thread of ours writes to the store: rank 0 may copy it."""
        gate.blocked = True
        while not gate.store_idle() and words[_REQUEST] == request:
            time.sleep(POLL_S)
        words[self._at + page.R_BLOCKED] = request

    def _leave(self, words: memoryview, waits_for: int) -> bool:
        """After taking BLOCKED back: wait for the leader to have seen it. False: it had not, and we have frozen."""
        gate.blocked = False
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
        """Freeze. Returns when the rank goes on."""
        with gate.lock:
            gate.closed = True
            self.done = self.frozen_for = generation
        gate.standing = gate.blocked = False
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.close()
        try:
            self._freeze(self, generation)
        except Exception:
            raise  # `_ride_out` comes back here
        except BaseException:  # the script is about to end
            gate.closed = False
            raise
        self.frozen_for, self.order = 0, {}
        gate.closed = gate.sided = False

    def _late(self, request: int) -> bool:
        """Have step boundaries had their time to answer `request`?"""
        if self.in_loop:
            return False
        now = time.monotonic()
        if self._asked != request:
            self._asked, self._since, self._talk, self._first_behind = request, now, None, {}
        usual = min((d for d in self._durations if d), default=0.0)
        patience = min(max(PATIENCE_S, STEPS * usual), LONGEST_PATIENCE_S) if self.count > self._agreed else NO_STEPS_S
        return now - self._since >= patience

    # --- places between step boundaries ---------------------------------------------------------------------------
    def meet(self) -> None:
        """A place between step boundaries, of the leading thread, that is before no operation.

        Returns when we are to go on: at once until the time of the step boundaries is over.
        """
        self._guarded(self._pass_by, None, True)

    def pass_by(self, ticket: gate.Ticket, place: bool) -> None:
        """A thread that leads is about to issue an operation, which `ticket` counts; a place if `place`."""
        self._guarded(self._pass_by, ticket, place)
        ticket.count()

    def _pass_by(self, ticket: gate.Ticket | None, place: bool) -> None:
        with self._leading:
            words = self._words
            if words is None or not self._may_stop():
                return
            late = self._late(words[_REQUEST])
            if late and place:
                self._compare(words, ticket)
            elif self._talk is not None:
                self._go_on(self._talk, ticket)

    def hold(self, ticket: gate.Ticket, free: bool) -> None:
        """Another thread than the leading one is about to issue an operation: it waits while that one does, or stops.

        It goes on where the rank is behind, or else no stop would ever be consistent; and where it is `free` to.
        """
        while not ticket.counted:
            with gate.lock:
                if free or self._lets_pass(ticket.channel):
                    ticket.count(beside=True)
                    if self._talk is not None and self._talk.said:
                        self._talk.publish(self.count, gate.standing)
                    return
            time.sleep(self._talk.pace if self._talk is not None else POLL_S)

    def _lets_pass(self, channel: str) -> bool:
        if gate.closed:
            return False
        if not self.asked() or not gate.standing:
            return True
        if gate.blocked or self._talk is None or not self._talk.said:
            return False
        me = gate.identity()
        own = {name for name, identity in gate.owners.items() if identity == me}
        return cut.may_pass(channel, self._talk.behind_on(), own)

    def _open_talk(self, words: memoryview) -> Any:
        if self._talk is None:
            world = words[page.W_WORLD]
            store = stores[-1].inner if stores else None
            alone = len(self._ended()) == world - 1
            if not alone and store is None:
                raise RuntimeError("there is no store of the script's to ask the other ranks in")
            self._talk = Talk(self._asked, self.rank, world, None if alone else store, self._ended)
        return self._talk

    def _ended(self) -> list[int]:
        """The ranks that have ended, as far as this pod knows: those of other pods once a stop is asked for."""
        words = self._words
        if words is None:
            return []
        states = (words[page.rank_word(rank, page.R_STATE)] for rank in range(words[page.W_WORLD]))
        return [rank for rank, state in enumerate(states) if state == page.STATE_ENDED]

    def _compare(self, words: memoryview, ticket: gate.Ticket | None = None) -> None:
        """Wait here until every rank waits, and nobody is behind; or until we have to go on."""
        request = self._asked
        talk = self._open_talk(words)
        with gate.lock:
            gate.standing = True
            talk.publish(self.count, True)
        while words[_REQUEST] == request:
            with gate.lock:
                verdict, behind_on = talk.verdict()
            if verdict == "settled" and not gate.blocks and not work.open_sources():
                if not self._settled(words, talk):
                    return
                continue
            if verdict != "wait" and not self._others_will(behind_on):
                break
            time.sleep(talk.pace)
        self._go_on(talk, ticket)

    def _go_on(self, talk: Any, ticket: gate.Ticket | None) -> None:
        with gate.lock:
            gate.standing = False
            if ticket is not None:
                ticket.count()
            talk.publish(self.count, False)

    def _others_will(self, behind_on: Collection[str]) -> bool:
        """Will other threads of this rank catch up by themselves? We wait some time for that."""
        alive = {name for name in behind_on if gate.lives(gate.owners.get(name, 0))}
        if not cut.others_will(behind_on, alive):
            return False
        now = time.monotonic()
        for name in behind_on:
            count = gate.issued.get(name, 0)
            seen, since = self._first_behind.get(name, (-1, now))
            if seen != count:
                self._first_behind[name] = count, now
            elif now - since > OTHERS_S:
                return False
        return True

    def _settled(self, words: memoryview, talk: Any) -> bool:
        """Say that we are blocked until every rank is. True: somebody went on after all. False: the stop is over."""
        request, at = self._asked, self._at
        self._block(words, request)
        while True:
            # Ranks with different step counts have the same number from here on. BLOCKED is set first: a leader that
            # saw the higher count alone would move the bound beyond it.
            self.count = self._agreed = max(self.count, talk.highest(), words[page.W_STOP_AT])
            words[at] = self.count
            cancelled = words[_REQUEST] != request  # first: who cancels a stop writes it last
            if request <= words[page.W_ACQUIRED]:
                self._stop(words[page.W_ACQUIRED])
                return False
            if cancelled:
                words[at + page.R_BLOCKED] = 0
                gate.blocked = False
                return False
            with gate.lock:
                verdict, _ = talk.verdict()
            if verdict != "settled":
                words[at + page.R_BLOCKED] = 0
                return self._leave(words, request)
            time.sleep(talk.pace)
