"""Step boundaries of one rank: publish a counter, and wait where the barrier says so.

Steady state, per optimizer step: one 8-byte store and one 8-byte load on a shared memory page. No system call, no
collective, no lock. The protocol of the page is `protocol.page`, the coordinator's side is `protocol.ratchet`.
"""

from __future__ import annotations

import atexit
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..protocol import names, page
from . import lost

POLL_S = 0.001
"""How often a rank that waits at a boundary looks at the page."""

_REQUEST = page.W_REQUEST  # one look-up less at each boundary

Freeze = Callable[["Boundary", int], None]


class Boundary:
    """The rank's view of the barrier page. Slots, as every step of the script reads and writes them.

    :param rank_dir: `RUN_DIR/rank-<r>`; the page lies beside it
    :param rank: global rank
    :param freeze: called with (self, generation) when every rank of the world waits at this boundary; returns when
        the rank goes on, possibly in another pod
    """

    __slots__ = ("_at", "_freeze", "_map", "_words", "count", "done", "rank", "rank_dir")

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
        words[self._at + page.R_STATE] = page.STATE_RUNNING
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
        if words[_REQUEST] > self.done:
            self._wait(words)

    def _wait(self, words: memoryview) -> None:
        """Wait while the barrier says so. Returns when it was cancelled, moved beyond us, or after a freeze."""
        waits_for = 0
        while True:
            request = words[page.W_REQUEST]
            acquired = words[page.W_ACQUIRED]
            # Whoever waited when the barrier was acquired freezes, even if it was cancelled a moment later: the other
            # ranks may be frozen already, and all must rebuild communication together.
            if 0 < waits_for <= acquired:
                break
            if request <= self.done or self.count < words[page.W_STOP_AT]:
                words[self._at + page.R_BLOCKED] = 0
                return
            waits_for = request
            words[self._at + page.R_BLOCKED] = request
            time.sleep(POLL_S)
        self.done = acquired
        self._freeze(self, acquired)


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
        boundary.open()
    except (OSError, ValueError, KeyError) as error:
        _off, _step = True, _nothing
        hooks.report(f"process {os.getpid()} takes no part in checkpoints: {error}")
        return None
    _boundary, _step = boundary, boundary.step
    atexit.register(_finish, boundary, os.getpid())
    os.register_at_fork(after_in_child=_forget)
    return boundary


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
