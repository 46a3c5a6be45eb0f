"""Every error that `store` and `sidecar` raise on purpose derives from `ProxyError`.

`protocol` raises its own `MessageError` (a ValueError): it stands alone. Messages are sentences for the person
who reads the pod's log or `status`: they name the thing, its value, and what to do.

    ProxyError
        ConfigError
        StoreError
            StoreAwayError
            KeyLostError
            DamageError
                CheckpointNotFoundError
                CorruptChunkError
        RestoreRefusedError
        StaleAttemptError
        ControllerError
        MeshError
"""

from __future__ import annotations

from .protocol import exit_codes


class ProxyError(Exception):
    """Base class. `passes`: nothing is wrong with the job, and the next attempt may fare better.

    `exit_code`: what the training container ends with (`protocol.exit_codes`) if it cannot start for it.
    """

    passes = False

    @property
    def exit_code(self) -> int:
        return exit_codes.LOST if self.passes else exit_codes.PROTOCOL


class ConfigError(ProxyError):
    """The sidecar's environment lacks a variable or has a bad value."""


class StoreError(ProxyError):
    """The checkpoint store cannot be reached, read or written."""


class StoreAwayError(StoreError):
    """The store did not answer, or answered with errors that pass, for as long as was waited."""

    passes = True


class KeyLostError(StoreError):
    """What is encrypted cannot be read, or nothing can be encrypted, without a key that is not here. Nothing is wrong
    with the checkpoint, and the job goes on once the key is back."""

    passes = True


class DamageError(StoreError):
    """The store answers, and something of a checkpoint is missing, or is not what was committed."""

    @property
    def exit_code(self) -> int:
        return exit_codes.NOT_RESTORED


class CheckpointNotFoundError(DamageError):
    """The store holds no manifest of that id."""


class CorruptChunkError(DamageError):
    """A pack or a recipe is missing, or its content does not match its name."""

    def __init__(self, kind: str, digest: str, where: str, problem: str) -> None:
        self.digest = digest
        self.where = where
        super().__init__(f"{kind} {digest} of {where} {problem}: this checkpoint cannot be restored")


class RestoreRefusedError(ProxyError):
    """The checkpoint does not fit this pod (world size, architecture, format). It may fit another one."""

    @property
    def exit_code(self) -> int:
        return exit_codes.NOT_RESTORED


class StaleAttemptError(ProxyError):
    """The controller says that this attempt is not the current one: stop, and write nothing."""


class ControllerError(ProxyError):
    """The controller could not be reached, or answered with an error, until the deadline."""

    passes = True


class MeshError(ProxyError):
    """A sidecar of another pod could not be reached, answered nonsense, or has not said what all wait for."""

    passes = True
