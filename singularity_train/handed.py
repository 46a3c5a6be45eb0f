"""Checkpoints that the host asks for: it names the folder, and keeps what is written there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from . import reduce
from .errors import StateError

State = Callable[[], tuple[dict[str, Any], Mapping[str, Any]]]
"""Makes the tree of values and the description of a checkpoint."""
log = logging.getLogger("singularity_train")


def savable(state: State) -> None:
    """Make what a checkpoint would have, and drop it: what cannot be stored ends a job in its first minute, and not at
    its first stop. Collective.

    :raises StateError: on all ranks, with the rank where it happened
    """
    from .storage import check

    problem = ""
    try:
        check(*state())
    except Exception as error:
        problem = f"rank {reduce.world()[0]}: {error}"
        log.debug("the state cannot be saved", exc_info=True)
    problem = reduce.first_of(problem)
    if problem:
        raise StateError(f"after the first step the state cannot be saved, and a stop would lose it. {problem}")


class Order:
    """A save that the host has the folder for, and that has not begun. All ranks call the same one of the two."""

    def __init__(self, checkpoints: Any, state: tuple[dict[str, Any], Mapping[str, Any]], step: int) -> None:
        self._checkpoints, self._state, self._step = checkpoints, state, step

    def now(self) -> None:
        """It is stored when this returns. Takes no memory but for what is written at the moment.

        :raises StateStorageError: on all ranks, which all train on
        """
        self._checkpoints.save(*self._state, step=self._step)

    def in_background(self) -> Future[str]:
        """Returns when the state is copied out of the tensors, which takes as much memory. The future is done when the
        copy is stored, or has what went wrong.

        :raises StateStorageError: on all ranks: the state cannot be stored
        """
        found: Future[str] = self._checkpoints.save_async(*self._state, step=self._step)
        return found


class Handed:
    """Of one attempt. Each rank writes into a folder that it has to itself."""

    def __init__(self) -> None:
        self._checkpoints: Any = None

    def save(self, folder: Path, state: State, step: int) -> Order:
        """How to write the state after `step` steps. Collective. Waits for a save in the background.

        :raises StateError: on all ranks, which all train on
        """
        from .storage import Checkpoints

        problem, made = "", None
        try:
            made = state()
        except Exception as error:
            problem = f"rank {reduce.world()[0]}: {error}"
        problem = reduce.first_of(problem)
        if made is None or problem:
            raise StateError(problem)
        if self._checkpoints is None:
            self._checkpoints = Checkpoints(folder, shared=False)
        self._checkpoints.turn_to(folder)
        return Order(self._checkpoints, made, step)

    def wait(self) -> None:
        """Until nothing is saved in the background. Who has asked for it learns the outcome."""
        if self._checkpoints is not None:
            self._checkpoints.wait()

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
