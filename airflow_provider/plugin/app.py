"""The plugin's API below `/singularity`, mounted into Airflow's api-server.

Authorisation is Airflow's own, per Dag: `requires_access_dag` takes the id from the path parameter called `dag_id`, so
every route that touches a task instance has exactly that. Actions are POSTs with a JSON body from our own origin only:
Airflow has no CSRF token, and a page on another port of the same host is "same site" for its cookie.

Routes that ask a cluster are coroutines without a session: what they need of the database they read first, and give the
session back. While a cluster is asked nothing of Airflow's is held (`flights`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import QueryParams
from starlette.types import Scope

from kueue_integration.errors import KubeError, SingularityError, SpecError
from kueue_integration.jobs import time_travel
from kueue_integration.kube.client import Kube
from kueue_integration.requests import verbs
from singularity_proxy.protocol import decode
from singularity_proxy.protocol.messages import CHECKPOINT_ID

from .. import compat, lineage
from ..identity import TaskKey
from . import cluster_api, connection, data, listing, live_looks
from .actions import NotTheJobError, clusters, find
from .flights import BusyError, Flights, landed
from .live_looks import LiveLooks
from .static_files import STATIC

log = logging.getLogger(__name__)

TI = "/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/{map_index}"
READ = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
EDIT = Depends(requires_access_dag("PUT", DagAccessEntity.TASK_INSTANCE))
"""What Airflow itself asks for clearing or marking a task."""
NO_XCOMS = "your role may not read the XComs of this Dag, where it is kept: ask for Airflow's right to read XComs"
ACTION_S = 60.0
"""Nobody waits longer for what a button does. The store of checkpoints may have to be asked by a pod."""


class Files(StaticFiles):
    """An URL with a `v` in it names one content for ever: no browser has to ask again whether it is still right."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if "v" in QueryParams(scope["query_string"]):
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


app = FastAPI(title="Singularity", docs_url=None, redoc_url=None, openapi_url=None)
# Public on purpose: there is no data in it.
app.mount("/static", Files(directory=STATIC), name="static")
app.include_router(cluster_api.router)
lines = listing.Lines()
looks, flights = LiveLooks(clusters), Flights()


def same_origin(request: Request) -> None:
    """Refuse a request that a page of another origin made the browser send. Raises HTTPException.

    Browsers tell `Sec-Fetch-Site` to https and localhost only, and `Origin` with every POST. A program sends neither,
    and no page can make a browser leave both out. `X-Forwarded-Host` is a proxy's: a page cannot set it unasked.
    """
    headers = request.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    base = urlsplit(compat.conf.get("api", "base_url", fallback="")).netloc
    own = {headers.get("host"), headers.get("x-forwarded-host"), base}
    if site is None:
        ours = origin is None or urlsplit(origin).netloc in own - {None, ""}
    else:
        ours = site in ("same-origin", "none")
    if not ours:
        raise HTTPException(403, "cross-site request refused")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body has to be JSON, with Content-Type: application/json")


def task_key(dag_id: str, run_id: str, task_id: str, map_index: int) -> TaskKey:
    return TaskKey(dag_id, run_id, task_id, map_index)


Key = Annotated[TaskKey, Depends(task_key)]


class Nothing(BaseModel):
    """An action without arguments still needs a JSON body: a plain form cannot send one."""

    model_config = ConfigDict(extra="forbid")


class Resize(Nothing):
    workers: int = Field(ge=1)


class Migrate(Nothing):
    flavor: str = Field(min_length=1)


class Rewind(Nothing):
    checkpoint: str = Field(pattern=f"^{CHECKPOINT_ID}$")


class Fork(Rewind):
    name: str = Field(min_length=1)
    queue: str | None = None


def _action(name: str) -> list[Any]:
    """EDIT comes first, so that only what was allowed is in the audit log."""
    return [EDIT, Depends(same_origin), Depends(action_logging(event=f"training_{name}"))]


