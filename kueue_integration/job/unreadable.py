"""An annotation that cannot be read, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from singularity_proxy.protocol.decode import Unreadable

from ..contract import attempt_records
from ..errors import BadAnnotationError
from ..kube.resources import Object, annotation

T = TypeVar("T")


@dataclass(frozen=True)
class UnreadableAnnotation:
    """Annotation `name` of a Job says `text`; `why` it is not what it should be."""

    name: str
    text: str
    why: str
    newer: bool = False
    """A newer release writes the Job in a format that this one does not know."""


def named(owner: Object, name: str, found: T | Unreadable) -> T | UnreadableAnnotation:
    """`found`, which was read from annotation `name` of `owner`; what cannot be read knows where it stands."""
    if isinstance(found, Unreadable):
        return UnreadableAnnotation(name, annotation(owner, name) or "", found.why, attempt_records.newer(owner))
    return found


def required(found: T | UnreadableAnnotation) -> T:
    """For whoever cannot do without. Raises BadAnnotationError."""
    if isinstance(found, UnreadableAnnotation):
        raise BadAnnotationError(found.name, found.text, found.why, found.newer)
    return found


def readable_or(found: T | UnreadableAnnotation, default: T) -> T:
    """`found`, or `default` in place of what cannot be read."""
    return default if isinstance(found, UnreadableAnnotation) else found
