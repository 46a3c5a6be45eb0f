"""What can go wrong between a training script and the state engine.

    TrainError
        UsageError
        ContractError
        ModelChangedError
        OptimizerChangedError
        DataError
        StateError

The errors of stored state are a tree below TrainError, drawn in `storage.errors`. An exception of the script itself is
never wrapped: it leaves the loop as it is.
"""

from __future__ import annotations


class TrainError(RuntimeError):
    """Base of all errors of this package."""


class UsageError(TrainError):
    """The script calls the library in a way that cannot work."""


class ContractError(TrainError):
    """This attempt has other settings than the checkpoint: virtual ranks, batch size, seed and the like."""


class ModelChangedError(TrainError):
    """The checkpoint is one of another model; the message names the parameters."""


class OptimizerChangedError(TrainError):
    """The checkpoint is one of another optimizer, scheduler or scaler."""


class DataError(TrainError):
    """The data set cannot be read as the job says, or is not the one of the checkpoint."""


class StateError(TrainError):
    """A checkpoint has no part that this attempt needs."""