@app.get(TI + "/context", dependencies=[READ])
def context(key: Key, user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    """What Airflow knows: whether the user may act, and the jobs that earlier tries had. Also which job there is and
    what has happened to it, as the task's XCom `lineage` says. `kept` is None before the first XCom, and for one that
    cannot or may not be read, of which `why` says more. `moves` are those of `singularityctl trace`."""
    details = compat.dag_details(key.dag_id)
    can_act = get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=user
    )
    claim = data.claim(session, key)
    job = None if claim is None else {name: claim[name] for name in ("namespace", "name", "uid")}
    kept = data.lineage(session, key) if _reads_xcoms(user, details) else decode.Unreadable(NO_XCOMS)
    why = kept.why if isinstance(kept, decode.Unreadable) else None
    moves = lineage.moves(kept) if isinstance(kept, dict) else []
    return {
        "can_act": can_act, "job": job, "kept": None if why else kept, "why": why, "past": data.past(session, key),
        "moves": moves,
    }  # fmt: skip


@app.get(TI + "/live", dependencies=[READ])
async def live(key: Key) -> dict[str, Any]:
    """`{"job": lineage document as the cluster has it now, or None when the Job is gone, "why", "moves"}`; `moves` are
    those of `singularityctl trace`. Within LIMIT_S: for a cluster that takes longer its answer of a moment ago, or
    504. 502: no cluster."""
    claim = await run_in_threadpool(_claimed, key)
    conn_id = claim["conn_id"]
    with _told(conn_id):
        try:
            future = looks.ask(key, claim)
            silent_s = looks.silent_for(conn_id)
            if await landed(future, max(0.0, live_looks.LIMIT_S - silent_s)):
                job = future.result()
            else:
                kept = looks.last(key, claim)
                if kept is None:
                    what = f"has not answered for {looks.silent_for(conn_id):.0f} s"
                    raise HTTPException(504, f"the cluster of connection {conn_id} {what}")
                job = kept
            return {"job": job, "why": None, "moves": lineage.moves(job)}
        except NotTheJobError as error:
            return {"job": None, "why": str(error), "moves": []}


