"""A Kubernetes API server that speaks list, watch, get and delete over real HTTP, and the objects in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.kube.resources import JOB, KUEUE_JOB_UID_LABEL, PROGRESS, WORKLOAD, Kind
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, to_json

CONN_ID = "fake_cluster"
NAMESPACE = "team-a"


class ApiServer:
    """The few rules of the Kubernetes API that an informer relies on. `requests` counts by verb and plural."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []
        self.requests: list[tuple[str, str]] = []
        self.down = False
        self.refused: set[str] = set()
        """Plurals that the caller has no permission for."""
        self.missing: set[str] = {PROGRESS.plural}
        """Plurals of kinds that are not installed: an older release of the chart had no JobProgress."""
        self.gone_after = 0
        """Watches from a resourceVersion below this one get 410, as after a compaction."""
        self.deletions: list[tuple[str, str]] = []
        self.logs: dict[str, list[str]] = {}
        """Output of the training container by pod, each line with its time stamp."""
        self.slow_logs = False
        self.most_logs_at_once = 0
        self._reading = 0
        self._news = asyncio.Event()
        self._streams: set[web.StreamResponse] = set()
        self._ends = 0

    # --- what a test does -------------------------------------------------------------------------------------------
    def put(self, kind: Kind, obj: dict[str, Any]) -> None:
        key = (kind.plural, obj["metadata"]["name"])
        event = "MODIFIED" if key in self.objects else "ADDED"
        self.objects[key] = obj
        self._publish(event, kind, obj)

    def delete(self, kind: Kind, name: str) -> None:
        self._publish("DELETED", kind, self.objects.pop((kind.plural, name)))

    def forget(self, kind: Kind, name: str) -> None:
        """Delete without telling anybody: what a watcher misses while it is not connected."""
        self.objects.pop((kind.plural, name))
        self.version += 1

    def compact(self) -> None:
        """All former resourceVersions are too old from now on."""
        self.version += 1
        self.gone_after = self.version
        self._wake()

    def end_watches(self) -> None:
        """End every open watch in good order, as the server does when its time is over."""
        self._ends += 1
        self._wake()

    def drop(self) -> None:
        """Cut every open watch in the middle of the stream."""
        self._ends += 1
        for stream in self._streams:
            transport = stream._req.transport if stream._req is not None else None
            if transport is not None:
                transport.abort()
        self._wake()

    def count(self, verb: str, plural: str) -> int:
        return self.requests.count((verb, plural))

    def _publish(self, event: str, kind: Kind, obj: dict[str, Any]) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, event, kind.plural, json.loads(json.dumps(obj))))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- HTTP -------------------------------------------------------------------------------------------------------
    def app(self) -> web.Application:
        app = web.Application()
        for prefix in ("/apis/batch/v1", "/apis/kueue.x-k8s.io/v1beta2", "/apis/singularity.dev/v1"):
            app.router.add_get(prefix + "/namespaces/{namespace}/{plural}", self._collection)
            app.router.add_get(prefix + "/namespaces/{namespace}/{plural}/{name}", self._get)
            app.router.add_patch(prefix + "/namespaces/{namespace}/{plural}/{name}", self._patch)
            app.router.add_delete(prefix + "/namespaces/{namespace}/{plural}/{name}", self._delete)
        app.router.add_get("/api/v1/namespaces/{namespace}/{plural}", self._collection)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/log", self._pod_log)
        return app

    def _page(self, items: list[dict[str, Any]], query: Mapping[str, str]) -> web.Response:
        """As the real one: a `continue` that is older than the last compaction is refused."""
        made, _, start = query.get("continue", f"{self.version}:0").partition(":")
        if int(made) < self.gone_after:
            return _status(410, "the provided continue parameter is too old")
        begin, limit = int(start), int(query.get("limit", len(items) or 1))
        meta = {"resourceVersion": made}
        if begin + limit < len(items):
            meta["continue"] = f"{made}:{begin + limit}"
        return web.json_response({"items": items[begin : begin + limit], "metadata": meta})

    async def _pod_log(self, request: web.Request) -> web.Response:
        self.requests.append(("log", "pods"))
        name, query = request.match_info["name"], request.query
        assert (query["container"], query["timestamps"]) == (job_names.CONTAINER_TRAIN, "true")
        self._reading += 1
        self.most_logs_at_once = max(self.most_logs_at_once, self._reading)
        await asyncio.sleep(0.05 if self.slow_logs else 0)
        self._reading -= 1
        if ("pods", name) not in self.objects:
            return _status(404, "not found")
        since = query.get("sinceTime", "")
        # As the kubelet: whole seconds, the line of that second included.
        kept = [line for line in self.logs.get(name, []) if line[:19] >= since[:19]][-int(query["tailLines"]) :]
        return web.Response(text="".join(f"{line}\n" for line in kept)[: int(query["limitBytes"])])

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        plural = request.match_info["plural"]
        if plural in self.missing:
            return _status(404, "the server could not find the requested resource")
        verb = "watch" if request.query.get("watch") == "true" else "list"
        self.requests.append((verb, plural))
        if self.down:
            return _status(503, "the server is down")
        if plural in self.refused:
            await asyncio.sleep(0.1)  # later than the answer for the other kind: the worse order
            return _status(403, f"{plural} is forbidden")
        assert request.match_info["namespace"] == NAMESPACE
        query = request.query.get("labelSelector", "")
        assert query or plural == PROGRESS.plural
        if verb == "list":
            wanted = [term.partition("=") for term in query.split(",") if term]
            items = [
                obj
                for (kind, _), obj in self.objects.items()
                if kind == plural
                and all(
                    obj["metadata"].get("labels", {}).get(k) == v if eq else k in obj["metadata"].get("labels", {})
                    for k, eq, v in wanted
                )
            ]
            return self._page(items, request.query)
        return await self._watch(request, plural, int(request.query["resourceVersion"]))

    async def _watch(self, request: web.Request, plural: str, version: int) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        self._streams.add(stream)
        ends = self._ends
        try:
            while self._ends == ends:
                news = self._news
                if version < self.gone_after:
                    error = {"kind": "Status", "code": 410, "message": "too old resource version"}
                    await _line(stream, "ERROR", error)
                    return stream
                for number, event, kind, obj in list(self.log):
                    if number > version and kind == plural:
                        await _line(stream, event, obj)
                        version = number
                await news.wait()
            return stream
        except ConnectionError:
            return stream
        finally:
            self._streams.discard(stream)

    async def _get(self, request: web.Request) -> web.Response:
        self.requests.append(("get", request.match_info["plural"]))
        if self.down:
            return _status(503, "the server is down")
        obj = self.objects.get((request.match_info["plural"], request.match_info["name"]))
        return web.json_response(obj) if obj is not None else _status(404, "not found")

    async def _patch(self, request: web.Request) -> web.Response:
        """A merge patch of the spec, with uid and version as preconditions."""
        assert request.content_type == "application/merge-patch+json"
        obj, body = self.objects[request.match_info["plural"], request.match_info["name"]], await request.json()
        if any(obj["metadata"].get(key) != value for key, value in body["metadata"].items()):
            return _status(409, "the object has been modified")
        obj["spec"].update(body["spec"])
        self._publish("MODIFIED", JOB, obj)
        return web.json_response(obj)

    async def _delete(self, request: web.Request) -> web.Response:
        plural, name = request.match_info["plural"], request.match_info["name"]
        self.requests.append(("delete", plural))
        if self.down:
            return _status(503, "the server is down")
        options = await request.json()
        obj = self.objects.get((plural, name))
        if obj is None:
            return _status(404, "not found")
        if options["preconditions"]["uid"] != obj["metadata"]["uid"]:
            return _status(409, "the UID in the precondition does not match")
        self.deletions.append((name, obj["metadata"]["uid"]))
        self._publish("DELETED", JOB, self.objects.pop((plural, name)))
        return web.json_response({"status": "Success"})


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


