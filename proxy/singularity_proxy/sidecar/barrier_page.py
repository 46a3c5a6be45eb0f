"""The sidecar's side of the barrier page (`protocol.page`): create it, publish the header, read the ranks."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import ConfigError
from ..protocol import names, page
from ..protocol.ratchet import RankView


class BarrierPage:
    """The mapped page. The file keeps its size for ever: a mapping of another size could not be restored.

    A page that exists with the same world is adopted, ranks and all: this sidecar was restarted beside running ranks.

    :raises ConfigError: the directory cannot be written
    """

    def __init__(self, run_dir: Path, world_size: int) -> None:
        path = run_dir / names.PAGE_FILE
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self.adopted = _is_ours(fd, world_size)
                if not self.adopted:
                    os.ftruncate(fd, 0)
                    # Allocate all of it now: the kernel would kill a rank that writes into a hole of a full volume.
                    os.posix_fallocate(fd, 0, page.PAGE_SIZE)
                self._map = mmap.mmap(fd, page.PAGE_SIZE)
            finally:
                os.close(fd)
        except OSError as error:
            raise ConfigError(f"cannot create the barrier page {path}: {error}") from error
        self._words = memoryview(self._map).cast("q")
        self._words[page.W_VERSION] = page.VERSION
        self._words[page.W_WORLD] = world_size
        self._words[page.W_MAGIC] = page.MAGIC

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._words.release()
        self._map.close()

    @property
    def request(self) -> int:
        """Published REQUEST."""
        return self._words[page.W_REQUEST]

    @property
    def acquired(self) -> int:
        """Published ACQUIRED."""
        return self._words[page.W_ACQUIRED]

    def ask(self, generation: int, stop_at: int) -> None:
        """Publish a stop. STOP_AT first: a rank that sees the request must not see an older bound with it."""
        self._words[page.W_STOP_AT] = stop_at
        self._words[page.W_REQUEST] = generation

    def acquire(self, generation: int, stop_at: int, background: bool = False) -> None:
        """Publish that every rank of the world waits for `generation`: they freeze.

        :param background: they go on as soon as their state is copied
        """
        self.ask(generation, stop_at)
        if background:
            self._words[page.W_BACKGROUND] = generation
        self._words[page.W_ACQUIRED] = generation

    def pass_over(self, generation: int) -> None:
        """Ranks are stopped anywhere for `generation`: no rank has to wait, but the number is used up."""
        self.withdraw()
        self._words[page.W_ACQUIRED] = generation

    def end(self, ranks: Collection[int]) -> None:
        """Ranks of other pods have ended: those of this one need not look for them."""
        for rank in ranks:
            self._words[page.rank_word(rank, page.R_STATE)] = page.STATE_ENDED

    def ended(self, world_size: int) -> list[int]:
        """The ranks of the world that have ended, as far as this page knows."""
        return [rank for rank, view in enumerate(self.views(range(world_size))) if view.state == page.STATE_ENDED]

    def apart(self, ranks: Sequence[int]) -> bool:
        """Whether those of these ranks that run can go on without ranks that have ended."""
        words = self._words
        return all(
            words[page.rank_word(rank, page.R_APART)]
            for rank in ranks
            if words[page.rank_word(rank, page.R_STATE)] in (page.STATE_RUNNING, page.STATE_FROZEN)
        )

    def withdraw(self) -> None:
        """Withdraw the stop request."""
        self._words[page.W_REQUEST] = 0

    def view(self, rank: int) -> RankView:
        """A consistent snapshot of one rank's words.

        The counter only grows, and a rank stores BLOCKED after COUNT and clears it before the next COUNT. If COUNT
        is the same before and after reading BLOCKED, the pair was true at one moment.
        """
        words, at = self._words, page.rank_word(rank, 0)
        while True:
            count = words[at + page.R_COUNT]
            blocked, state = words[at + page.R_BLOCKED], words[at + page.R_STATE]
            if words[at + page.R_COUNT] == count:
                return RankView(count=count, blocked=blocked, state=state)

    def views(self, ranks: Sequence[int]) -> list[RankView]:
        """Snapshots of several ranks, in the order given."""
        return [self.view(rank) for rank in ranks]


def _is_ours(fd: int, world_size: int) -> bool:
    if os.fstat(fd).st_size != page.PAGE_SIZE:
        return False
    with mmap.mmap(fd, page.PAGE_SIZE, access=mmap.ACCESS_READ) as old, memoryview(old) as raw, raw.cast("q") as words:
        known = (words[page.W_MAGIC], words[page.W_VERSION], words[page.W_WORLD])
        return known == (page.MAGIC, page.VERSION, world_size)
