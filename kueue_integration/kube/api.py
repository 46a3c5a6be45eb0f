"""`Kube`: the few verbs of the Kubernetes API that this package uses, on plain dicts, each with a timeout.

`client` has the real one, `fake` its twin in memory; both pass the same contract tests.
Every method raises a `KubeError`; `Unreachable` when there is no answer.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import KubeError, NotFound
from .resources import (
    ACCESS_REVIEW,
    JOB,
    KUEUE_JOB_UID_LABEL,
    LEASE,
    POD,
    SUBJECT_REVIEW,
    TOKEN_REVIEW,
    WORKLOAD,
    Kind,
    Object,
    label,
    selector,
)

Patch = tuple[str | None, str, Mapping[str, Any]]
"""Namespace and name of an object, and a merge patch."""


class Kube(abc.ABC):
    """The facade. Thread-safe. `namespace` None means all namespaces (list, watch) or a cluster-wide kind."""

    server: str = ""
    """URL of the API server, "" where it has none."""

    # --- primitives ---------------------------------------------------------------------------------------------
    @abc.abstractmethod
    def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """One object. Raises NotFound."""

    @abc.abstractmethod
    def list_versioned(
        self, kind: Kind, namespace: str | None = None, selector: str | None = None
    ) -> tuple[list[Object], str]:
        """All objects and the resourceVersion to start a watch from."""

    @abc.abstractmethod
    def create(self, obj: Mapping[str, Any], dry_run: bool = False) -> Object:
        """Create `obj`; its apiVersion, kind and metadata say where. Raises AlreadyExists, Invalid, Forbidden."""

    @abc.abstractmethod
    def replace(self, obj: Mapping[str, Any]) -> Object:
        """Write the whole object; its metadata.resourceVersion is the precondition. Raises Conflict, NotFound."""

    @abc.abstractmethod
    def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        resource_version: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """RFC 7386 merge patch. With `resource_version` a compare-and-set. Raises Conflict, NotFound, Invalid."""

    @abc.abstractmethod
    def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        uid: str | None = None,
        propagation: str = "Background",
        resource_version: str | None = None,
    ) -> None:
        """Delete; with `uid` only that very object, with `resource_version` only as it was then.

        Raises Conflict (another uid or version), NotFound.
        """

    @abc.abstractmethod
    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        selector: str | None = None,
        resource_version: str | None = None,
        timeout_s: float = 60.0,
    ) -> Iterator[tuple[str, Object]]:
        """`(ADDED | MODIFIED | DELETED | BOOKMARK, object)` until `timeout_s` seconds are over. Raises Gone.

        A BOOKMARK's object carries nothing but the resourceVersion to go on from.
        """

    @abc.abstractmethod
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
        """Lines of a container's log without line ends: the last `tail`, those of the last `since_s` seconds.

        Raises NotFound, Invalid (the container has not started).
        """

    @abc.abstractmethod
    def get_path(self, path: str) -> Object:
        """What is served at a path that is no object: `/version`, `/apis/GROUP`, `/apis/GROUP/VERSION`.

        Raises NotFound: for an API group that means that nobody serves it.
        """

    @abc.abstractmethod
    def get_text(self, path: str) -> str:
        """Plain text at a path that is no object: `/metrics`. Raises NotFound, Forbidden."""

    # --- what the callers ask for -----------------------------------------------------------------------------------
    def pages(
        self, kind: Kind, namespace: str | None = None, selector: str | None = None
    ) -> Iterator[tuple[Sequence[Object], str]]:
        """`list_versioned` of one moment in parts, for a reader that keeps little of each; all have the same version.

        Raises Gone: reading took so long that the moment is forgotten.
        """
        yield self.list_versioned(kind, namespace, selector)

    def list(self, kind: Kind, namespace: str | None = None, selector: str | None = None) -> list[Object]:
        """All objects of a kind."""
        return self.list_versioned(kind, namespace, selector)[0]

    def patch_all(self, kind: Kind, patches: Sequence[Patch]) -> Sequence[KubeError | None]:
        """Patch many objects of one kind, each by itself. Return for each what refused it, in their order.

        A patch may arrive twice, so it must mean the same then. Raises nothing.
        """
        found: list[KubeError | None] = []
        for namespace, name, body in patches:
            try:
                self.patch(kind, namespace, name, body)
                found.append(None)
            except KubeError as error:
                found.append(error)
        return found

    def find(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """One object, None if there is none."""
        try:
            return self.get(kind, namespace, name)
        except NotFound:
            return None

    def get_job(self, namespace: str, name: str) -> Object:
        return self.get(JOB, namespace, name)

    def patch_job(
        self, namespace: str, name: str, body: Mapping[str, Any], resource_version: str | None = None
    ) -> Object:
        return self.patch(JOB, namespace, name, body, resource_version)

    def get_workload_for_job(self, job: Mapping[str, Any]) -> Object | None:
        """Kueue's Workload of `job`, None while Kueue has not made it; the youngest if one is on its way out."""
        meta = job["metadata"]
        found = self.list(WORKLOAD, meta["namespace"], selector({KUEUE_JOB_UID_LABEL: meta["uid"]}))
        alive = [w for w in found if not w["metadata"].get("deletionTimestamp")]
        return max(alive or found, key=lambda w: str(w["metadata"].get("creationTimestamp", "")), default=None)

    def workloads_by_job(self, namespace: str | None, jobs: Sequence[Mapping[str, Any]]) -> dict[str, Object]:
        """Kueue's Workloads of `jobs` by the job's UID. Nothing else of a queue of thousands is kept, page by page.

        Raises Gone: as `pages`.
        """
        wanted = {job["metadata"]["uid"] for job in jobs}
        found: dict[str, Object] = {}
        for page, _ in self.pages(WORKLOAD, namespace):
            for workload in page:
                uid = label(workload, KUEUE_JOB_UID_LABEL)
                if uid is not None and uid in wanted:
                    found[uid] = workload
        return found

    def patch_workload_status(
        self, namespace: str, name: str, body: Mapping[str, Any], resource_version: str | None = None
    ) -> Object:
        """`body` is `{"status": {...}}`; lists in it replace the lists of the object."""
        return self.patch(WORKLOAD, namespace, name, body, resource_version, subresource="status")

    # `list` is a method of this class: annotations below it need the name of the type from elsewhere.
    def list_pods(self, namespace: str | None, selector: str | None = None) -> Sequence[Object]:
        return self.list(POD, namespace, selector)

    def get_lease(self, namespace: str, name: str) -> Object:
        return self.get(LEASE, namespace, name)

    def create_lease(self, obj: Mapping[str, Any]) -> Object:
        return self.create(obj)

    def update_lease(self, obj: Mapping[str, Any]) -> Object:
        """Compare-and-set by metadata.resourceVersion. Raises Conflict."""
        return self.replace(obj)

    def review_token(self, token: str, audiences: Sequence[str]) -> Object:
        """`status` of a TokenReview: `authenticated`, `audiences`, `user` {username, uid, groups, extra}, `error`."""
        review = {
            "apiVersion": TOKEN_REVIEW.api_version,
            "kind": TOKEN_REVIEW.name,
            "spec": {"token": token, "audiences": [*audiences]},
        }
        status: Object = self.create(review).get("status") or {}
        return status

    def allowed(
        self,
        verb: str,
        kind: Kind,
        namespace: str | None,
        subresource: str | None = None,
        user: str | None = None,
        name: str | None = None,
    ) -> bool:
        """Whether the caller, or `user`, may do `verb` (get, list, ...) on `kind`: the API server's own answer."""
        given = {"namespace": namespace, "subresource": subresource, "name": name}
        about = {"verb": verb, "group": kind.group, "resource": kind.plural}
        about |= {key: value for key, value in given.items() if value is not None}
        spec: dict[str, Any] = {"resourceAttributes": about}
        review = ACCESS_REVIEW
        if user is not None:
            spec["user"], review = user, SUBJECT_REVIEW
            if user.startswith("system:serviceaccount:"):
                spec["groups"] = ["system:serviceaccounts", "system:authenticated"]
        asked = {"apiVersion": review.api_version, "kind": review.name, "spec": spec}
        return bool((self.create(asked).get("status") or {}).get("allowed"))


def with_precondition(body: Mapping[str, Any], resource_version: str | None) -> Mapping[str, Any]:
    """The merge patch `body` that the API server refuses unless the object is at `resource_version`."""
    if resource_version is None:
        return body
    return {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": resource_version}}
