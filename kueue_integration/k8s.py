"""`Kube`: the few verbs of the Kubernetes API that this package uses, on plain dicts, each with a timeout.

`ApiKube` is the real one (`connect` makes it); `kueue_integration.fake.FakeKube` passes the same contract tests.
The kubernetes client is used for what is hard (kubeconfig, exec credentials, token rotation, TLS); its generated
models are not, as they drop fields that they do not know and cost a hundred times the time of `json.loads`.

Every method raises a `KubeError`; `Unreachable` when there is no answer.
"""

from __future__ import annotations

import abc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from proxy.protocol import names

from .errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    PlatformError,
    Unreachable,
)
from .resources import (
    CLUSTER_QUEUE,
    JOB,
    LEASE,
    LOCAL_QUEUE,
    POD,
    TOKEN_REVIEW,
    WORKLOAD,
    Kind,
    Object,
    kind_of,
    selector,
)

MERGE_PATCH = "application/merge-patch+json"
REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0


class Kube(abc.ABC):
    """The facade. Thread-safe. `namespace` None means all namespaces (list, watch) or a cluster-wide kind."""

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
        self, kind: Kind, namespace: str | None, name: str, uid: str | None = None, propagation: str = "Background"
    ) -> None:
        """Delete; with `uid` only that very object. Raises Conflict (another uid), NotFound."""

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
    ) -> Iterator[str]:
        """Lines of a container's log without line ends. Raises NotFound, Invalid (the container has not started)."""

    # --- what the callers ask for -----------------------------------------------------------------------------------
    def list(self, kind: Kind, namespace: str | None = None, selector: str | None = None) -> list[Object]:
        """All objects of a kind."""
        return self.list_versioned(kind, namespace, selector)[0]

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
        found = self.list(WORKLOAD, meta["namespace"], selector({names.KUEUE_JOB_UID_LABEL: meta["uid"]}))
        alive = [w for w in found if not w["metadata"].get("deletionTimestamp")]
        return max(alive or found, key=lambda w: str(w["metadata"].get("creationTimestamp", "")), default=None)

    def patch_workload_status(
        self, namespace: str, name: str, body: Mapping[str, Any], resource_version: str | None = None
    ) -> Object:
        """`body` is `{"status": {...}}`; lists in it replace the lists of the object."""
        return self.patch(WORKLOAD, namespace, name, body, resource_version, subresource="status")

    # `list` is a method of this class: annotations below it need the name of the type from elsewhere.
    def list_pods(self, namespace: str | None, selector: str | None = None) -> Sequence[Object]:
        return self.list(POD, namespace, selector)

    def list_cluster_queues(self) -> Sequence[Object]:
        return self.list(CLUSTER_QUEUE)

    def get_local_queue(self, namespace: str, name: str) -> Object:
        return self.get(LOCAL_QUEUE, namespace, name)

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


