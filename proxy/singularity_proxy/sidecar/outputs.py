"""What the ranks wrote to `$OUTPUTS`, once all of them have ended well: to its URL, and then the end of the job.

Every pod lists its files and tells the leader. The leader says which of them count, every pod stores its own, and the
leader writes the manifest, tells the controller, and only then lets the pods end. All of it is done again, with the
same outcome, by sidecars that are started anew, and by the next attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from ..errors import ConfigError, ControllerError, ProxyError, StaleAttemptError
from ..protocol import names
from ..protocol import outputs as protocol
from ..protocol.messages import HelloReply
from ..protocol.outputs import LeftOut, OutputFile, OutputsManifest, StoredOutputs
from ..store import outputs as store
from .config import Config
from .controller_client import Controller
from .peers import PodOutputs, PodReport, Unstored

GIVE_UP_S: Final = 600.0
"""For so long a place that refuses or is away is asked again: a right can be granted, a disk can be emptied."""
AGAIN_S: Final = 5.0
TELL_S: Final = 600.0
MOST_LEFT_OUT: Final = 1000
"""In the manifest; the log has all."""
T = TypeVar("T")
log = logging.getLogger(__name__)


def place_of(reply: HelloReply) -> str:
    """URL for the outputs of the job; "" if it has none. Raises ConfigError: the platform does not allow the place."""
    if reply.outputs_refused:
        raise ConfigError(f"outputs: {reply.outputs_refused}")
    return reply.outputs


async def insisted(work: Callable[[], T], what: str, failing: Callable[[str], None]) -> T:
    """`work` in a thread, again and again. Raises ProxyError after GIVE_UP_S of failures in a row."""
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return await asyncio.to_thread(work)
        except ProxyError as error:
            if time.monotonic() + AGAIN_S >= deadline:
                raise
            log.warning("%s: %s; trying again", what, error)
            failing(str(error))
        await asyncio.sleep(AGAIN_S)


class _InBackground:
    """One task at a time, whose threads look at `_cancelled`."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """What is under way is given up."""
        self._cancelled.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class OutputsOfPod(_InBackground):
    """:param changed: called when there is something new for the leader"""

    def __init__(self, config: Config, url: str, changed: Callable[[], None]) -> None:
        super().__init__()
        self._config, self._url, self._changed = config, url, changed
        self._files: list[OutputFile] = []
        self._left_out: list[LeftOut] = []
        self._listed = self._stored = False
        self._unstored: Unstored | None = None
        self._failing = ""
        self._progress = (0, 0)
        self._chosen = False
        self._wanted = True
        """The leader needs the files."""

    def ranks_ended(self) -> None:
        """All of this pod, well. Idempotent."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._list())

    def choose(self, skipped: Collection[LeftOut] | None) -> None:
        """The leader has said which files are not stored; None: not yet. Idempotent.

        A leader that was started anew asks once more, and comes to the same.
        """
        self._wanted = skipped is None
        if skipped is not None and self._listed and not self._chosen:
            self._chosen = True
            gone = {(each.rank, each.path) for each in skipped}
            files = [file for file in self._files if (file.rank, file.path) not in gone]
            self._task = asyncio.ensure_future(self._store(files))

    def report(self) -> PodOutputs:
        """For the leader, who needs the files until it has chosen."""
        return PodOutputs(
            listed=self._listed,
            files=self._files if self._listed and self._wanted else None,
            left_out=self._left_out if self._wanted else [],
            stored=self._stored,
            unstored=self._unstored,
            failing=self._failing,
            bytes_done=self._progress[0],
            bytes_total=self._progress[1],
        )

    @property
    def _folders(self) -> dict[int, Path]:
        return {rank: self._config.work_dir / f"rank-{rank}" / names.OUTPUTS_DIR for rank in self._config.ranks}

    async def _list(self) -> None:
        folders, below = self._folders, self._config.work_dir
        try:
            if not below.is_dir():
                raise ConfigError(f"{below} is not there: the pods of this job were made without outputs")
            listed = await asyncio.to_thread(store.listed, folders, below)
        except (ProxyError, OSError) as error:
            self._give_up(error)
            return
        self._files, self._left_out = listed
        self._progress = (0, sum(file.size for file in self._files))
        for left in self._left_out:
            log.warning("outputs: %s of rank %d is left out: %s", left.path, left.rank, left.why)
        self._listed = True
        self._changed()

    async def _store(self, files: list[OutputFile]) -> None:
        folders, below, began = self._folders, self._config.work_dir, time.monotonic()
        place = store.Outputs(self._url, cancelled=self._cancelled.is_set)
        left = [*files]

        def put() -> None:
            while left:  # what is there already is not sent again
                part = left[: store.AT_ONCE]
                place.put(part, folders, below)
                del left[: len(part)]
                self._progress = (self._progress[0] + sum(file.size for file in part), self._progress[1])

        self._progress = (0, sum(file.size for file in files))
        try:
            await insisted(put, f"outputs of pod {self._config.index}", self._fails)
        except (ProxyError, OSError) as error:
            self._give_up(error)
            return
        log.info("outputs: %d files, %d bytes in %.1f s", len(files), self._progress[1], time.monotonic() - began)
        self._stored, self._failing = True, ""
        self._changed()

    def _fails(self, why: str) -> None:
        self._failing = why
        self._changed()

    def _give_up(self, error: Exception) -> None:
        log.error("outputs cannot be stored: %s", error)
        known = error if isinstance(error, ProxyError) else ConfigError(str(error))
        self._unstored = Unstored(str(error), known.exit_code)
        self._changed()


