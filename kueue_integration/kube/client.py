"""`ApiKube`: the facade `Kube` over a real API server. `credentials` has what connects to one."""

from __future__ import annotations

import json
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs

from singularity_proxy.protocol import VERSION, decode

from ..errors import KubeError, Unreachable
from . import pipelines
from .answers import LISTEN_S, broken_watch, refusal, verb, watch_query
from .api import Kube, Patch, with_precondition
from .resources import POD, Kind, Object, kind_of

__all__ = ["ApiKube", "Kube"]

MERGE_PATCH = "application/merge-patch+json"
REQUEST_TIMEOUT_S = 30.0
PART = "singularityctl"
CONNECT_TIMEOUT_S = 5.0
CONNECTS = 2
"""Times that a connection is tried, each for a quarter of a request's time at most."""
PAGE = 500
"""Most objects in one part of a list, as in client-go."""
FIRST_PAGE = 25
PAGE_BYTES = 2 << 20
"""About so long is a part at most: a tenant decides how large its objects are, and an object may have 1.5 MB.

Parsed, it takes five times as much for a moment, in each of the threads that list."""


Told = Callable[[str, float, bool], None]


def untold(verb: str, seconds: float, failed: bool) -> None:
    return None


class Credentials(Protocol):
    """An API server, and how to prove to it who we are."""

    @property
    def server(self) -> str:
        """Its URL."""

    @property
    def pool(self) -> urllib3.PoolManager:
        """Connections that know whom to trust and, where that is the proof, the client's certificate."""

    def headers(self) -> Mapping[str, str]:
        """Of the next request: tokens are exchanged while a program runs."""