class ApiKube(Kube):
    """A real API server behind a `kubernetes.client.ApiClient`."""

    def __init__(self, api_client: Any) -> None:
        self._api = api_client
        self._pool: urllib3.PoolManager = api_client.rest_client.pool_manager

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        content_type: str = "application/json",
        stream: bool = False,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", **self._api.default_headers}
        if body is not None:
            headers["Content-Type"] = content_type
        params = [(key, str(value)) for key, value in (query or {}).items() if value is not None]
        self._api.update_params_for_auth(headers, params, ["BearerToken"])
        url = self._api.configuration.host + path
        if params:
            url += "?" + urlencode(params)
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                preload_content=not stream,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=timeout_s),
                # Only what certainly never reached the server is repeated here.
                retries=urllib3.Retry(connect=2, read=0, redirect=0, status=0, other=0, backoff_factor=0.2),
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{method} {url}: no answer from the API server: {error}") from error
        if not 200 <= response.status < 300:
            try:
                raise _error(method, path, response.status, response.data)
            finally:
                response.close()
        return response

    def _json(self, method: str, path: str, **kwargs: Any) -> Object:
        answer: Object = json.loads(self._request(method, path, **kwargs).data)
        return answer

    def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        return self._json("GET", kind.path(namespace, name))

    def list_versioned(
        self, kind: Kind, namespace: str | None = None, selector: str | None = None
    ) -> tuple[list[Object], str]:
        answer = self._json("GET", kind.path(namespace), query={"labelSelector": selector})
        items = answer.get("items") or []
        for item in items:  # the API server leaves these out of the items of built-in kinds
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.name)
        return items, str(answer["metadata"].get("resourceVersion", ""))

    def create(self, obj: Mapping[str, Any], dry_run: bool = False) -> Object:
        path = kind_of(obj).path(obj.get("metadata", {}).get("namespace"))
        return self._json("POST", path, body=obj, query={"dryRun": "All" if dry_run else None})

    def replace(self, obj: Mapping[str, Any]) -> Object:
        meta = obj["metadata"]
        return self._json("PUT", kind_of(obj).path(meta.get("namespace"), meta["name"]), body=obj)

    def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        resource_version: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        full = with_precondition(body, resource_version)
        return self._json("PATCH", kind.path(namespace, name, subresource), body=full, content_type=MERGE_PATCH)

    def delete(
        self, kind: Kind, namespace: str | None, name: str, uid: str | None = None, propagation: str = "Background"
    ) -> None:
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        self._json("DELETE", kind.path(namespace, name), body=options)

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        selector: str | None = None,
        resource_version: str | None = None,
        timeout_s: float = 60.0,
    ) -> Iterator[tuple[str, Object]]:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "resourceVersion": resource_version,
            "timeoutSeconds": max(1, int(timeout_s)),
        }
        # The server ends the watch; the longer read timeout only catches a connection that died silently.
        for line in self._lines(kind.path(namespace), query, timeout_s + 15):
            event = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise _error("WATCH", kind.path(namespace), int(status.get("code", 500)), json.dumps(status).encode())
            yield event["type"], event["object"]

    def pod_logs(
        self,
        namespace: str,
        pod: str,
        container: str,
        follow: bool = False,
        tail: int | None = None,
        timeout_s: float = 3600.0,
    ) -> Iterator[str]:
        query = {"container": container, "follow": "true" if follow else None, "tailLines": tail}
        for line in self._lines(POD.path(namespace, pod, "log"), query, timeout_s):
            yield line.decode("utf-8", "replace")

    def _lines(self, path: str, query: Mapping[str, Any], timeout_s: float) -> Iterator[bytes]:
        response = self._request("GET", path, query=query, stream=True, timeout_s=timeout_s)
        try:
            rest = b""
            for chunk in response.stream(amt=None, decode_content=False):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line for line in lines if line)
            if rest:
                yield rest
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"GET {path}: the stream broke off: {error}") from error
        finally:
            response.close()


def with_precondition(body: Mapping[str, Any], resource_version: str | None) -> Mapping[str, Any]:
    """The merge patch `body` that the API server refuses unless the object is at `resource_version`."""
    if resource_version is None:
        return body
    return {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": resource_version}}


def _error(method: str, path: str, status: int, body: bytes) -> KubeError:
    try:
        decoded = json.loads(body)
    except ValueError:
        decoded = None
    answer = decoded if isinstance(decoded, dict) else {}
    reason = str(answer.get("reason") or "")
    text = str(answer.get("message") or body[:200].decode("utf-8", "replace"))
    cls: type[KubeError] = {
        400: Invalid,
        401: Forbidden,
        403: Forbidden,
        404: NotFound,
        409: AlreadyExists if reason == "AlreadyExists" else Conflict,
        410: Gone,
        422: Invalid,
    }.get(status, KubeError)
    return cls(f"{method} {path}: {text} (HTTP {status})", status=status, reason=reason)


def connect(kubeconfig: str | None = None, context: str | None = None) -> ApiKube:
    """A client for the cluster of `kubeconfig`, else of $KUBECONFIG, else of the pod we run in, else of ~/.kube/config.

    Raises PlatformError when none of them is there.
    """
    configuration = client.Configuration()
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
    try:
        if in_pod and kubeconfig is None and context is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise PlatformError(
            f"no cluster to talk to: {error}. Set KUBECONFIG (for the local cluster: "
            "export KUBECONFIG=$(singularityctl local kubeconfig)) or give --kubeconfig"
        ) from error
    return ApiKube(client.ApiClient(configuration))
