"""What Airflow's database knows about training task instances. Read only."""

from __future__ import annotations

import json
from typing import Any

from airflow.models.task_state_store import TaskStateStoreModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from .. import compat
from ..identity import Claim, TaskKey
from ..memory import PAST_KEY, STORE_KEY


def _of(rows: Any, key: TaskKey) -> tuple[Any, ...]:
    """Where `rows`, a table by task instance, is about `key`."""
    index = compat.map_index_column(rows)
    return rows.dag_id == key.dag_id, rows.run_id == key.run_id, rows.task_id == key.task_id, index == key.map_index


def stored(session: Session, key: TaskKey, name: str) -> Any:
    """Value of the task state store, None when there is none or when it is not JSON."""
    rows = TaskStateStoreModel
    return decoded(session.scalar(select(rows.value).where(*_of(rows, key), rows.key == name)))


def claim(session: Session, key: TaskKey) -> dict[str, Any] | None:
    """Which Job the task instance has: namespace, name, uid, conn_id; None before its submission."""
    found = stored(session, key, STORE_KEY)
    return found if isinstance(found, dict) and found.get("uid") else None


def claims(session: Session, dag_id: str, run_id: str) -> list[tuple[TaskKey, dict[str, Any]]]:
    """What every training task instance of a Dag run remembers of its Job: namespace, name, conn_id, ..."""
    rows = TaskStateStoreModel
    index = compat.map_index_column(rows).label("map_index")
    query = select(rows.task_id, index, rows.value).where(
        rows.dag_id == dag_id, rows.run_id == run_id, rows.key == STORE_KEY
    )
    found = []
    for row in session.execute(query):
        claim = decoded(row.value)
        if Claim.from_dict(claim) is not None and claim.get("conn_id"):
            found.append((TaskKey(dag_id, run_id, row.task_id, row.map_index), claim))
    return found


def state(session: Session, key: TaskKey) -> str | None:
    """State of a task instance; None when it has none, or when there is no such task instance."""
    rows = TaskInstance
    found = session.scalar(select(rows.state).where(*_of(rows, key)))
    return None if found is None else str(getattr(found, "value", found))


def past(session: Session, key: TaskKey) -> list[dict[str, Any]]:
    """The jobs of the task instance that a later try replaced, oldest first."""
    found = stored(session, key, PAST_KEY)
    return found if isinstance(found, list) else []


def lineage(session: Session, key: TaskKey) -> dict[str, Any] | None:
    """The task's XCom `lineage`, None when there is none."""
    rows = XComModel
    found = decoded(session.scalar(select(rows.value).where(*_of(rows, key), rows.key == "lineage")))
    return found if isinstance(found, dict) else None


def decoded(value: Any) -> Any:
    """What a column with JSON says, None when it is not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
