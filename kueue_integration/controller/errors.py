"""Errors of the controller, part of the package's one tree."""

from __future__ import annotations

from ..errors import SingularityError

MAX_SENTENCE = 1000
"""Most characters of an answer: it may quote a user's text."""


class ConfigError(SingularityError):
    """A setting of the controller is missing or invalid. Names the environment variable."""


class RefusedError(SingularityError):
    """A pod's message is refused. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message if len(message) <= MAX_SENTENCE else message[: MAX_SENTENCE - 3] + "...")
        self.status = status
