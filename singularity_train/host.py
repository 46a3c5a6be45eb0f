"""What the place where a job runs tells the library, and is told: where state goes, whether to stop, how far it is.

This is the seam: whoever runs the job gives another Host. On a laptop it is the environment and SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

ENV_DIRECTORY = "SINGULARITY_TRAIN_DIR"
"""Folder for checkpoints, the same one on all ranks. Not set: nothing is saved."""
PROGRESS_FILE = "progress.json"
REPORT_S = 1.0
"""Reports in between are dropped: a step may take a millisecond."""


class Host(Protocol):
    """One rank's view. All methods are called between operations of the training, and must not block."""

    def directory(self) -> Path | None:
        """Where checkpoints are; None: the job keeps none."""

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
    """Folder from the script or the environment; SIGTERM asks for a stop, a second one ends the process.

    :param directory: None: what SINGULARITY_TRAIN_DIR says
    :param rank: the first one writes `progress.json` into the folder
    """

    def __init__(self, directory: str | os.PathLike[str] | None, rank: int) -> None:
        self._directory = local_directory(directory)
        self._rank, self._stop, self._reported = rank, False, 0.0
        self._before: Any = None
        self.listen()

    def listen(self) -> None:
        """Be what SIGTERM reaches, also where a framework has put its own handler in place in the meantime."""
        # Without a folder a stop would save nothing: the signal keeps its meaning.
        if self._directory is None or threading.current_thread() is not threading.main_thread():
            return
        before = signal.signal(signal.SIGTERM, self._asked)
        if self._before is None:
            self._before = before

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
        self._restore()

    def _restore(self) -> None:
        if self._before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def directory(self) -> Path | None:
        return self._directory

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
