"""A part of an object: parsed when it is asked for first, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

from ..kube.resources import Object

T_co = TypeVar("T_co", covariant=True)


class Parsed(Protocol):
    """What has parts."""

    @property
    def raw(self) -> Object:
        """As it was read."""


class Part(Generic[T_co]):
    """An attribute that `read` makes of `raw`. A decision needs few of the parts; each is parsed once at most."""

    def __init__(self, read: Callable[[Object], T_co]) -> None:
        self._read = read

    def __set_name__(self, owner: type[object], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, parsed: None, owner: type[object]) -> Part[T_co]: ...

    @overload
    def __get__(self, parsed: Parsed, owner: type[object]) -> T_co: ...

    def __get__(self, parsed: Any, owner: type[object]) -> Any:
        if parsed is None:
            return self
        found = self._read(parsed.raw)
        # A name that the instance has hides the class's: from now on Python finds it there.
        parsed.__dict__[self._name] = found
        return found
