"""`AsyncKube`: the API server for code that runs in an event loop. The errors are those of the blocking `client`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from singularity_proxy.protocol import VERSION, decode

from ..errors import Conflict, NotFound, Unreachable
from .answers import LISTEN_S, broken_watch, refusal, watch_query
from .resources import JOB, POD, Kind, Object, is_true

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 20.0
MERGE = {"Content-Type": "application/merge-patch+json"}
LOST = (aiohttp.ClientError, TimeoutError, OSError)
"""What aiohttp raises for an answer that does not come."""


class AsyncKube:
    """A real API server behind a `kubernetes_asyncio.client.ApiClient`. Raises KubeError and nothing else.

    Only what a triggerer needs: `client.ApiKube` has the rest.
    """

    def __init__(self, api: Any, part: str = "singularityctl") -> None:
        self._api = api
        self._api.user_agent = f"{part}/{VERSION}"

    async def list(self, kind: Kind, namespace: str, selector: str) -> tuple[list[Object], str]:
        """All objects and the resourceVersion to watch from."""
        answer = await self._json("GET", kind.path(namespace), {"labelSelector": selector})
        return answer.get("items") or [], str(answer["metadata"].get("resourceVersion", ""))

    async def page(
        self, kind: Kind, namespace: str, selector: str, limit: int, after: str
    ) -> tuple[Sequence[Object], str, str]:
        """About `limit` objects, the resourceVersion of the whole list, and what to ask with for the next ones.

        `after`: that of the page before, "" for the first; "" as an answer: there are no more. Raises Gone
        when the list has become too old meanwhile.
        """
        query = {"labelSelector": selector, "limit": str(limit), **({"continue": after} if after else {})}
        answer = await self._json("GET", kind.path(namespace), query)
        meta = answer["metadata"]
        return answer.get("items") or [], str(meta.get("resourceVersion", "")), str(meta.get("continue") or "")

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, None if there is none."""
        try:
            return await self._json("GET", kind.path(namespace, name))
        except NotFound:
            return None

    async def watch(
        self, kind: Kind, namespace: str, selector: str, resource_version: str, timeout_s: int
    ) -> AsyncIterator[tuple[str, Object]]:
        """`(type, object)` until the server ends the watch after `timeout_s` seconds."""
        query = watch_query(selector, resource_version, timeout_s)
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s + LISTEN_S)
        response = await self._request("GET", kind.path(namespace), query, None, timeout)
        try:
            async for line in response.content:
                if not line.strip():
                    continue
                event = decode.served(line)
                if event["type"] == "ERROR":
                    raise broken_watch(kind.path(namespace), event["object"])
                yield event["type"], event["object"]
        except LOST as error:
            raise Unreachable(f"WATCH {kind.path(namespace)}: the stream broke off: {error!r}") from error
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
        return await _whole(response)

    async def end_unfinished_job(self, namespace: str, name: str, uid: str, end: Mapping[str, Any]) -> bool:
        """Write `end` into the spec of that very Job unless it has ended. Returns whether that is done.

        Raises Conflict when it has changed meanwhile.
        """
        job = await self.find(JOB, namespace, name)
        if job is None or job["metadata"]["uid"] != uid or is_true(job, "Complete") or is_true(job, "Failed"):
            return False
        meta = {"uid": uid, "resourceVersion": job["metadata"]["resourceVersion"]}
        try:
            await self._json("PATCH", JOB.path(namespace, name), body={"metadata": meta, "spec": {**end}})
        except NotFound:
            return False
        return True

    async def delete_unfinished_job(self, namespace: str, name: str, uid: str) -> bool:
        """Delete that very Job with its pods unless it has ended. Returns whether a deletion was accepted."""
        job = await self.find(JOB, namespace, name)
        if job is None or job["metadata"]["uid"] != uid or is_true(job, "Complete") or is_true(job, "Failed"):
            return False
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        try:
            await self._json("DELETE", JOB.path(namespace, name), body={**options, "preconditions": {"uid": uid}})
        except (NotFound, Conflict):  # gone, or another Job by now
            return False
        return True

    async def _json(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> Object:
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, total=REQUEST_TIMEOUT_S)
        response = await self._request(method, path, query, body, timeout)
        data = await _whole(response)
        try:
            answer: Object = decode.served(data)
        except ValueError as error:
            raise Unreachable(f"{method} {path}: the answer is no JSON: {error}") from error
        return answer

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, body: object, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        try:
            response: aiohttp.ClientResponse = await self._api.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", **(MERGE if method == "PATCH" else {})},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout,
            )
        except LOST as error:
            raise Unreachable(f"{method} {path}: no answer from the API server: {error!r}") from error
        if not 200 <= response.status < 300:
            raise refusal(method, path, response.status, await _whole(response))
        return response


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.read()
    except LOST as error:
        raise Unreachable(f"{response.method} {response.url}: the answer broke off: {error!r}") from error
    finally:
        response.release()
