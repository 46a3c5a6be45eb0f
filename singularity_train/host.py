"""What the place where a job runs tells the library, and hears: where state goes, whether to stop, how far it is.

This is the seam: whoever runs the job gives another Host. On a laptop it is the environment, SIGTERM and Ctrl-C. In
managed pods the environment names the function that makes it (`environment.ENV_HOST`).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from .environment import ENV_HOST
from .errors import UsageError
from .handed import Order

ENV_DIRECTORY = "SINGULARITY_TRAIN_DIR"
"""Folder for checkpoints, the same one on all ranks. Not set: nothing is saved."""
PROGRESS_FILE = "progress.json"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What asks for a stop on a laptop. torchrun passes Ctrl-C on to each rank as SIGINT."""
REPORT_S = 1.0
"""Reports in between are dropped: a step may take a millisecond."""


Write = Callable[[Path], Order]
"""For an empty folder that this rank has to itself: how to save the state there, now or in the background. Collective:
all ranks call it in the same step, and then the same method of what it returns."""


class Host(Protocol):
    """One rank's view. All methods are called between operations of the training. Only `boundary` may block."""

    def directory(self) -> Path | None:
        """Where the job keeps its checkpoints; None: it keeps none by itself."""

    def start(self) -> Path | None:
        """Folder with the checkpoint that the job has to begin with; None: with the newest one in `directory`, if any.
        """

    def attached(self, step: int) -> None:
        """The state is that after `step` steps; the loop may begin."""

    def not_restored(self, why: str) -> None:
        """The checkpoint of `start` is damaged. An exception ends the rank next, on all ranks."""

    def boundary(self, step: int, write: Write) -> None:
        """Between two steps, on each rank. It may wait, and call `write` if it does so on all ranks."""

    def stop_requested(self) -> bool:
        """Whether this rank knows of a request. One rank that knows is enough: the ranks agree among themselves."""

    def save_requested(self) -> bool:
        """Whether a checkpoint is wanted that the job goes on from at once. The answer is given once per request."""

    def report(self, progress: Mapping[str, Any]) -> None:
        """:param progress: JSON, after each step, on each rank"""

    def saved(self, checkpoint: str, step: int) -> None:
        """A checkpoint is committed."""

    def close(self) -> None:
        """The job is over."""


def local_directory(directory: str | os.PathLike[str] | None) -> Path | None:
    """What a script names, else what the environment does."""
    named = directory if directory is not None else os.environ.get(ENV_DIRECTORY) or None
    return None if named is None else Path(named)


class LocalHost:
    """Folder from the script or the environment; SIGTERM or Ctrl-C asks for a stop, a second one ends the process.

    :param directory: None: what SINGULARITY_TRAIN_DIR says
    :param rank: the first one writes `progress.json` into the folder
    """

    def __init__(self, directory: str | os.PathLike[str] | None, rank: int) -> None:
        self._directory = local_directory(directory)
        self._rank, self._stop, self._reported = rank, False, 0.0
        self._before: dict[signal.Signals, Any] = {}
        self.listen()

    def listen(self) -> None:
        """Be what the signals reach, also where a framework has put its own handler in place in the meantime."""
        # Without a folder a stop would save nothing: the signal keeps its meaning.
        if self._directory is None or threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            # A job that a shell runs in the background ignores Ctrl-C, which is for the program in front.
            if number is signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before.setdefault(number, signal.signal(number, self._asked))

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
        self._restore()

    def _restore(self) -> None:
        if threading.current_thread() is threading.main_thread():
            while self._before:
                signal.signal(*self._before.popitem())

    def directory(self) -> Path | None:
        return self._directory

    def start(self) -> Path | None:
        return None

    def attached(self, step: int) -> None:
        """The script knows it."""

    def not_restored(self, why: str) -> None:
        """The exception says it."""

    def boundary(self, step: int, write: Write) -> None:
        """A stop is agreed on in the step itself."""

    def stop_requested(self) -> bool:
        return self._stop

    def save_requested(self) -> bool:
        return False

    def report(self, progress: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if self._directory is None or self._rank or now - self._reported < REPORT_S:
            return
        self._reported = now
        self._directory.mkdir(parents=True, exist_ok=True)
        draft = self._directory / f"{PROGRESS_FILE}.draft"
        draft.write_text(json.dumps(progress) + "\n")
        draft.replace(self._directory / PROGRESS_FILE)

    def saved(self, checkpoint: str, step: int) -> None:
        """The folder shows it."""

    def close(self) -> None:
        self._restore()


def start_of_environment() -> Path | None:
    """`Host.start` of the host that the environment names, for those who ask before the ranks have met.

    :raises UsageError: the environment names a host that cannot be made
    """
    named = os.environ.get(ENV_HOST, "")
    if not named:
        return None
    try:
        found: Path | None = importlib.import_module(named.partition(":")[0]).start()
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{ENV_HOST} = {named!r}: {error}") from error
    return found


def of_environment(directory: str | os.PathLike[str] | None, rank: int, world_size: int) -> Host:
    """The host that the environment names, else the laptop's.

    :raises UsageError: the environment names a host that cannot be made, or one of another world
    """
    named = os.environ.get(ENV_HOST, "")
    if not named:
        return LocalHost(directory, rank)
    module, _, function = named.partition(":")
    try:
        made: Host | None = getattr(importlib.import_module(module), function)(rank, world_size)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{ENV_HOST} = {named!r}: {error}") from error
    return LocalHost(directory, rank) if made is None else made
