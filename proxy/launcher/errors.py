"""Every error that this package raises on purpose derives from `LauncherError`."""

from __future__ import annotations

from ..protocol import names


class LauncherError(Exception):
    """Base class. The message is a sentence for the person who reads the pod's log. `exit_code` is the launcher's."""

    exit_code = names.EXIT_PROTOCOL


class CommandError(LauncherError):
    """The user's command cannot work under this launcher."""

    exit_code = 2


class SidecarError(LauncherError):
    """The sidecar cannot be reached, or says something impossible."""


class LaterError(LauncherError):
    """Nothing can be done in this attempt, for a reason that passes: the store or the controller was away."""

    exit_code = names.EXIT_PREEMPTED


class SlotError(LauncherError):
    """A slot for a rank cannot be made; usually a capability or a tool is missing."""


class DumpError(LauncherError):
    """The ranks cannot be dumped. They still exist and can be resumed."""


class RestoreError(LauncherError):
    """The images cannot be restored in this pod."""

    exit_code = names.EXIT_RESTORE_FAILED
