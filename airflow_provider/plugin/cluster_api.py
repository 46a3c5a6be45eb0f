"""What the page of the cluster asks for: which clusters a user's training tasks run in, and the report of one.

It names no Dag, so no route dependency can authorise it. The report itself is cut to what the user may read. And a
cluster is shown only to users who may read a Dag that trains in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from .. import compat
from ..identity import DEPLOYMENT, Claim, TaskKey
from ..memory import STORE_KEY
from . import connection, data
from .actions import clusters
from .cluster_looks import Looks
from .cluster_view import shown
from .flights import landed

FIRST_WAIT_S = 1.0
"""Who has nothing to show yet waits this long, and then asks again."""
OFFERED_S = 30.0
MAX_SUBMISSIONS = 1000

router = APIRouter()
looks = Looks(clusters)


class Offers:
    """Connections of the newest submissions, each with the Dags that name it, remembered for OFFERED_S seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0
        self._known: Mapping[str, frozenset[str]] = {}
        self._deployment = ""

    def of(self, session: Session) -> tuple[Mapping[str, frozenset[str]], str]:
        """Connection -> Dags, and this Airflow's id."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._known = offered(session)
                self._deployment = compat.variable_of_server(DEPLOYMENT) or ""
                self._until = time.monotonic() + OFFERED_S
            return self._known, self._deployment


offers = Offers()


def offered(session: Session) -> dict[str, frozenset[str]]:
    """Connection -> Dags whose tasks have submitted jobs with it; only those that `connection.of` lets a server use."""
    rows = compat.memory_rows()
    index = compat.map_index_column(rows).label("map_index")
    query = select(rows.dag_id, rows.run_id, rows.task_id, index, data.as_text(rows.value).label("value"))
    query = query.where(rows.key == STORE_KEY).order_by(compat.newest_first(rows)).limit(MAX_SUBMISSIONS)
    asked: set[tuple[str, str, str]] = set()
    found: dict[str, set[str]] = {}
    for row in session.execute(query).all():
        value = data.decoded(row.value)
        conn_id = value.get("conn_id") if isinstance(value, dict) else None
        if not isinstance(conn_id, str) or (row.dag_id, row.task_id, conn_id) in asked:
            continue
        asked.add((row.dag_id, row.task_id, conn_id))
        try:
            connection.of(session, TaskKey(row.dag_id, row.run_id, row.task_id, row.map_index), conn_id)
        except connection.RefusedError:
            continue
        found.setdefault(conn_id, set()).add(row.dag_id)
    return {conn_id: frozenset(dags) for conn_id, dags in found.items()}


def offered_to(user: Any) -> tuple[frozenset[str], list[str], str]:
    """Dags that the user may read, connections of tasks of these, and this Airflow's id."""
    readable = frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))
    with create_session(scoped=False) as session:
        known, deployment = offers.of(session)
    return readable, sorted(name for name, dags in known.items() if dags & readable), deployment


@router.get("/cluster")
async def cluster(user: GetUserDep, conn_id: Annotated[str | None, Query(alias="connection")] = None) -> JSONResponse:
    """`{"connections", "connection", "report": as `cluster_view.shown` has it or None, "trouble": sentence or None}`.

    Neither report nor trouble: the cluster is being asked. 404: a connection that is not among `connections`.
    """
    readable, mine, deployment = await run_in_threadpool(offered_to, user)
    if conn_id is not None and conn_id not in mine:
        some = ", ".join(mine) or "none"
        raise HTTPException(404, f"connection = {conn_id!r:.100}: no Dag that you may read trains there; choose {some}")
    chosen = conn_id or (mine[0] if mine else None)
    answer: dict[str, Any] = {"connections": mine, "connection": chosen, "report": None, "trouble": None}
    if chosen is not None:
        state = looks.latest(chosen)
        under_way = looks.under_way(chosen)
        if state.seen is None and state.trouble is None and under_way is not None:
            await landed(under_way, FIRST_WAIT_S)
            state = looks.latest(chosen)

        def may(claim: Claim) -> bool:
            return claim.deployment == deployment and claim.key.dag_id in readable

        if state.seen is not None:
            answer["report"] = await run_in_threadpool(partial(shown, state.seen.report, state.seen.tasks, may))
        answer["trouble"] = state.trouble
    return JSONResponse(answer, headers={"Cache-Control": "private, no-store"})
