"""Which checkpoints of a job its leader deletes. Pure; the order is that of the commits, no clock is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..protocol.messages import CheckpointRef
from ..store.catalog import Listing

KEEP: Final = 3
"""Committed checkpoints of a job that stay in the store, besides the pinned ones."""


def needs(committed: Sequence[CheckpointRef], checkpoint: str) -> bool:
    """Whether the job may have to go back to `checkpoint` because newer ones are damaged.

    :param committed: what the job knows, newest first
    """
    return checkpoint in [ref.id for ref in committed if not ref.passed_over][:KEEP]


def superseded(listed: Sequence[Listing], committed: Sequence[CheckpointRef], under_way: str) -> list[str]:
    """Ids of what can go.

    Never one of the newest committed checkpoints: if the last one is damaged, an older one of them is restored. While
    fewer than KEEP of them are known, the other checkpoints with the highest numbers take their place. One that is
    damaged, or whose restores have failed, is deleted when KEEP newer ones exist: until then somebody may mend it.

    :param listed: what the store has of the job
    :param committed: what the job knows, newest first
    :param under_way: the checkpoint that is being committed now, if any
    """
    usable = [ref for ref in committed if not ref.passed_over][:KEEP]
    damaged = {ref.id: ref.generation for ref in committed if ref.passed_over}
    enough = usable[-1].generation if len(usable) == KEEP else 0
    spared = {under_way, *(ref.id for ref in usable)}
    others = sorted(
        ((x.manifest.generation, x.id) for x in listed
         if x.manifest is not None and not x.pinned and x.id not in spared and x.id not in damaged),
        reverse=True,
    )  # fmt: skip
    old = [x.id for x in listed if not x.pinned and damaged.get(x.id, enough) < enough]
    return old + [name for _, name in others[KEEP - len(usable) :]]
