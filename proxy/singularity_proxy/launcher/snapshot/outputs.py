"""`$OUTPUTS` of the ranks: how it travels where the rank's own folder does not, and how the sidecar comes to read it.

With the process engine the folder is part of the rank's working directory, which travels. A rank that had ended, and
one of the state engine, has an archive of it in its image instead.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

from ...protocol import names
from ...protocol.messages import Plan
from ..paths import Paths
from . import image

TRIES: Final = 3


def pack(paths: Paths, rank: int, folder: Path) -> None:
    """Put the rank's outputs into its image at `folder`, if it has any. Raises OSError.

    A rank of the state engine goes on meanwhile, and may delete what is about to be read.
    """
    outputs = paths.outputs(rank)
    if not outputs.is_dir() or outputs.is_symlink() or not any(outputs.iterdir()):
        return
    for left in reversed(range(TRIES)):
        try:
            image.pack(outputs, folder / names.OUTPUTS_TAR)
            return
        except (OSError, tarfile.TarError) as error:
            if not left:
                raise OSError(f"{outputs} changes all the time: {error}") from error


def unpack(paths: Paths, plan: Plan, over: Collection[int] = ()) -> None:
    """Put back what such images have. Raises RestoreError.

    :param over: ranks that had ended; of the others, those that begin anew from a state have an archive

    With the state engine there may be fewer ranks than before. Those that are left take what the others had, and keep
    what they have of the same name.
    """
    if not plan.outputs:
        return
    for rank in over:
        archive = paths.image(plan.checkpoint_id, rank) / names.OUTPUTS_TAR
        if archive.exists():
            image.unpack(archive, paths.outputs(rank))
    if plan.through != "state":
        return
    for places in (paths.images(plan.checkpoint_id), paths.outputs_from):
        for folder in sorted(places.glob("rank-*"), key=lambda each: -int(each.name.removeprefix("rank-"))):
            heir = int(folder.name.removeprefix("rank-")) % plan.world_size
            for archive in (folder / names.OUTPUTS_TAR, folder / names.STATE_PART / names.OUTPUTS_TAR):
                if heir in plan.ranks and archive.exists():
                    image.unpack(archive, paths.outputs(heir))
    shutil.rmtree(paths.outputs_from, ignore_errors=True)


def hand_over(paths: Paths, plan: Plan) -> list[str]:
    """Let the sidecar, which has no capability, read what the ranks of this pod wrote. They have ended.

    Returns sentences about what cannot be read.
    """
    return [text for rank in plan.ranks for text in _open(paths.outputs(rank))] if plan.outputs else []


def _open(folder: Path) -> list[str]:
    uid, problems = os.geteuid(), list[str]()

    def own(name: str, at: int | None, path: str) -> None:
        try:
            state = os.stat(name, dir_fd=at, follow_symlinks=False)
            if stat.S_ISLNK(state.st_mode):
                return
            if state.st_uid != uid:
                os.chown(name, uid, -1, dir_fd=at, follow_symlinks=False)
            wanted = 0o500 if stat.S_ISDIR(state.st_mode) else 0o400
            if state.st_mode & wanted != wanted:
                # No link: it was looked at, and nobody is left who could replace it.
                os.chmod(name, stat.S_IMODE(state.st_mode) | wanted, dir_fd=at)
        except OSError as error:
            problems.append(f"outputs: {path}: {error.strerror}")

    if not folder.is_dir() or folder.is_symlink():
        return []
    own(str(folder), None, str(folder))
    for top, folders, files, at in os.fwalk(folder):
        for name in (*folders, *files):
            own(name, at, f"{top}/{name}")
    return problems
