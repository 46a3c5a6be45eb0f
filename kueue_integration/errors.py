"""Every error that this package raises on purpose derives from `SingularityError`."""

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


class JobNotFoundError(SingularityError):
    """No Job of that name, or one that this project does not manage."""


class ConflictError(SingularityError):
    """A Job of that name exists and belongs to somebody else."""
