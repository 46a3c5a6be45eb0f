"""Ranks of several pods that go on in one: each sees the container's file system as it was in its own pod.

What two pods have written under one path may differ: shards that each has prepared, caches, locks. Where the files of
all ranks are the same, they share the container's file system. Otherwise the ranks of each former pod get a view: an
overlay over it with that pod's files. The slot makes it its root, with the volumes where they were (`mounts.enter`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import RestoreError
from ..ranks import mounts
from ..ranks.slot import ROOT
from . import container_layer


def unpack(archives: Mapping[int, Path], folder: Path, volumes: Iterable[str]) -> dict[int, Path]:
    """Bring the files of the ranks here. Returns the root file system of each rank.

    :param archives: of each rank
    :param folder: for the views
    :param volumes: where something is mounted
    Raises RestoreError.
    """
    groups, points = container_layer.alike(archives), list(volumes)
    found = {}
    for number, group in enumerate(groups):
        root = ROOT if len(groups) == 1 else _view(folder / str(number), archives, groups)
        container_layer.unpack(archives[group[0]], root, points)
        found.update(dict.fromkeys(group, root))
    return found


def _view(folder: Path, archives: Mapping[int, Path], groups: list[list[int]]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return mounts.overlay(folder)
    except OSError as error:
        one, other = groups[0][0], groups[1][0]
        path = container_layer.difference(archives[one], archives[other])
        raise RestoreError(
            f"ranks {one} and {other} come from two pods whose file {path} is not the same, and no overlay can be "
            f"mounted here to keep both ({error}). Run the job on as many pods as it was saved on, or write below the "
            "working directory"
        ) from None