async def _line(stream: web.StreamResponse, event: str, obj: dict[str, Any]) -> None:
    await stream.write(json.dumps({"type": event, "object": obj}).encode() + b"\n")


def connection(url: str, **contexts: str) -> str:
    """JSON of a `kubernetes` connection to the API server at `url`.

    `contexts`: names and URLs of further ones, of which the connection takes the one that stands for "CONTEXT".
    """
    kube_config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url.rstrip("/")}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    for name, server in contexts.items():
        kube_config["clusters"].append({"name": name, "cluster": {"server": server.rstrip("/")}})  # type: ignore[attr-defined]
        kube_config["contexts"].append({"name": name, "context": {"cluster": name, "user": "u"}})  # type: ignore[attr-defined]
    chosen = {"cluster_context": "CONTEXT"} if contexts else {}
    return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": kube_config, **chosen}})


# --- objects ----------------------------------------------------------------------------------------------------------
def make_job(
    name: str = "train",
    uid: str = "u1",
    *,
    condition: str | None = None,
    message: str = "",
    attempts: list[AttemptRecord] | None = None,
    checkpoint: CheckpointRef | None = None,
    step: int | None = None,
    hold: str = job_names.HOLD_ARMED,
    suspend: bool = False,
) -> dict[str, Any]:
    annotations = {
        job_names.ANN_HOLD: hold,
        job_names.ANN_WORKERS: "4",
        job_names.ANN_MIN_WORKERS: "2",
        job_names.ANN_WORLD_SIZE: "4",
    }
    if attempts:
        annotations[job_names.ANN_HISTORY] = to_json(attempts)
        annotations[job_names.ANN_ATTEMPT] = str(attempts[-1].attempt)
        if step is not None:
            note = {"attempt": attempts[-1].attempt, "step": step, "at": 1.0}
            annotations[job_names.ANN_PROGRESS] = json.dumps(note)
    if checkpoint is not None:
        annotations[names.ANN_CHECKPOINT] = to_json(checkpoint)
    conditions = []
    if condition:
        conditions = [{"type": condition, "status": "True", "reason": f"{condition}Reason", "message": message}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid,
            "labels": {job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: "training"},
            "annotations": annotations,
        },
        "spec": {"parallelism": 4, "suspend": suspend},
        "status": {"conditions": conditions, "active": 0 if suspend or condition else 4, "ready": 4},
    }


