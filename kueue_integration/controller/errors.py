"""Errors of the controller, part of the package's one tree."""

from __future__ import annotations

from ..errors import SingularityError

MAX_SENTENCE = 1000
"""Most characters of an answer: it may quote a user's text."""


class BadAnnotationError(SingularityError):
    """An annotation that the controller depends on cannot be read. Guessing could resume wrongly, so it does not."""

    def __init__(self, name: str, value: str, problem: str, newer: bool = False) -> None:
        shown = value if len(value) <= 80 else value[:77] + "..."
        fix = "Repair it, or delete the Job"
        if newer:
            fix = "It need not be damaged: a newer release has written it: upgrade the controller"
        super().__init__(f"annotation {name} of the Job is {shown!r}: {problem}. {fix}")
        self.annotation = name


class ConfigError(SingularityError):
    """A setting of the controller is missing or invalid. Names the environment variable."""


class RefusedError(SingularityError):
    """A pod's message is refused. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message if len(message) <= MAX_SENTENCE else message[: MAX_SENTENCE - 3] + "...")
        self.status = status
