"""What can go wrong with stored state. Each message names field, value and fix.

    StateStorageError
        ArgumentError       a call was wrong; nothing was written or read
        UnsavableError      an object or a tensor of the state cannot be stored
        MismatchError       the state asked for is not the state that was saved
        FormatError         a checkpoint of another program, engine or version
        DamagedError        stored bytes are missing or not those that were written
        WriteError          the folder cannot be written
            NoSpaceError    it is full
        LostRankError       a rank went away, or came too late
"""

from __future__ import annotations

import errno
from pathlib import Path


class StateStorageError(Exception):
    """Root. The one argument is the sentence, so that it travels between ranks as it is."""


class ArgumentError(StateStorageError, ValueError):
    pass


class UnsavableError(StateStorageError):
    pass


class MismatchError(StateStorageError):
    pass


class FormatError(StateStorageError):
    pass


class DamagedError(StateStorageError):
    pass


class WriteError(StateStorageError):
    pass


class NoSpaceError(WriteError):
    pass


class LostRankError(StateStorageError):
    pass


FULL = (errno.ENOSPC, errno.EDQUOT)


def of_write(path: Path, error: OSError) -> WriteError:
    """The sentence of a write that failed."""
    if error.errno in FULL:
        return NoSpaceError(
            f"root = {path.parent}: no space is left ({error.strerror}); the checkpoint before is intact; "
            "make room, or keep fewer checkpoints"
        )
    return WriteError(f"root = {path.parent}: cannot write {path.name}: {error}; give a folder that can be written")
