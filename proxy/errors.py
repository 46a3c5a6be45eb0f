"""Every error that `proxy.store` and `proxy.sidecar` raise on purpose derives from `ProxyError`.

`proxy.protocol` raises its own `MessageError` (a ValueError): it stands alone. Messages are sentences for the person
who reads the pod's log or `status`: they name the thing, its value, and what to do.
"""

from __future__ import annotations


class ProxyError(Exception):
    """Base class. `passes`: nothing is wrong with the job, and the next attempt may fare better."""

    passes = False


class ConfigError(ProxyError):
    """The sidecar's environment lacks a variable or has a bad value."""


class StoreError(ProxyError):
    """The checkpoint store cannot be reached, read or written."""


class StoreAwayError(StoreError):
    """The store did not answer, or answered with errors that pass, for as long as was waited."""

    passes = True


class CheckpointNotFoundError(StoreError):
    """The store holds no manifest of that id."""


class CorruptChunkError(StoreError):
    """A pack or a recipe is missing, or its content does not match its name."""

    def __init__(self, kind: str, digest: str, where: str, problem: str) -> None:
        self.digest = digest
        self.where = where
        super().__init__(f"{kind} {digest} of {where} {problem}: this checkpoint cannot be restored")


class RestoreRefusedError(ProxyError):
    """The checkpoint does not fit this pod (world size, architecture, format)."""


class StaleAttemptError(ProxyError):
    """The controller says that this attempt is not the current one: stop, and write nothing."""


class ControllerError(ProxyError):
    """The controller could not be reached, or answered with an error, until the deadline."""

    passes = True


class MeshError(ProxyError):
    """A sidecar of another pod could not be reached, or answered nonsense."""
