"""Ranks that had ended when the others were saved. All that is kept of such a rank is that, and its last step.

Its output has been shown, and nobody reads its files any more, but for those that it leaves for others (`$OUTPUTS`).
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass

from ...protocol import decode, names, page
from ...protocol.decode import Unreadable
from ...protocol.messages import Plan
from .. import pagewords
from ..errors import RestoreError
from ..paths import Paths
from . import outputs

LARGEST = 1 << 16


@dataclass(frozen=True)
class EndedRank:
    rank: int
    step: int


def tell(paths: Paths, rank: int, step: int | None = None) -> None:
    """Write to the page that `rank` has ended well, so that nobody waits for it. `step`: None, as it stands there."""
    count = pagewords.read(paths.run, rank, page.R_COUNT) if step is None else step
    with contextlib.suppress(OSError):  # without a page nobody looks
        pagewords.write(paths.run, rank, count, page.STATE_ENDED)


def save(paths: Paths, checkpoint: str, rank: int) -> None:
    """Its image. Raises OSError."""
    folder = paths.image(checkpoint, rank)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record = EndedRank(rank, pagewords.read(paths.run, rank, page.R_COUNT))
    (folder / names.ENDED_FILE).write_text(json.dumps(asdict(record)))
    outputs.pack(paths, rank, folder)


def among(plan: Plan, paths: Paths) -> dict[int, int]:
    """Rank -> its last step, for those ranks of the plan that had ended. Raises RestoreError."""
    found = {}
    for rank in plan.ranks:
        path = paths.image(plan.checkpoint_id, rank) / names.ENDED_FILE
        if path.exists():
            try:
                record = decode.message(EndedRank, path.read_bytes(), LARGEST)
            except OSError as error:
                record = Unreadable(str(error))
            if isinstance(record, Unreadable):
                raise RestoreError(f"{path} cannot be used: {record.why}; the image is incomplete")
            if record.rank != rank:
                raise RestoreError(f"{path} is of rank {record.rank}, wanted rank {rank}")
            found[rank] = record.step
    return found
