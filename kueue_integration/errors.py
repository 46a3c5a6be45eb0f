"""Every error that this package raises on purpose derives from `SingularityError`.

    SingularityError
        SpecError
        PlatformError
            ChartError
        JobNotFoundError
        ConflictError
        RequestRefusedError
        RequestTimeoutError
        StoreSaidNo
        BadAnnotationError
        KubeError
            Unreachable
            NotFound
            Conflict
            AlreadyExists
            Gone
            Forbidden
            Invalid
"""

from __future__ import annotations

from collections.abc import Sequence


class SingularityError(Exception):
    """Base class. The message is a sentence that says what to do."""


class SpecError(SingularityError, ValueError):
    """A TrainSpec is invalid. `problems` has one `(field, value, sentence)` per problem."""

    def __init__(self, problems: Sequence[tuple[str, object, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{name} = {value!r}: {text}" for name, value, text in problems))


class PlatformError(SingularityError):
    """The cluster lacks something: our chart, Kueue, a CRD version, a permission."""


class ChartError(PlatformError):
    """The chart is not installed, or what it has published cannot be read. `why` is the message without the remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        self.why = why
        super().__init__(f"{why}. {remedy}")


class JobNotFoundError(SingularityError):
    """No Job of that name, or one that this project does not manage."""


class ConflictError(SingularityError):
    """A Job of that name exists and belongs to somebody else."""


class RequestRefusedError(SingularityError, ValueError):
    """A job cannot be resized, moved, checkpointed, ... as asked. `problem` is (field, value, sentence)."""

    def __init__(self, problem: tuple[str, object, str]) -> None:
        self.problem = problem
        name, value, text = problem
        super().__init__(f"{name} = {value!r}: {text}")


class RequestTimeoutError(SingularityError, TimeoutError):
    """The controller is not done with a request; it goes on with it."""


class StoreSaidNo(SingularityError):
    """The checkpoint store answered a question with an error: something is not there, or damaged."""


class BadAnnotationError(SingularityError):
    """An annotation that somebody depends on cannot be read. Guessing could resume wrongly, so it does not."""

    def __init__(self, name: str, value: str, problem: str, newer: bool = False) -> None:
        shown = value if len(value) <= 80 else value[:77] + "..."
        fix = "Repair it, or delete the Job"
        if newer:
            fix = "It need not be damaged: a newer release has written it: upgrade the controller"
        super().__init__(f"annotation {name} of the Job is {shown!r}: {problem}. {fix}")
        self.annotation = name


# --- answers of the Kubernetes API --------------------------------------------------------------------------------
class KubeError(SingularityError):
    """The API server refused a request or could not be reached.

    `status` is the HTTP status (0: no answer), `reason` the `reason` of the Kubernetes Status object. `denied` says
    that it has causes: the object itself is not wanted, and no right is missing.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "", denied: bool = False) -> None:
        self.status = status
        self.reason = reason
        self.denied = denied
        super().__init__(message)

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later without anybody changing anything."""
        return self.status == 0 or self.status == 429 or self.status >= 500


class Unreachable(KubeError):
    """No answer: connection refused or lost, timeout, TLS failure."""


class NotFound(KubeError):
    """404."""


class Conflict(KubeError):
    """409 on a change: the object is not at the resourceVersion (or uid) that the request named."""


class AlreadyExists(KubeError):
    """409 on a create: the name is taken."""


class Gone(KubeError):
    """410: the resourceVersion of a watch is too old; list again."""


class Forbidden(KubeError):
    """401 or 403: no or wrong credentials, a missing permission, or an admission policy that said no."""


class Invalid(KubeError):
    """400 or 422: the object is not valid, or an admission policy refused it."""
