"""Annotations as values: the one place that reads their text, and it never raises. Pure.

Whoever may edit an object may write anything here, whoever the annotation belongs to. What cannot be read comes back as
`Unreadable`: each reader decides what that means for it, and none can forget to.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from singularity_proxy.protocol import decode
from singularity_proxy.protocol.decode import Unreadable

from ..kube.resources import annotation

T = TypeVar("T")
Owner = Mapping[str, Any] | None
"""Any Kubernetes object, or none."""
MAX_TEXT: Final = 256 * 1024
"""Bytes of one annotation that are looked at: the API server's own limit for all annotations of an object, so that
nothing that is stored is too long."""
KEPT: Final = 256
"""Messages that are read again and again while one object is looked at; all are values, so one copy serves all."""


def whole(owner: Owner, name: str, least: int = 0, most: int = decode.MAX_WHOLE) -> int | Unreadable | None:
    """A whole number; None if the annotation is absent."""
    text = annotation(owner, name)
    return None if text is None else decode.whole(text, least, most)


def moment(owner: Owner, name: str) -> float | Unreadable | None:
    """Unix seconds of an RFC 3339 time; None if absent."""
    text = annotation(owner, name)
    return None if text is None else decode.moment(text)


def message(owner: Owner, name: str, cls: type[T]) -> T | Unreadable | None:
    """A dataclass in JSON; None if absent or empty. Callers must not change it."""
    text = annotation(owner, name)
    found: T | Unreadable | None = _message(cls, text) if text else None  # type: ignore[arg-type]
    return found


def messages(owner: Owner, name: str, cls: type[T]) -> list[T] | Unreadable:
    """A list of dataclasses in JSON; empty if absent or empty."""
    text = annotation(owner, name)
    found = _messages(cls, text) if text else ()  # type: ignore[arg-type]
    return found if isinstance(found, Unreadable) else list(found)


def value(owner: Owner, name: str) -> Any:
    """Any JSON; None if absent or empty."""
    text = annotation(owner, name)
    return decode.json_value(text, MAX_TEXT) if text else None


def readable(found: T | Unreadable, default: T) -> T:
    """`found`, or `default` in place of what cannot be read."""
    return default if isinstance(found, Unreadable) else found


@functools.lru_cache(KEPT)
def _message(cls: type[Any], text: str) -> Any:
    return decode.message(cls, text, MAX_TEXT)


@functools.lru_cache(KEPT)
def _messages(cls: type[Any], text: str) -> tuple[Any, ...] | Unreadable:
    found = decode.messages(cls, text, MAX_TEXT)
    return found if isinstance(found, Unreadable) else tuple(found)
