"""One kind in a few namespaces: the controller's account may be narrowed to them (chart: `controller.namespaces`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from ..errors import KubeError
from ..kube.client import Kube
from ..kube.resources import Kind, Object
from .informer import Informer


class Every:
    """Events that count as one, which is set once all of them are."""

    def __init__(self, events: Iterable[threading.Event]) -> None:
        self._events = list(events)

    def is_set(self) -> bool:
        return all(event.is_set() for event in self._events)

    def wait(self, timeout_s: float) -> bool:
        """Whether all are set within `timeout_s` seconds."""
        end = time.monotonic() + timeout_s
        return all(event.wait(max(0.0, end - time.monotonic())) for event in self._events)


class Narrow:
    """An informer for each namespace, read and started as one. Objects of other namespaces are not there."""

    def __init__(self, parts: dict[str, Informer]) -> None:
        self._parts = parts
        (self.kind,) = {part.kind for part in parts.values()}
        self.synced = Every(part.synced for part in parts.values())

    def silent_for(self) -> float:
        """Seconds since the API server last answered for the namespace that has waited longest."""
        return max(part.silent_for() for part in self._parts.values())

    @property
    def problem(self) -> str:
        """Why the last list or watch failed, with the namespaces; "" since all worked."""
        return "; ".join(f"namespace {name}: {part.problem}" for name, part in self._parts.items() if part.problem)

    @property
    def error(self) -> KubeError | None:
        """One of these errors as it was raised."""
        return next((part.error for part in self._parts.values() if part.error), None)

    def get(self, namespace: str, name: str) -> Object | None:
        """Callers must not change what they get."""
        part = self._parts.get(namespace)
        return None if part is None else part.get(namespace, name)

    def all(self) -> Sequence[Object]:
        return [obj for part in self._parts.values() for obj in part.all()]

    def indexed(self, value: Hashable) -> Sequence[Object]:
        """Objects for which `value` is among what the index function gives."""
        return [obj for part in self._parts.values() for obj in part.indexed(value)]

    def listen(self, on_change: Callable[[Object, bool], None]) -> None:
        """Tell another part of the same changes."""
        for part in self._parts.values():
            part.listen(on_change)

    def start(self) -> None:
        for part in self._parts.values():
            part.start()

    def stop(self) -> None:
        """The threads end with their current watches."""
        for part in self._parts.values():
            part.stop()


Copy = Informer | Narrow
"""All that is followed of a kind."""


def follow(
    kube: Kube,
    kind: Kind,
    on_change: Callable[[Object, bool], None],
    selector: str | None,
    namespaces: Sequence[str],
    **more: Any,
) -> Copy:
    """Return a copy of all objects of a namespaced kind; `more` is what an `Informer` takes.

    :param namespaces: the only ones in which objects are followed; none: all
    """
    if not namespaces:
        return Informer(kube, kind, on_change, selector, **more)
    parts = {name: Informer(kube, kind, on_change, selector, **more, namespace=name) for name in namespaces}
    return Narrow(parts)


def listed(kube: Kube, kind: Kind, namespaces: Sequence[str], selector: str | None = None) -> Iterator[Object]:
    """Ask for the objects of a namespaced kind, once. Raises KubeError."""
    for namespace in namespaces or (None,):
        yield from kube.list(kind, namespace, selector)
