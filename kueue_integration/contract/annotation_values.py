"""Annotations as values: the one place that reads their text, and it never raises. Pure.

Whoever may edit an object may write anything here, whoever the annotation belongs to. What cannot be read comes back as
`Unreadable`: each reader decides what that means for it, and none can forget to.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from singularity_proxy.protocol import decode
from singularity_proxy.protocol.decode import Unreadable

from ..kube.interning import Strings
from ..kube.resources import annotation

T = TypeVar("T")
Owner = Mapping[str, Any] | None
"""Any Kubernetes object, or none."""
MAX_TEXT: Final = 256 * 1024
"""Bytes of one annotation that are looked at: the API server's own limit for all annotations of an object, so that
nothing that is stored is too long."""
KEPT_BYTES: Final = 64 * 1024 * 1024
"""Of texts that are kept with what they say: the histories of some thousand jobs."""


class _Parsed:
    """The newest text of each message on each object, and what it says. Thread-safe.

    Objects are looked at far more often than their messages change: at every event, by each policy, at each scrape. A
    message is parsed when its text is another one than before, and all who read it share one value.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, dict[tuple[str, type[Any], bool], tuple[str, Any]]] = OrderedDict()
        """By UID; the object that was not asked about for longest comes first."""
        self._bytes = 0
        self._strings = Strings()

    def of(self, owner: Owner, name: str, text: str, cls: type[Any], many: bool) -> Any:
        uid, key = str((owner or {})["metadata"].get("uid")), (name, cls, many)
        with self._lock:
            of_one = self._kept.get(uid, {})
            found = of_one.get(key)
            if found is not None and found[0] == text:
                if found[0] is not text:
                    of_one[key] = text, found[1]  # the copy that the newest object has: nobody else keeps the old one
                self._kept.move_to_end(uid)
                return found[1]
        data = decode.json_value(text, MAX_TEXT)
        if isinstance(data, Unreadable):
            value: Any = Unreadable(f"{'list of ' if many else ''}{cls.__name__}: {data.why}")
        else:
            with self._lock:
                data = self._strings.shared(data)  # flavors, features of nodes: each stands in many records
            value = decode.listed(cls, data) if many else decode.typed(cls, data)
        with self._lock:
            self._keep(uid, key, text, value)
        return value

    def _keep(self, uid: str, key: tuple[str, type[Any], bool], text: str, value: Any) -> None:
        of_one = self._kept.setdefault(uid, {})
        self._kept.move_to_end(uid)
        self._bytes += len(text) - len(of_one.get(key, ("",))[0])
        of_one[key] = text, value
        while self._bytes > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, uid: str) -> None:
        self._bytes -= sum(len(text) for text, _ in self._kept.pop(uid, {}).values())

    def forget(self, uid: str) -> None:
        with self._lock:
            self._drop(uid)


_parsed = _Parsed(KEPT_BYTES)


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
    found: T | Unreadable | None = _parsed.of(owner, name, text, cls, many=False) if text else None
    return found


def messages(owner: Owner, name: str, cls: type[T]) -> list[T] | Unreadable:
    """A list of dataclasses in JSON; empty if absent or empty."""
    text = annotation(owner, name)
    found = _parsed.of(owner, name, text, cls, many=True) if text else ()
    return found if isinstance(found, Unreadable) else list(found)


def last_message(owner: Owner, name: str, cls: type[T]) -> T | Unreadable | None:
    """The last of a list of dataclasses in JSON; None if there is none. Nobody reads the others, nothing is kept."""
    text = annotation(owner, name)
    return decode.last_message(cls, text, MAX_TEXT) if text else None


def value(owner: Owner, name: str) -> Any:
    """Any JSON; None if absent or empty."""
    text = annotation(owner, name)
    return decode.json_value(text, MAX_TEXT) if text else None


def texts(owner: Owner, name: str) -> dict[str, str] | Unreadable | None:
    """A JSON object of texts; None if absent or empty."""
    found = value(owner, name)
    if found is None or isinstance(found, Unreadable):
        return found
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        return Unreadable("not a JSON object whose values are texts")
    return found


def forget(owner: Owner) -> None:
    """Drop what is kept of an object that is gone."""
    _parsed.forget(str((owner or {})["metadata"].get("uid")))


def readable(found: T | Unreadable, default: T) -> T:
    """`found`, or `default` in place of what cannot be read."""
    return default if isinstance(found, Unreadable) else found