class OutputsOfJob(_InBackground):
    """The leader's part.

    :param standing: the steps that are done, and the last checkpoint's id
    :param turned: called when a field of this has changed
    :param stale: called when this attempt is not the current one
    """

    def __init__(
        self,
        config: Config,
        url: str,
        controller: Controller,
        standing: Callable[[], tuple[int, str]],
        turned: Callable[[], None],
        stale: Callable[[StaleAttemptError], None],
    ) -> None:
        super().__init__()
        self._config, self._url, self._controller = config, url, controller
        self._standing, self._turned, self._stale = standing, turned, stale
        self.skipped: list[LeftOut] | None = None
        """What of the pods' files is not stored; None until all have listed theirs."""
        self.stored = False
        """The manifest is there, and the controller knows it."""
        self.unstored: Unstored | None = None
        self._files: list[OutputFile] = []
        self._left_out: list[LeftOut] = []
        self._before: list[str] = []
        self._place = store.Outputs(url, cancelled=self._cancelled.is_set)
        self._completing = False

    def see(self, reports: Mapping[int, PodReport]) -> None:
        """Go on, as far as the pods have come. Called with each report."""
        told = [report.outputs for report in reports.values()]
        pods = [each for each in told if each is not None]
        if self.unstored is None:
            self.unstored = next((each.unstored for each in pods if each.unstored is not None), None)
            if self.unstored is not None:
                self._turned()
        if self.unstored is not None or len(pods) != self._config.workers:
            return
        if (
            self._task is None
            and all(r.done for r in reports.values())
            and all(each.files is not None for each in pods)
        ):
            self._start(self._choose(pods))
        elif self.skipped is not None and not self._completing and all(each.stored for each in pods):
            self._completing = True
            self._start(self._complete())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.ensure_future(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StaleAttemptError as error:
            self._stale(error)
        except ProxyError as error:
            log.error("outputs cannot be stored: %s", error)
            self.unstored = Unstored(str(error), error.exit_code)
        self._turned()

    async def _choose(self, pods: Collection[PodOutputs]) -> None:
        listed = [file for each in pods for file in each.files or ()]
        self._files, clashes = protocol.together(listed)
        self._left_out = [*(left for each in pods for left in each.left_out), *clashes]
        for left in clashes:
            log.warning("outputs: %s of rank %d is left out: %s", left.path, left.rank, left.why)
        chosen = {(file.rank, file.path) for file in self._files}
        skipped = [LeftOut(f.path, f.rank, "") for f in listed if (f.rank, f.path) not in chosen]
        # From here on nobody takes half of it for the whole.
        self._before = await insisted(self._place.withdraw, "outputs", lambda why: None)
        self.skipped = skipped
        log.info("outputs: %d files of %d ranks go to %s", len(self._files), self._config.world_size, self._url)

    async def _complete(self) -> None:
        config, (step, checkpoint) = self._config, self._standing()
        manifest = OutputsManifest(
            protocol.FORMAT, config.namespace, config.job, config.attempt, step, checkpoint, self._files,
            self._left_out[:MOST_LEFT_OUT],
        )  # fmt: skip
        sha256 = await insisted(lambda: self._place.complete(manifest, self._before), "outputs", lambda why: None)
        size = sum(file.size for file in self._files)
        told = StoredOutputs(
            self._url, len(self._files), size, sha256, config.attempt, step, checkpoint, len(self._left_out)
        )
        try:
            await self._controller.outputs(told, time.monotonic() + TELL_S)
        except ControllerError as error:
            raise ControllerError(
                f"the outputs are complete at {self._url}, but the job does not know: {error}"
            ) from error
        self.stored = True
        log.info("outputs: complete at %s, %d files, %d bytes", self._url, len(self._files), size)
