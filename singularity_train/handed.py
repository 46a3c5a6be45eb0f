"""Checkpoints that the host asks for: it names the folder, and keeps what is written there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import reduce
from .errors import StateError

State = Callable[[], tuple[dict[str, Any], Mapping[str, Any]]]
"""Makes the tree of values and the description of a checkpoint."""


class Handed:
    """Of one attempt. Each rank writes into a folder that it has to itself."""

    def __init__(self) -> None:
        self._checkpoints: Any = None

    def save(self, folder: Path, state: State, step: int) -> None:
        """Write the state after `step` steps. Collective.

        :raises StateError, StateStorageError: on all ranks, which all train on
        """
        from .storage import Checkpoints

        problem, made = "", None
        try:
            made = state()
        except Exception as error:
            problem = f"rank {reduce.world()[0]}: {error}"
        problem = next(filter(None, reduce.gathered(problem)), "")
        if made is None or problem:
            raise StateError(problem)
        if self._checkpoints is None:
            self._checkpoints = Checkpoints(folder, shared=False)
        self._checkpoints.turn_to(folder)
        self._checkpoints.save(*made, step=step)

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
