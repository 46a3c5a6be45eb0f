"""Errors of the demo: a branch of the package's one tree."""

from __future__ import annotations

from localcluster.errors import LocalClusterError


class DemoError(LocalClusterError):
    """Base class. The message is a sentence that says what did not happen, or what to do."""


class StoryError(DemoError):
    """The story went another way than it must: a job failed, or ended before it was grown back."""


class StoryTimeoutError(StoryError):
    """A condition did not come true in time."""


class AirflowStartError(DemoError):
    """An Airflow process did not start, died, or did not become healthy."""


class AirflowApiError(DemoError):
    """Airflow's REST API did not answer, or refused. `status` is the HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def transient(self) -> bool:
        """Whether asking again may help: no answer in time, or the server's own trouble."""
        return self.status == 0 or self.status >= 500
