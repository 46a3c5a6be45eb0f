"""The variable that names whoever runs the job, and what brings files of a checkpoint from there."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from .errors import UsageError

ENV_HOST = "SINGULARITY_TRAIN_HOST"
"""`module:function` of whoever runs the job: `function(rank, world_size)` makes a Host, or returns None for a process
that is none of the job's ranks. It raises ValueError where the ranks are not those of the job. The module has
`start()` too, which is `Host.start`. It may have `bring(root)`, as `bring_of_environment` says."""

Bring = Callable[[Iterable[tuple[str, int, int]]], None]
"""Brings parts of files below a folder: (path, first byte, byte after the last). Raises OSError."""


def bring_of_environment(root: Path) -> Bring | None:
    """What brings files of the checkpoints in `root`, where the host has not laid all of them there. Else None.

    :raises UsageError: the environment names a host that cannot be made
    """
    named = os.environ.get(ENV_HOST, "")
    if not named:
        return None
    try:
        module = importlib.import_module(named.partition(":")[0])
    except ImportError as error:
        raise UsageError(f"{ENV_HOST} = {named!r}: {error}") from error
    found: Bring | None = module.bring(root) if hasattr(module, "bring") else None
    return found
