"""The launcher's contract fake: speaks the unix-socket protocol and drives page and ratchet as a sidecar would.

One `FakeSidecar` per pod; one `Coordinator` over all pods of a job takes the place of the mesh. Nothing is uploaded:
images lie where the launcher wrote them and tests copy them to the next pod.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from waits import LIMIT_S, Limit, until

from gpukit.conductor import Endpoint
from singularity_proxy.protocol import exit_codes, messages, page, ratchet


class Page:
    """The barrier page as its creator sees it."""

    def __init__(self, run_dir: Path, world_size: int) -> None:
        path = run_dir / "page"
        path.write_bytes(bytes(page.PAGE_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), page.PAGE_SIZE)
        self.words = memoryview(self._map).cast("q")
        self.words[page.W_MAGIC], self.words[page.W_VERSION] = page.MAGIC, page.VERSION
        self.words[page.W_WORLD] = world_size

    def rank(self, rank: int) -> ratchet.RankView:
        count, blocked, state = (self.words[page.rank_word(rank, w)] for w in (0, 1, 2))
        return ratchet.RankView(count, blocked, state)

    def end(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.words[page.rank_word(rank, page.R_STATE)] = page.STATE_ENDED

    def publish(self, request: int, stop_at: int, acquired: int) -> None:
        self.words[page.W_ACQUIRED] = acquired
        self.words[page.W_STOP_AT] = stop_at
        self.words[page.W_REQUEST] = request


class FakeSidecar(Endpoint):
    """:param run_dir: RUN_DIR of the pod as this process sees it"""

    def __init__(self, run_dir: Path, world_size: int, plan: messages.Plan | None = None) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.page = Page(run_dir, world_size)
        self.refuse = ""
        self.refuse_with = exit_codes.PROTOCOL
        super().__init__(run_dir, plan)

    def answer_plan(self) -> tuple[int, str]:
        if self.refuse:
            return 422, messages.to_json(messages.Refusal(self.refuse, self.refuse_with))
        return super().answer_plan()

    def wait_event(
        self,
        *kinds: str,
        timeout: float = LIMIT_S,
        alive: Callable[[], bool] = lambda: True,
        skip: int = 0,
        progress: Callable[[], object] | None = None,
    ) -> messages.LauncherEvent:
        """The first event of one of `kinds` after the first `skip` events.

        :param progress: as of `waits.until`
        """
        limit = Limit(f"an event {' or '.join(kinds)}", timeout, lambda: f"events: {self.events}", progress)

        def patience() -> None:
            assert alive(), f"the launcher ended while {kinds} was awaited; events: {self.events}"
            if limit.over():
                limit.go_on()

        return self.first(kinds, skip, patience)


class Coordinator:
    """Barrier over all pods. `sidecars`: rank -> sidecar of its pod."""

    def __init__(self, sidecars: dict[int, FakeSidecar]) -> None:
        self.sidecars = sidecars

    def views(self) -> list[ratchet.RankView]:
        return [sidecar.page.rank(rank) for rank, sidecar in sorted(self.sidecars.items())]

    def wait_count(self, count: int, timeout: float = LIMIT_S, alive: Callable[[], bool] = lambda: True) -> None:
        """Until every rank has passed `count` boundaries.

        :param timeout: seconds in which no rank passes one: then they hang, and are not only slow
        """
        counts = lambda: [view.count for view in self.views()]  # noqa: E731
        until(
            lambda: min(counts()) >= count, f"every rank is at step {count}", limit_s=timeout, alive=alive,
            progress=counts, detail=lambda: str(self.views()),
        )  # fmt: skip

    def acquire(self, generation: int, timeout: float = LIMIT_S) -> int:
        """Stop all ranks at the same step, which is returned."""
        counts = lambda: [view.count for view in self.views()]  # noqa: E731
        limit, stop_at = Limit("the barrier", timeout, lambda: str(self.views()), counts), 0
        while True:
            decision = ratchet.decide(self.views(), generation, stop_at)
            assert not decision.finished, "a rank has finished"
            stop_at = decision.stop_at
            for sidecar in set(self.sidecars.values()):
                sidecar.page.end(rank for rank, view in enumerate(self.views()) if view.state == page.STATE_ENDED)
                sidecar.page.publish(generation, stop_at, generation if decision.acquired else 0)
            if decision.acquired:
                return stop_at
            if limit.over():
                limit.go_on()
            time.sleep(0.002)
