"""The API server for event loops: the errors are those of the blocking client, whatever becomes of the connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kueue_integration.errors import Conflict, Forbidden, Gone, KubeError, NotFound, Unreachable
from kueue_integration.kube.aio import AsyncKube
from kueue_integration.kube.resources import JOB

kubernetes_asyncio = pytest.importorskip("kubernetes_asyncio", reason="it comes with Airflow's Kubernetes provider")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[AsyncKube]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        configuration = kubernetes_asyncio.client.Configuration(host=f"http://{server.host}:{server.port}")
        async with kubernetes_asyncio.client.ApiClient(configuration) as api:
            yield AsyncKube(api)


def refuses(status: int, reason: str) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "reason": reason, "message": "no"}, status=status)

    return answer


async def cuts(request: web.Request) -> web.StreamResponse:
    """Half an answer, and the end of the connection."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"items": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def no_json(request: web.Request) -> web.Response:
    return web.Response(text="<html>")


@pytest.mark.parametrize(
    ("status", "reason", "wanted"),
    [
        (403, "Forbidden", Forbidden), (401, "", Forbidden), (409, "Conflict", Conflict), (410, "Expired", Gone),
        (500, "", KubeError), (404, "NotFound", NotFound),
    ],
)  # fmt: skip
async def test_a_refusal_is_the_error_of_its_status(status: int, reason: str, wanted: type[KubeError]) -> None:
    async with served(refuses(status, reason)) as kube:
        with pytest.raises(wanted, match=f"no .HTTP {status}") as found:
            await kube.list(JOB, "team", "")
    assert (type(found.value), found.value.reason) == (wanted, reason)


async def test_what_is_not_there_is_found_to_be_none() -> None:
    async with served(refuses(404, "NotFound")) as kube:
        assert await kube.find(JOB, "team", "train") is None
        assert not await kube.delete_unfinished_job("team", "train", "u1")


@pytest.mark.parametrize("handler", [cuts, no_json])
async def test_half_an_answer_is_none(handler: Handler) -> None:
    async with served(handler) as kube:
        with pytest.raises(Unreachable):
            await kube.list(JOB, "team", "")


async def test_a_server_that_is_not_there() -> None:
    configuration = kubernetes_asyncio.client.Configuration(host="http://127.0.0.1:9")
    async with kubernetes_asyncio.client.ApiClient(configuration) as api:
        with pytest.raises(Unreachable, match="no answer from the API server"):
            await AsyncKube(api).find(JOB, "team", "train")


async def test_a_watch_says_that_it_is_too_old_and_that_it_broke_off() -> None:
    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        job: dict[str, Any] = {"metadata": {"name": "train", "resourceVersion": "7"}}
        await response.write(json.dumps({"type": "ADDED", "object": job}).encode() + b"\n")
        if request.query["resourceVersion"] == "old":
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        else:
            assert request.transport is not None
            request.transport.close()
        return response

    async with served(events) as kube:
        for version, wanted in (("old", Gone), ("new", Unreachable)):
            seen = []
            with pytest.raises(wanted):
                async for event, obj in kube.watch(JOB, "team", "", version, 30):
                    seen.append((event, obj["metadata"]["name"]))
            assert seen == [("ADDED", "train")]
