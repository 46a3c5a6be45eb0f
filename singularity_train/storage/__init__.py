"""The state of a training job on disk: content-addressed, checked, committed by a manifest, for any number of ranks.

Nothing here knows what a value means to the training, or when it is saved.
"""

from .checkpoints import Checkpoints, Figures, Saved, check
from .errors import (
    ArgumentError,
    DamagedError,
    FormatError,
    LostRankError,
    MismatchError,
    NoSpaceError,
    StateStorageError,
    UnsavableError,
    WriteError,
)
from .reader import BlobReader
from .writer import BlobWriter

__all__ = [
    "ArgumentError", "BlobReader", "BlobWriter", "Checkpoints", "DamagedError", "Figures", "FormatError",
    "LostRankError", "MismatchError", "NoSpaceError", "Saved", "StateStorageError", "UnsavableError", "WriteError",
    "check",
]  # fmt: skip
