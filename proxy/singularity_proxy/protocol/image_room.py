"""How much room there is for images: on the disk, and within the limit of the volume that they lie in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import names

RESERVE: Final = 16 * 2**20
"""Bytes of the limit that nobody plans with: CRIU's own files beside the pages, and what the sidecar writes."""
_SPILL_PART: Final = 4


@dataclass(frozen=True)
class Room:
    """`left` bytes may still be written. `words` say why there are no more, `fix` what to do.

    `limited`: the volume's limit says so, which is the same on every node.
    """

    left: int
    words: str
    fix: str
    limited: bool

    @property
    def spill(self) -> int:
        """Bytes that the sidecar may keep of streamed pages that another pod stores first. The launcher counts on the
        rest."""
        return self.left // _SPILL_PART


def limit(env: Mapping[str, str]) -> int | None:
    """Bytes that the volume may hold, None: no limit. Raises ValueError that names the variable."""
    text = env.get(names.ENV_IMAGE_ROOM)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{names.ENV_IMAGE_ROOM} = {text!r}: wanted a number of bytes")
    return int(text)


def of(images: Path, most: int | None) -> Room:
    """What `images`, the folder of all checkpoints, has room for. Over `most` bytes the kubelet evicts the pod."""
    disk = os.statvfs(images)
    free = disk.f_bavail * disk.f_frsize
    if most is None or free <= (left := max(0, most - RESERVE - used(images))):
        words = f"{images} has {free / 2**20:.0f} MiB free"
        return Room(free, words, "Give the node's disk more room, or the ranks less memory", limited=False)
    words = f"{images} may hold {left / 2**20:.0f} MiB more: its limit is {most / 2**20:.0f} MiB"
    return Room(left, words, "Raise checkpoint_disk, or give the ranks less memory", limited=True)


def used(folder: Path) -> int:
    """Bytes on the disk below `folder`; a file with several names counts once."""
    found: dict[tuple[int, int], int] = {}
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                status = Path(path, name).lstat()
            except FileNotFoundError:
                continue  # uploaded, and removed while we look
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())