class ApiKube(Kube):
    """A real API server.

    `timeout_s`: the longest silence in an answer. Until it begins, a request takes half as much again at most.

    `part` of this project: the API server notes it in `managedFields` of what is written, and in its audit log.
    `told` hears of each request: its verb, the seconds until the answer began, and whether the API server failed.
    """

    def __init__(
        self, credentials: Credentials, timeout_s: float = REQUEST_TIMEOUT_S, part: str = PART, told: Told = untold
    ) -> None:
        self.credentials = credentials
        self._agent = f"{part}/{VERSION}"
        self._told = told
        self.server = credentials.server
        self._timeout_s = timeout_s
        self._patching = threading.Lock()
        self._pipelines: pipelines.Pipelines | None = None

    @property
    def has_token(self) -> bool:
        """Whether its requests carry a token."""
        return any(name.lower() == "authorization" for name in self.credentials.headers())

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        content_type: str = "application/json",
        stream: bool = False,
        timeout_s: float | None = None,
        accept: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept, **self.credentials.headers(), "User-Agent": self._agent}
        if body is not None:
            headers["Content-Type"] = content_type
        params = [(key, str(value)) for key, value in (query or {}).items() if value is not None]
        url = self.server + path
        if params:
            url += "?" + urlencode(params)
        began, status = time.monotonic(), 0
        try:
            response = self.credentials.pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                preload_content=not stream,
                timeout=urllib3.Timeout(
                    connect=min(CONNECT_TIMEOUT_S, self._timeout_s / 4),
                    read=self._timeout_s if timeout_s is None else timeout_s,
                ),
                # Only what certainly never reached the server is repeated here.
                retries=urllib3.Retry(connect=CONNECTS - 1, read=0, redirect=0, status=0, other=0, backoff_factor=0.2),
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{method} {url}: no answer from the API server: {error}") from error
        else:
            status = response.status
        finally:
            failed = status in (0, 429) or status >= 500
            self._told(verb(method, query or {}), time.monotonic() - began, failed)
        if not 200 <= response.status < 300:
            try:
                raise refusal(method, path, response.status, response.data)
            finally:
                response.close()
        return response

    def _json(self, method: str, path: str, **kwargs: Any) -> Object:
        return _decoded(method, path, self._request(method, path, **kwargs).data)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        return self._json("GET", kind.path(namespace, name))

    def get_path(self, path: str) -> Object:
        return self._json("GET", path)

    def get_text(self, path: str) -> str:
        return self._request("GET", path, accept="text/plain").data.decode("utf-8", "replace")

    def list_versioned(
        self, kind: Kind, namespace: str | None = None, selector: str | None = None
    ) -> tuple[list[Object], str]:
        items, meta = self._list(kind, namespace, {"labelSelector": selector})
        return items, str(meta.get("resourceVersion", ""))

    def pages(
        self, kind: Kind, namespace: str | None = None, selector: str | None = None
    ) -> Iterator[tuple[list[Object], str]]:
        query: dict[str, Any] = {"labelSelector": selector, "limit": FIRST_PAGE}
        while True:
            data = self._request("GET", kind.path(namespace), query=query).data
            size = len(data)
            items, meta = self._items(kind, data)
            del data
            query = {**query, "limit": _next_page(len(items), size), "continue": meta.get("continue")}
            yield items, str(meta.get("resourceVersion", ""))
            if not query["continue"]:
                return

    def _list(
        self, kind: Kind, namespace: str | None, query: Mapping[str, Any]
    ) -> tuple[list[Object], Mapping[str, Any]]:
        return self._items(kind, self._request("GET", kind.path(namespace), query=query).data)

    @staticmethod
    def _items(kind: Kind, data: bytes) -> tuple[list[Object], Mapping[str, Any]]:
        answer = _decoded("GET", kind.path(), data)
        items = answer.get("items") or []
        for item in items:  # the API server leaves these out of the items of built-in kinds
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.name)
        return items, answer["metadata"]

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

    def patch_all(self, kind: Kind, patches: Sequence[Patch]) -> Sequence[KubeError | None]:
        if isinstance(self.credentials.pool, urllib3.ProxyManager):
            return super().patch_all(kind, patches)  # a proxy may know one request at a time
        given = {"Accept": "application/json", "Content-Type": MERGE_PATCH, "User-Agent": self._agent}
        headers, host = [*{**given, **self.credentials.headers()}.items()], urlsplit(self.server).netloc
        paths = [kind.path(namespace, name) for namespace, name, _ in patches]
        bodies = [json.dumps(body).encode() for _, _, body in patches]
        sent = [pipelines.request("PATCH", host, path, headers, body) for path, body in zip(paths, bodies, strict=True)]
        with self._patching:
            try:
                self._pipelines = self._pipelines or _pipelines_to(self.credentials, self._timeout_s)
            except OSError as error:  # an `ssl.SSLError` is one
                problem = Unreachable(f"a certificate for {self.server} cannot be used: {error}")
                return [problem] * len(patches)
            answers = self._pipelines.exchange(sent)
        return [self._refused(path, answer) for path, answer in zip(paths, answers, strict=True)]

    def _refused(self, path: str, answer: pipelines.Answer | OSError) -> KubeError | None:
        if isinstance(answer, OSError):
            self._told("patch", self._timeout_s, True)
            return Unreachable(f"PATCH {self.server}{path}: no answer from the API server: {answer}")
        self._told("patch", answer.took_s, answer.status == 429 or answer.status >= 500)
        return None if 200 <= answer.status < 300 else refusal("PATCH", path, answer.status, answer.body)

    def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        uid: str | None = None,
        propagation: str = "Background",
        resource_version: str | None = None,
    ) -> None:
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options["preconditions"] = {key: value for key, value in conditions.items() if value is not None}
        self._json("DELETE", kind.path(namespace, name), body=options)

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        selector: str | None = None,
        resource_version: str | None = None,
        timeout_s: float = 60.0,
    ) -> Iterator[tuple[str, Object]]:
        query = watch_query(selector, resource_version, timeout_s)
        for line in self._lines(kind.path(namespace), query, timeout_s + LISTEN_S):
            event = decode.served(line)
            if event["type"] == "ERROR":
                raise broken_watch(kind.path(namespace), event["object"])
            yield event["type"], event["object"]

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
        since = None if since_s is None else max(1, math.ceil(since_s))
        query = {
            "container": container,
            "follow": "true" if follow else None,
            "tailLines": tail,
            "sinceSeconds": since,
        }
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


def _pipelines_to(credentials: Credentials, silent_s: float) -> pipelines.Pipelines:
    """Connections with the TLS that all other requests have. Raises OSError."""
    given, tls = credentials.pool.connection_pool_kw, None
    if credentials.server.startswith("https:"):
        tls = create_urllib3_context(cert_reqs=resolve_cert_reqs(given.get("cert_reqs")))
        if given.get("assert_hostname") is False:
            tls.check_hostname = False
        if given.get("ca_certs"):
            tls.load_verify_locations(given["ca_certs"])
        elif tls.verify_mode is not ssl.CERT_NONE:
            tls.load_default_certs()
        if given.get("cert_file"):
            tls.load_cert_chain(given["cert_file"], given.get("key_file"))
    name = given.get("server_hostname")
    return pipelines.Pipelines(credentials.server, tls, name, min(CONNECT_TIMEOUT_S, silent_s / 4), silent_s)


def _decoded(method: str, path: str, data: bytes) -> Object:
    try:
        answer: Object = decode.served(data)
    except ValueError as error:
        raise Unreachable(f"{method} {path}: the answer is no JSON: {error}") from error
    return answer


def _next_page(count: int, size: int) -> int:
    """Return how many objects to ask for after a part with `count` objects in `size` bytes."""
    return max(1, min(PAGE, PAGE_BYTES * count // max(1, size)))
