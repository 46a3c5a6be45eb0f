"""From an Airflow `kubernetes` connection to the cluster: a blocking facade for workers, raw JSON for triggers.

Both read the connection through the cncf.kubernetes hooks, so every way that provider knows to name a cluster works:
in-cluster, kube_config, kube_config_path, exec credentials, or no connection at all and $KUBECONFIG.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook, KubernetesHook

from kueue_integration.k8s import ApiKube, Kube
from kueue_integration.resources import JOB, POD, Kind, Object, is_true

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 20.0


class ApiError(Exception):
    """The API server answered a trigger's request with an error. `status` is the HTTP status, 410 for a stale watch."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{message} (HTTP {status})")


def connect(conn_id: str) -> tuple[Kube, str]:
    """The facade of the cluster behind `conn_id`, and the connection's namespace ("default" if it names none).

    Blocking; for workers.
    """
    hook = KubernetesHook(conn_id=conn_id)
    return ApiKube(hook.get_conn()), hook.get_namespace() or "default"


class AsyncCluster:
    """Raw JSON requests on one shared client. Raises ApiError, aiohttp.ClientError, TimeoutError."""

    def __init__(self, api: Any) -> None:
        self._api = api

    async def list(self, kind: Kind, namespace: str, selector: str) -> tuple[list[Object], str]:
        """All objects and the resourceVersion to watch from."""
        answer = await self._json("GET", kind.path(namespace), {"labelSelector": selector})
        return answer.get("items") or [], str(answer["metadata"].get("resourceVersion", ""))

    async def page(
        self, kind: Kind, namespace: str, selector: str, limit: int, after: str
    ) -> tuple[Sequence[Object], str, str]:
        """About `limit` objects, the resourceVersion of the whole list, and what to ask with for the next ones.

        `after`: that of the page before, "" for the first; "" as an answer: there are no more. Raises ApiError with
        status 410 when the list has become too old meanwhile.
        """
        query = {"labelSelector": selector, "limit": str(limit), **({"continue": after} if after else {})}
        answer = await self._json("GET", kind.path(namespace), query)
        meta = answer["metadata"]
        return answer.get("items") or [], str(meta.get("resourceVersion", "")), str(meta.get("continue") or "")

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, None if there is none."""
        try:
            return await self._json("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def watch(
        self, kind: Kind, namespace: str, selector: str, resource_version: str, timeout_s: int
    ) -> AsyncIterator[tuple[str, Object]]:
        """`(type, object)` until the server ends the watch after `timeout_s` seconds."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        # The server ends the watch; the longer read timeout only catches a connection that died silently.
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s + 15)
        response = await self._request("GET", kind.path(namespace), query, None, timeout)
        try:
            async for line in response.content:
                if not line.strip():
                    continue
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(int(event["object"].get("code", 500)), str(event["object"].get("message")))
                yield event["type"], event["object"]
        finally:
            response.close()

    async def pod_log(
        self, namespace: str, pod: str, container: str, since: str, lines: int, limit_bytes: int
    ) -> bytes:
        """The last `lines` lines that are not older than `since` (RFC 3339, "" for all), each with its time stamp.

        At most `limit_bytes` of them, from the beginning.
        """
        query = {
            "container": container,
            "timestamps": "true",
            "tailLines": str(lines),
            "limitBytes": str(limit_bytes),
            **({"sinceTime": since} if since else {}),
        }
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, total=REQUEST_TIMEOUT_S)
        response = await self._request("GET", POD.path(namespace, pod, "log"), query, None, timeout)
        try:
            answer: bytes = await response.read()
        finally:
            response.release()
        return answer

    async def delete_unfinished_job(self, namespace: str, name: str, uid: str) -> bool:
        """Delete that very Job with its pods unless it has ended. Returns whether a deletion was accepted."""
        job = await self.find(JOB, namespace, name)
        if job is None or job["metadata"]["uid"] != uid or is_true(job, "Complete") or is_true(job, "Failed"):
            return False
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        try:
            await self._json("DELETE", JOB.path(namespace, name), body={**options, "preconditions": {"uid": uid}})
        except ApiError as error:
            if error.status in (404, 409):  # gone, or another Job by now
                return False
            raise
        return True

    async def _json(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> Object:
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, total=REQUEST_TIMEOUT_S)
        response = await self._request(method, path, query, body, timeout)
        try:
            answer: Object = json.loads(await response.read())
        finally:
            response.release()
        return answer

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, body: object, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._api.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=timeout,
        )
        if not 200 <= response.status < 300:
            text = (await response.read())[:500].decode("utf-8", "replace")
            response.release()
            raise ApiError(response.status, f"{method} {path}: {text}")
        return response


@asynccontextmanager
async def connect_async(conn_id: str) -> AsyncIterator[AsyncCluster]:
    """One client (one TLS context, one connection pool) for as long as the context lasts; for triggers."""
    async with AsyncKubernetesHook(conn_id=conn_id).get_conn() as api:
        yield AsyncCluster(api)
