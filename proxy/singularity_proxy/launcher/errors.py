"""Every error that this package raises on purpose derives from `LauncherError`.

    LauncherError
        CommandError
        SidecarError
            SidecarAwayError
        MeetingError
        SlotError
        DumpError
        RestoreError
"""

from __future__ import annotations

from ..protocol import exit_codes


class LauncherError(Exception):
    """Base class. The message is a sentence for the person who reads the pod's log.

    :param exit_code: the launcher's, if it differs from the code of the class; see `protocol.exit_codes`
    """

    exit_code = exit_codes.PROTOCOL

    def __init__(self, text: str, exit_code: int | None = None) -> None:
        super().__init__(text)
        if exit_code is not None:
            self.exit_code = exit_code


class CommandError(LauncherError):
    """The user's command cannot work under this launcher."""

    exit_code = exit_codes.COMMAND


class SidecarError(LauncherError):
    """The sidecar sent an invalid message, or refused to give a plan: then the exit code is the code that the refusal
    names."""


class SidecarAwayError(SidecarError):
    """The sidecar cannot be reached: for example, it was killed too often."""

    exit_code = exit_codes.LOST


class MeetingError(LauncherError):
    """The ranks were restored, but did not meet those of the other pods."""

    exit_code = exit_codes.LOST


class SlotError(LauncherError):
    """A slot for a rank cannot be made; usually a capability or a tool is missing."""


class DumpError(LauncherError):
    """The ranks cannot be dumped. They still exist and can be resumed.

    :param passes: it was a bad moment, and the next may be better
    """

    def __init__(self, text: str, exit_code: int | None = None, *, passes: bool = False) -> None:
        super().__init__(text, exit_code)
        self.passes = passes


class RestoreError(LauncherError):
    """The images were not restored in this pod. With exit code LOST: what was missing may come back."""

    exit_code = exit_codes.NOT_RESTORED
