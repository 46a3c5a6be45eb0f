"""What Airflow's database knows about training task instances. Read only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import Text, and_, cast, func, or_, select
from sqlalchemy.orm import Session

from singularity_proxy.protocol import decode

from .. import compat
from ..identity import Claim, TaskKey, Try
from ..lineage import condensed
from ..memory import CLEARED_KEY, PAST_KEY, STORE_KEY
from ..triggers import CLEARED_STATES, USER_STATES


def of_task(rows: Any, key: TaskKey) -> tuple[Any, ...]:
    """Where `rows`, a table by task instance, is about `key`."""
    index = compat.map_index_column(rows)
    return rows.dag_id == key.dag_id, rows.run_id == key.run_id, rows.task_id == key.task_id, index == key.map_index


def stored(session: Session, key: TaskKey, name: str) -> Any:
    """What the task has kept for servers (`memory`), None when there is none or when it is not JSON."""
    rows = compat.memory_rows()
    found = decoded(session.scalar(select(as_text(rows.value)).where(*of_task(rows, key), rows.key == name)))
    return None if isinstance(found, decode.Unreadable) else found


def claim(session: Session, key: TaskKey) -> dict[str, Any] | None:
    """Which Job the task instance has: namespace, name, uid, conn_id; None before its submission."""
    found = stored(session, key, STORE_KEY)
    claim = Claim.from_dict(found)
    return None if claim is None or claim.uid is None else {**claim.to_dict(), "conn_id": found.get("conn_id")}


def claims(session: Session, dag_id: str, run_id: str) -> list[tuple[TaskKey, dict[str, Any]]]:
    """What every training task instance of a Dag run remembers of its Job: namespace, name, conn_id, ..."""
    rows = compat.memory_rows()
    index = compat.map_index_column(rows).label("map_index")
    query = select(rows.task_id, index, as_text(rows.value).label("value")).where(
        rows.dag_id == dag_id, rows.run_id == run_id, rows.key == STORE_KEY
    )
    found = []
    for row in session.execute(query):
        value = decoded(row.value)
        claim = Claim.from_dict(value)
        if claim is not None and value.get("conn_id"):
            key = TaskKey(dag_id, run_id, row.task_id, row.map_index)
            found.append((key, {**claim.to_dict(), "conn_id": value["conn_id"]}))
    return found


def state(session: Session, key: TaskKey) -> str | None:
    """State of a task instance; None when it has none, or when there is no such task instance."""
    rows = TaskInstance
    found = session.scalar(select(rows.state).where(*of_task(rows, key)))
    return None if found is None else str(getattr(found, "value", found))


def current_try(session: Session, key: TaskKey) -> Try | None:
    """What the task instance's row says of its try, without the clears of the Dag run; None without a row."""
    rows = TaskInstance
    found = session.execute(select(rows.try_number, rows.max_tries).where(*of_task(rows, key))).first()
    return None if found is None else Try(found.try_number or 0, found.max_tries or 0, 0)


def runs_of_cleared(session: Session) -> set[tuple[str, str]]:
    """Dag and run of every task that was cleared since its Job was made, and whose next try has not started."""
    tasks, names = TaskInstance, [state for state in CLEARED_STATES if state is not None]
    found = set()
    for row in session.execute(_with_jobs(or_(tasks.state.is_(None), tasks.state.in_(names)))):
        claim = Claim.from_dict(decoded(row.value))
        if claim is None or (row.dag_id, row.run_id) in found:
            continue
        before = stored(session, claim.key, CLEARED_KEY)
        cleared = before if isinstance(before, int) else 0
        if Try(row.try_number or 0, row.max_tries or 0, 0, cleared).cleared_since(claim.made_by):
            found.add((row.dag_id, row.run_id))
    return found


def runs_of_ended(session: Session, since: datetime) -> set[tuple[str, str]]:
    """Dag and run of every task with a Job that has ended after `since`, however."""
    tasks = TaskInstance
    query = _with_jobs(and_(tasks.state.in_(sorted(USER_STATES)), tasks.updated_at >= since))
    return {(row.dag_id, row.run_id) for row in session.execute(query)}


def _with_jobs(condition: Any) -> Any:
    """Task instances that have submitted a Job, and what they remember of it."""
    tasks, kept = TaskInstance, compat.memory_rows()
    same = (
        kept.dag_id == tasks.dag_id, kept.run_id == tasks.run_id, kept.task_id == tasks.task_id,
        compat.map_index_column(kept) == compat.map_index_column(tasks), kept.key == STORE_KEY,
    )  # fmt: skip
    columns = tasks.dag_id, tasks.run_id, tasks.try_number, tasks.max_tries, as_text(kept.value).label("value")
    return select(*columns).join(kept, and_(*same)).where(condition)


def past(session: Session, key: TaskKey) -> list[dict[str, Any]]:
    """The jobs of the task instance that a later try replaced, oldest first."""
    found = stored(session, key, PAST_KEY)
    found = found if isinstance(found, list) else []
    return [entry for entry in found if not isinstance(condensed(entry), decode.Unreadable)]


def lineage(session: Session, key: TaskKey) -> dict[str, Any] | decode.Unreadable | None:
    """The task's XCom `lineage`, None when there is none."""
    rows = XComModel
    text = session.scalar(select(as_text(rows.value)).where(*of_task(rows, key), rows.key == "lineage"))
    if text is None:
        return None
    found = decoded(text)
    line = condensed(found)
    return line if isinstance(line, decode.Unreadable) else found


def as_text(column: Any) -> Any:
    """A column with JSON as its text, not decoded by the database's driver, and no more of it than anybody reads."""
    return func.substr(cast(column, Text), 1, decode.MAX_BYTES + 1)


def decoded(text: object) -> Any:
    """What a column with JSON says, or Unreadable. An XCom's value is JSON within a JSON text."""
    value = decode.json_value(text)
    return decode.json_value(value) if isinstance(value, str) else value
