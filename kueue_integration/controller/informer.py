"""A local copy of all objects of one kind, kept fresh by list and watch in a thread of its own."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence

from ..errors import Forbidden, Gone, KubeError, NotFound
from ..kube.client import Kube
from ..kube.interning import Strings
from ..kube.resources import Kind, Object, version_of
from .forever import forever

log = logging.getLogger(__name__)

WATCH_S = 45.0
"""Seconds that a watch lives: a half-open connection is blind for that long, and a hold outlives its budget by that."""
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 10.0
REFUSED_MAX_S = 60.0
"""The longest pause while we may not read the kind: a right that is missing does not come back by itself."""
ABSENT_S = 10.0
"""Seconds between two requests for a kind that is not served."""
_Key = tuple[str, str]


def told(kind: str, name: str, error: Exception) -> None:
    log.error("%s %s cannot be handled and is skipped: %r", kind, name, error, exc_info=error)


class Informer:
    """`on_change(object, deleted)` runs in the informer's thread, after the copy has changed; others may `listen`, too.

    `keep`: returns the parts of an object that are kept in memory. `index`: the values under which `indexed` finds it.
    `optional`: a cluster that does not serve the kind has no objects of it; it may begin to at any time. `skip(kind,
    name, error)` hears of an object that one of these functions cannot take: the others go on. `namespace`: the only
    one whose objects are followed, None for all.
    """

    def __init__(
        self,
        kube: Kube,
        kind: Kind,
        on_change: Callable[[Object, bool], None],
        selector: str | None = None,
        index: Callable[[Object], Iterable[Hashable]] = lambda obj: (),
        optional: bool = False,
        keep: Callable[[Object], Object] = lambda obj: obj,
        skip: Callable[[str, str, Exception], None] = told,
        namespace: str | None = None,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self.kind = kind
        self._selector = selector
        self._optional = optional
        self._listeners = [on_change]
        self._index = index
        self._keep = keep
        self._skip = skip
        self._strings = Strings()
        self._lock = threading.Lock()
        self._objects: dict[_Key, Object] = {}
        self._by_index: dict[Hashable, dict[_Key, Object]] = {}
        self._values: dict[_Key, tuple[Hashable, ...]] = {}
        self._stop = threading.Event()
        self.synced = threading.Event()
        self.tried = threading.Event()
        """Whether the first list has come to an end, good or bad."""
        self._heard = time.monotonic()
        self._backoff = BACKOFF_MIN_S
        self.problem = ""
        """Why the last list or watch failed, "" since one worked."""
        self.error: KubeError | None = None
        """The same as it was raised."""

    def silent_for(self) -> float:
        """Seconds since the API server last answered."""
        return time.monotonic() - self._heard

    # --- reading --------------------------------------------------------------------------------------------------
    def get(self, namespace: str, name: str) -> Object | None:
        """Callers must not change what they get."""
        with self._lock:
            return self._objects.get((namespace, name))

    def all(self) -> Sequence[Object]:
        with self._lock:
            return list(self._objects.values())

    def indexed(self, value: Hashable) -> Sequence[Object]:
        """Objects for which `value` is among what the index function gives."""
        with self._lock:
            return list(self._by_index.get(value, {}).values())

    def _remember(self, obj: Object) -> None:
        key = _key(obj)
        self._forget(key)
        self._objects[key] = obj
        try:
            self._values[key] = tuple(dict.fromkeys(self._index(obj)))  # what cannot be hashed says so here
        except Exception as error:
            self._skip(self.kind.name, "/".join(key), error)
        for value in self._values.get(key, ()):
            self._by_index.setdefault(value, {})[key] = obj

    def _forget(self, key: _Key) -> None:
        self._objects.pop(key, None)
        for value in self._values.pop(key, ()):
            bucket = self._by_index.get(value, {})
            bucket.pop(key, None)
            if not bucket:
                self._by_index.pop(value, None)

    def _small(self, obj: Object) -> Object:
        """What is kept of `obj`, its strings shared with other objects."""
        obj["metadata"].pop("managedFields", None)  # nobody here reads them, and they are half of a Workload
        try:
            found: Object = self._strings.shared(self._keep(obj))
        except Exception as error:
            self._skip(self.kind.name, "/".join(_key(obj)), error)
            return obj
        return found

    def _tell(self, obj: Object, deleted: bool) -> None:
        """An error of a listener about one object must not end the thread: all later events would be missed."""
        for on_change in self._listeners:
            try:
                on_change(obj, deleted)
            except Exception as error:
                self._skip(self.kind.name, "/".join(_key(obj)), error)

    # --- running --------------------------------------------------------------------------------------------------
    def listen(self, on_change: Callable[[Object, bool], None]) -> None:
        """Tell another part of the same changes. Before `start`: of all; later, of those that are still to come."""
        self._listeners = [*self._listeners, on_change]

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"informer-{self.kind.plural}", daemon=True).start()

    def stop(self) -> None:
        """The thread ends with its current watch; it is a daemon."""
        self._stop.set()

    def _run(self) -> None:
        forever(self._stop, self._follow, f"informer of {self.kind.plural}", self._surprised, longest_s=BACKOFF_MAX_S)

    def _surprised(self) -> None:
        self.problem = "unexpected, see the log"

    def _follow(self) -> None:
        """List, and watch until that breaks off."""
        try:
            version = self._list()
            while not self._stop.is_set():
                version = self._watch(version)
                self._backoff = BACKOFF_MIN_S  # a list proves little: only a watch that lasted is a good sign
            return
        except Gone:
            log.info("watch of %s is too old, listing again in %.1f s", self.kind.plural, self._backoff)
        except NotFound as error:
            if not self._optional:
                self._failed(error)
                log.warning("%s: %s; again in %.0f s", self.kind.plural, error, ABSENT_S)
            self._vanish()
            self._stop.wait(ABSENT_S)
            return
        except KubeError as error:
            self._failed(error)
            log.warning("watch of %s: %s; again in %.1f s", self.kind.plural, error, self._backoff)
        # Jitter: replicas and kinds that lost the same server must not list in step.
        self._stop.wait(self._backoff * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret
        longest = REFUSED_MAX_S if isinstance(self.error, Forbidden) else BACKOFF_MAX_S
        self._backoff = min(self._backoff * 2, longest)

    def _failed(self, error: KubeError) -> None:
        self.problem, self.error = str(error), error
        self.tried.set()

    def _vanish(self) -> None:
        """The kind is not served: for an optional one that is an answer."""
        if not self._optional:
            return
        self._heard = time.monotonic()
        with self._lock:
            gone = list(self._objects.values())
            self._objects.clear()
            self._values.clear()
            self._by_index.clear()
        for obj in gone:
            self._tell(obj, True)
        self.synced.set()

    def _list(self) -> str:
        version, fresh = "", dict[_Key, Object]()
        for found, version in self._kube.pages(self.kind, self._namespace, self._selector):  # noqa: B007 - the last one's counts
            fresh.update((_key(obj), obj) for obj in map(self._small, found))
            self._heard = time.monotonic()
        with self._lock:
            gone = [obj for key, obj in self._objects.items() if key not in fresh]
            changed = [obj for key, obj in fresh.items() if version_of(self._objects.get(key)) != version_of(obj)]
            for key in list(self._objects):
                self._forget(key)
            for obj in fresh.values():
                self._remember(obj)
        for obj in gone:
            self._tell(obj, True)
        for obj in changed:
            self._tell(obj, False)
        self.problem, self.error = "", None
        self.synced.set()
        self.tried.set()
        return version

    def _watch(self, version: str) -> str:
        started = time.monotonic()
        watched = self._kube.watch(self.kind, self._namespace, self._selector, version, timeout_s=WATCH_S)
        for event, obj in watched:
            self._heard = time.monotonic()
            version = version_of(obj) or version
            if event != "BOOKMARK":
                deleted = event == "DELETED"
                obj = self._small(obj)
                with self._lock:
                    if deleted:
                        self._forget(_key(obj))
                    else:
                        self._remember(obj)
                self._tell(obj, deleted)
            if self._stop.is_set():
                return version
        self._heard = time.monotonic()
        if self._heard - started < 1.0:
            self._stop.wait(1.0)  # a server that ends every watch at once must not be asked without pause
        return version


def _key(obj: Object) -> _Key:
    return str(obj["metadata"].get("namespace", "")), str(obj["metadata"]["name"])
