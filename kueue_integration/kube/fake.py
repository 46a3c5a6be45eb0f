"""`FakeKube`: an API server in memory for unit tests. No controllers: what Kueue or the Job controller would do, a test
does by `put` and `set_status`.

It keeps the rules that code gets wrong: uids, growing resourceVersions, compare-and-set, uid preconditions, the status
subresource, label selectors. Also watches with history, 410 after `compact`, and deletion of what an owner owned. The
contract tests run the same cases against a real API server.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from ..errors import AlreadyExists, Conflict, Gone, KubeError, NotFound
from .api import Kube, with_precondition
from .resources import ACCESS_REVIEW, SUBJECT_REVIEW, TOKEN_REVIEW, Kind, Object, kind_of, matches, merge_patch

_STATUS_SUBRESOURCE = {"Job", "Pod", "Workload", "LocalQueue", "ClusterQueue", "AdmissionCheck", "Service"}
_Key = tuple[str, str | None, str]
_T = TypeVar("_T")


def copied(value: _T) -> _T:
    """Return a copy of JSON, as `copy.deepcopy` does, in a third of its time: tests copy a million objects."""
    made: Any = value
    if isinstance(value, dict):
        made = {key: copied(each) for key, each in value.items()}
    elif isinstance(value, list):
        made = [copied(each) for each in value]
    return cast("_T", made)


class FakeKube(Kube):
    """`requests` holds `(verb, kind, name)` of every call; `tokens` maps a token to its TokenReview status.

    `paths` is what `get_path` finds; `denied` has the `(verb, plural)` that an access review says no to,
    `denied_to` those of other users.
    """

    def __init__(self, *objects: Mapping[str, Any]) -> None:
        self._changed = threading.Condition()
        self._objects: dict[_Key, Object] = {}
        self._events: list[tuple[int, str, Object]] = []
        self._version = 100
        self._oldest = 0
        self._failures: list[tuple[str, str, KubeError]] = []
        self.requests: list[tuple[str, str, str]] = []
        self.tokens: dict[str, Object] = {}
        self.paths: dict[str, Object] = {}
        self.denied: set[tuple[str, str]] = set()
        self.denied_to: dict[str, set[tuple[str, str]]] = {}
        self.logs: dict[tuple[str, str, str], list[str]] = {}
        for obj in objects:
            self.put(obj)

    # --- for tests ------------------------------------------------------------------------------------------------
    def put(self, obj: Mapping[str, Any]) -> Object:
        """Create or overwrite, status included, as no client could."""
        with self._changed:
            key = self._key(kind_of(obj), obj["metadata"].get("namespace"), obj["metadata"]["name"])
            return self._store(key, copied(dict(obj)), self._objects.get(key))

    def set_status(self, kind: Kind, namespace: str | None, name: str, status: Mapping[str, Any]) -> Object:
        """Merge `status` into the object's status."""
        return self.patch(kind, namespace, name, {"status": status}, subresource="status")

    def fail_next(self, verb: str, kind: Kind, error: KubeError) -> None:
        """The next `verb` (a method of Kube without its suffix) on `kind` raises `error` and does nothing."""
        self._failures.append((verb, kind.name, error))

    def compact(self) -> None:
        """Forget the watch history: watches from an older resourceVersion are Gone."""
        with self._changed:
            self._oldest = self._version
            self._events.clear()

    def objects(self) -> list[Object]:
        """Everything there is."""
        with self._changed:
            return [copied(o) for o in self._objects.values()]

    # --- Kube -----------------------------------------------------------------------------------------------------
    def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        with self._changed:
            self._note("get", kind, name)
            return copied(self._find(kind, namespace, name))

    def get_path(self, path: str) -> Object:
        if path not in self.paths:
            raise NotFound(f"GET {path}: the server could not find the requested resource", 404, "NotFound")
        return copied(self.paths[path])

    def get_text(self, path: str) -> str:
        return str(self.get_path(path))

    def list_versioned(
        self, kind: Kind, namespace: str | None = None, selector: str | None = None
    ) -> tuple[list[Object], str]:
        with self._changed:
            self._note("list", kind, "")
            return self._select(kind, namespace, selector), str(self._version)

    def create(self, obj: Mapping[str, Any], dry_run: bool = False) -> Object:
        kind = kind_of(obj)
        new = copied(dict(obj))
        if kind is TOKEN_REVIEW:
            with self._changed:
                self._note("create", kind, "")
            return {**new, "status": copied(self.tokens.get(new["spec"]["token"], {"authenticated": False}))}
        if kind in (ACCESS_REVIEW, SUBJECT_REVIEW):
            with self._changed:
                self._note("create", kind, "")
            about = new["spec"]["resourceAttributes"]
            plural = "/".join([about["resource"], *([about["subresource"]] if "subresource" in about else [])])
            denied = self.denied_to.get(new["spec"]["user"], set()) if kind is SUBJECT_REVIEW else self.denied
            return {**new, "status": {"allowed": (about["verb"], plural) not in denied}}
        meta = new.setdefault("metadata", {})
        with self._changed:
            self._note("create", kind, meta["name"])
            key = self._key(kind, meta.get("namespace"), meta["name"])
            if key in self._objects:
                raise AlreadyExists(f'{kind.plural} "{meta["name"]}" already exists', 409, "AlreadyExists")
            if kind.name in _STATUS_SUBRESOURCE:
                new.pop("status", None)
            meta.pop("uid", None)
            return new if dry_run else self._store(key, new, None)

    def replace(self, obj: Mapping[str, Any]) -> Object:
        kind, meta = kind_of(obj), obj["metadata"]
        with self._changed:
            self._note("replace", kind, meta["name"])
            old = self._find(kind, meta.get("namespace"), meta["name"])
            self._precondition(old, meta.get("resourceVersion"))
            new = copied(dict(obj))
            new["metadata"]["uid"] = old["metadata"]["uid"]
            if kind.name in _STATUS_SUBRESOURCE:
                new["status"] = old.get("status", {})
            return self._store(self._key(kind, meta.get("namespace"), meta["name"]), new, old)

    def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        resource_version: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        patch: Object = copied(dict(with_precondition(body, resource_version)))
        with self._changed:
            self._note("patch", kind, name)
            old = self._find(kind, namespace, name)
            self._precondition(old, patch.get("metadata", {}).pop("resourceVersion", None))
            if subresource == "status":
                patch = {"status": patch.get("status", {})}
            elif kind.name in _STATUS_SUBRESOURCE:
                patch.pop("status", None)
            new: Object = merge_patch(old, patch)
            return self._store(self._key(kind, namespace, name), new, old)

    def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        uid: str | None = None,
        propagation: str = "Background",
        resource_version: str | None = None,
    ) -> None:
        with self._changed:
            self._note("delete", kind, name)
            old = self._find(kind, namespace, name)
            self._precondition(old, resource_version)
            if uid is not None and uid != old["metadata"]["uid"]:
                raise Conflict(f"uid precondition failed: {uid} is not {old['metadata']['uid']}", 409, "Conflict")
            self._remove(self._key(kind, namespace, name), cascade=propagation != "Orphan")

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        selector: str | None = None,
        resource_version: str | None = None,
        timeout_s: float = 60.0,
    ) -> Iterator[tuple[str, Object]]:
        with self._changed:
            self._note("watch", kind, "")
            if resource_version is None:
                start = [("ADDED", obj) for obj in self._select(kind, namespace, selector)]
                seen = self._version
            else:
                start, seen = [], int(resource_version)
        yield from start
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed:
                if seen < self._oldest:
                    raise Gone(f"too old resource version: {seen} ({self._oldest})", 410, "Expired")
                fresh = [e for e in self._events if e[0] > seen]
                if not fresh:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return
                    self._changed.wait(left)
                    continue
                seen = fresh[-1][0]
            for _, event, obj in fresh:
                meta = obj["metadata"]
                if (
                    obj["kind"] == kind.name
                    and namespace in (None, meta.get("namespace"))
                    and matches(meta.get("labels") or {}, selector)
                ):
                    yield event, copied(obj)

    def pod_logs(
        self,
        namespace: str,
        pod: str,
        container: str,
        follow: bool = False,
        tail: int | None = None,
        timeout_s: float = 3600.0,
        since_s: float | None = None,
    ) -> Iterator[str]:
        lines = self.logs.get((namespace, pod, container))  # without times: `since_s` finds all of them young
        if lines is None:
            raise NotFound(f'pods "{pod}" not found', 404, "NotFound")
        yield from (lines if tail is None else lines[-tail:])

    # --- inside -----------------------------------------------------------------------------------------------------
    @staticmethod
    def _key(kind: Kind, namespace: str | None, name: str) -> _Key:
        return kind.name, namespace if kind.namespaced else None, name

    def _note(self, verb: str, kind: Kind, name: str) -> None:
        self.requests.append((verb, kind.name, name))
        for number, (fail_verb, fail_kind, error) in enumerate(self._failures):
            if (fail_verb, fail_kind) == (verb, kind.name):
                del self._failures[number]
                raise error

    def _find(self, kind: Kind, namespace: str | None, name: str) -> Object:
        found = self._objects.get(self._key(kind, namespace, name))
        if found is None:
            raise NotFound(f'{kind.plural} "{name}" not found', 404, "NotFound")
        return found

    def _select(self, kind: Kind, namespace: str | None, selector: str | None) -> list[Object]:
        return [
            copied(obj)
            for (name, where, _), obj in sorted(self._objects.items(), key=lambda item: str(item[0]))
            if name == kind.name
            and namespace in (None, where)
            and matches(obj["metadata"].get("labels") or {}, selector)
        ]

    def _precondition(self, obj: Object, wanted: str | None) -> None:
        if wanted is not None and wanted != obj["metadata"]["resourceVersion"]:
            raise Conflict(
                "the object has been modified; please apply your changes to the latest version", 409, "Conflict"
            )

    def _store(self, key: _Key, new: Object, old: Object | None) -> Object:
        meta = new["metadata"]
        if old is not None:
            meta.setdefault("uid", old["metadata"]["uid"])
            meta["creationTimestamp"] = old["metadata"]["creationTimestamp"]
            meta["resourceVersion"] = old["metadata"]["resourceVersion"]
            if new == old:
                return copied(old)  # a change of nothing is no change: no new version, no event
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        self._objects[key] = new
        self._emit("ADDED" if old is None else "MODIFIED", new)
        return copied(new)

    def _remove(self, key: _Key, cascade: bool) -> None:
        gone = self._objects.pop(key)
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._emit("DELETED", gone)
        if not cascade:
            return
        for other, obj in list(self._objects.items()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if any(owner.get("uid") == gone["metadata"]["uid"] for owner in owners) and other in self._objects:
                self._remove(other, cascade=True)

    def _emit(self, event: str, obj: Object) -> None:
        self._events.append((self._version, event, copied(obj)))
        self._changed.notify_all()
