"""What can go wrong with stored state. Each message names field, value and fix.

    StateStorageError
        ArgumentError
        UnsavableError
        MismatchError
        FormatError
        DamagedError
        WriteError
            NoSpaceError
        LostRankError
"""

from __future__ import annotations

import errno
from pathlib import Path

from ..errors import TrainError


class StateStorageError(TrainError):
    """Root. The one argument is the sentence, so that it travels between ranks as it is."""


class ArgumentError(StateStorageError, ValueError):
    """A call was wrong; nothing was written or read."""


class UnsavableError(StateStorageError):
    """An object or a tensor of the state cannot be stored."""


class MismatchError(StateStorageError):
    """The state asked for is not the state that was saved."""


class FormatError(StateStorageError):
    """A checkpoint of another program, engine or version."""


class DamagedError(StateStorageError):
    """Stored bytes are missing, or are not those that were written."""


class WriteError(StateStorageError):
    """The folder cannot be written."""


class NoSpaceError(WriteError):
    """The folder is full."""


class LostRankError(StateStorageError):
    """A rank went away, or came too late."""


FULL = (errno.ENOSPC, errno.EDQUOT)


def of_write(path: Path, error: OSError) -> WriteError:
    """The sentence of a write that failed."""
    if error.errno in FULL:
        return NoSpaceError(
            f"root = {path.parent}: no space is left ({error.strerror}); the checkpoint before is intact; "
            "make room, or keep fewer checkpoints"
        )
    return WriteError(f"root = {path.parent}: cannot write {path.name}: {error}; give a folder that can be written")
