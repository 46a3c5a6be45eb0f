"""Which checkpoint a training goes on from: the newest one that is whole. The library and all adapters ask here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from . import reduce

Made = TypeVar("Made")
log = logging.getLogger("singularity_train")


class Newest:
    """Checkpoints of a folder, from the newest on, as far back as one is whole.

    :param checkpoints: `storage.Checkpoints`, or None
    """

    def __init__(self, checkpoints: Any) -> None:
        self._checkpoints = checkpoints
        self.ids: list[str] = [] if checkpoints is None else reduce.gathered(checkpoints.ids())[0]
        """Of those that are not known to be damaged, the oldest first; the same on all ranks."""

    def take(self, way: Callable[[Any], Made]) -> Made:
        """What `way` makes of the newest checkpoint that it finds whole. Collective; there has to be one in `ids`.

        :param way: called on all ranks with one `storage.Saved` after another; its DamagedError on any rank passes this
            checkpoint over. What it did for one that is passed over, it has to do anew for the next
        :raises DamagedError: on all ranks: none is whole
        """
        from .storage import DamagedError

        damaged: list[str] = []
        while self.ids:
            identity, made = self.ids[-1], None
            saved, problem = _tried(partial(self._checkpoints.get, identity))
            if not problem:
                made, problem = _tried(partial(way, saved))
            if not problem:
                return made  # type: ignore[return-value]
            if len(self.ids) > 1:
                log.warning("checkpoint %s cannot be restored, the one before it is tried: %s", identity, problem)
            damaged.append(problem)
            self.ids.pop()
        raise DamagedError(damaged[0])


def _tried(call: Callable[[], Made]) -> tuple[Made | None, str]:
    """What it makes, and the first DamagedError of a rank, "" for none. Collective."""
    from .storage import DamagedError

    made, problem = None, ""
    try:
        made = call()
    except DamagedError as error:
        problem = str(error)
    return made, reduce.first_of(problem)