def make_workload(job: dict[str, Any], *conditions: tuple[str, str, str, str]) -> dict[str, Any]:
    """`conditions`: (type, status, reason, message)."""
    meta = job["metadata"]
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": "Workload",
        "metadata": {
            "name": f"job-{meta['name']}",
            "namespace": NAMESPACE,
            "uid": f"w-{meta['uid']}",
            "labels": {KUEUE_JOB_UID_LABEL: meta["uid"]},
            "ownerReferences": [{"kind": "Job", "name": meta["name"], "uid": meta["uid"]}],
        },
        "spec": {"active": True},
        "status": {
            "conditions": [{"type": t, "status": s, "reason": r, "message": m} for t, s, r, m in conditions],
        },
    }


ADMITTED = (("QuotaReserved", "True", "QuotaReserved", ""), ("Admitted", "True", "Admitted", ""))
WAITING = (("QuotaReserved", "False", "Pending", "couldn't assign flavors: insufficient quota"),)


def make_attempt(number: int = 1, **changes: Any) -> AttemptRecord:
    values: dict[str, Any] = {
        "attempt": number,
        "reservation": f"r{number}",
        "flavor": "ondemand",
        "pods": 4,
        "ranks": 4,
        "admitted_at": 1000.0,
        "queued_at": 990.0,
    }
    return AttemptRecord(**{**values, **changes})