@app.get("/runs")
def runs(
    request: Request,
    user: GetUserDep,
    session: SessionDep,
    dag_id: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response:
    """`{"runs": [...], "unreadable": [...]}`: all training task instances of Dags whose XComs the user may read, newest
    first, and those whose XCom is not a lineage document, with `why`. 304 when a browser has shown what there is: it
    asks so by itself."""
    mine = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    train = listing.dags(session, mine, dag_id)
    readable = {each.id for each in compat.dag_details_of(session, train) if _reads_xcoms(user, each)}
    found = listing.listed(session, readable, dag_id, limit)
    tag = f'W/"{listing.version(found, time.time())}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    runs, unreadable = lines.of(session, found)
    return JSONResponse({"runs": runs, "unreadable": unreadable}, headers=headers)


def _reads_xcoms(user: Any, details: Any) -> bool:
    """Whether Airflow would show the user the XComs of this Dag, of which the lineage is one."""
    manager = get_auth_manager()
    entity = DagAccessEntity.XCOM
    return bool(manager.is_authorized_dag(method="GET", access_entity=entity, details=details, user=user))


@app.post(TI + "/actions/checkpoint", dependencies=_action("checkpoint"))
async def checkpoint(key: Key, body: Nothing, user: GetUserDep) -> dict[str, Any]:
    """Commit a checkpoint; the training goes on."""
    return await _act(key, user, verbs.checkpoint)


@app.post(TI + "/actions/resize", dependencies=_action("resize"))
async def resize(key: Key, body: Resize, user: GetUserDep) -> dict[str, Any]:
    """Go on with another number of pods."""
    return await _act(key, user, partial(verbs.resize, workers=body.workers))


@app.post(TI + "/actions/migrate", dependencies=_action("migrate"))
async def migrate(key: Key, body: Migrate, user: GetUserDep) -> dict[str, Any]:
    """Go on on another flavor."""
    return await _act(key, user, partial(verbs.migrate, flavor=body.flavor))


@app.post(TI + "/actions/pause", dependencies=_action("pause"))
async def pause(key: Key, body: Nothing, user: GetUserDep) -> dict[str, Any]:
    """Commit a checkpoint and give the quota back until `resume`."""
    return await _act(key, user, verbs.pause)


@app.post(TI + "/actions/resume", dependencies=_action("resume"))
async def resume(key: Key, body: Nothing, user: GetUserDep) -> dict[str, Any]:
    """Queue a paused job again."""
    return await _act(key, user, verbs.resume)


@app.post(TI + "/actions/rewind", dependencies=_action("rewind"))
async def rewind(key: Key, body: Rewind, user: GetUserDep) -> dict[str, Any]:
    """Go on from an older checkpoint. A Job that has failed stays so: its task has ended with it."""
    return await _act(key, user, partial(time_travel.rewind, checkpoint=body.checkpoint))


@app.post(TI + "/actions/fork", dependencies=_action("fork"))
async def fork(key: Key, body: Fork, user: GetUserDep) -> dict[str, Any]:
    """Start a second job from a checkpoint. It belongs to no task: `singularityctl` looks after it."""

    def act(kube: Kube, claim: dict[str, Any]) -> dict[str, Any]:
        find(kube, key, claim)
        made = time_travel.fork(kube, claim["namespace"], claim["name"], body.name, body.checkpoint, body.queue or None)
        message = f"job {made.name} goes on from checkpoint {made.checkpoint} (step {made.step})"
        return {"message": message, "state": "done", "id": made.uid}

    return await _with_job(key, act)


async def _act(key: TaskKey, user: Any, verb: Callable[..., verbs.Result]) -> dict[str, Any]:
    def act(kube: Kube, claim: dict[str, Any]) -> dict[str, Any]:
        find(kube, key, claim)
        asked = verb(kube, claim["namespace"], claim["name"], by=f"airflow:{user.get_name()}")
        return {"message": asked.message, "state": asked.state, "id": asked.id}

    return await _with_job(key, act)


def _claimed(key: TaskKey) -> dict[str, Any]:
    """Which Job the task instance has, with the connection that a server may use for it."""
    with create_session(scoped=False) as session:
        claim = data.claim(session, key)
        if claim is None:
            raise HTTPException(404, "this task instance has not submitted a training job yet")
        try:
            return {**claim, "conn_id": connection.of(session, key, claim.get("conn_id"))}
        except connection.RefusedError as error:
            raise HTTPException(409, str(error)) from None


async def _with_job(key: TaskKey, action: Callable[[Kube, dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Call `action` with the cluster and the claim; every error becomes an answer that says what to do."""
    claim = await run_in_threadpool(_claimed, key)
    conn_id = claim["conn_id"]
    with _told(conn_id):
        future = flights.start(conn_id, lambda: action(clusters.kube(conn_id), claim))
        if not await landed(future, ACTION_S):
            what = f"the cluster of connection {conn_id} has not answered for {ACTION_S:.0f} s: it may still do it"
            raise HTTPException(504, what)
        return future.result()


@contextmanager
def _told(conn_id: str) -> Iterator[None]:
    try:
        yield
    except HTTPException:
        raise
    except BusyError as error:
        raise HTTPException(503, str(error)) from None
    except NotTheJobError as error:
        raise HTTPException(404, str(error)) from None
    except connection.RefusedError as error:
        raise HTTPException(409, str(error)) from None
    except SpecError as error:
        raise HTTPException(422, "; ".join(f"{field} = {value!r}: {text}" for field, value, text in error.problems))  # noqa: B904
    except KubeError as error:
        clusters.forget(conn_id)
        raise HTTPException(502, f"the cluster of connection {conn_id} did not do it: {error}") from None
    except SingularityError as error:
        raise HTTPException(409, str(error)) from None
    except Exception as error:  # a connection that is missing or broken raises whatever its provider likes
        log.exception("connection %s", conn_id)
        clusters.forget(conn_id)
        what = f"{type(error).__name__}: {error}"
        raise HTTPException(502, f"the api-server cannot use connection {conn_id!r} ({what})") from None
