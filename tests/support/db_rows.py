"""Rows of Airflow's database without the scheduler that would make them; for each version, whose tables differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import airflow.models as airflow_models
from airflow.models import xcom
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from airflow_provider import compat


@contextmanager
def database() -> Iterator[Session]:
    """An empty one in memory, the same for all threads."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    # A task instance without the Dag version and the log template that a scheduler would make first.
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=OFF"))
    airflow_models.import_all_models()
    DagRun.metadata.create_all(engine)
    with Session(engine) as session:
        yield session


def task_instance(session: Any, **values: Any) -> UUID:
    new = uuid4() if compat.AIRFLOW >= (3, 2) else str(uuid4())  # as the column is
    made = {"id": new, "pool": "default_pool", "pool_slots": 1, **values}
    _insert(session, TaskInstance, made)
    return made["id"]  # type: ignore[no-any-return]


def stored(session: Any, **values: Any) -> None:
    """A value that a task has kept for servers."""
    rows = compat.memory_rows()
    moment = {} if hasattr(rows, "id") else {"timestamp": values.pop("updated_at", datetime.now(UTC))}
    _insert(session, rows, {"dag_run_id": 1, **values, **moment})


def serialized(session: Any, dag: Any) -> UUID:
    """A Dag as the dag-processor writes it; its version."""
    from airflow_versions import DagSerialization

    version = uuid4()
    # As it comes back from the database.
    data = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    row = {"id": uuid4(), "dag_id": dag.dag_id, "dag_version_id": version, "dag_hash": uuid4().hex, "data": data}
    moment = datetime.now(UTC)
    _insert(session, SerializedDagModel, {**row, "created_at": moment, "last_updated": moment})
    return version


def xcom_of(session: Any, task_instance_id: UUID, **values: Any) -> None:
    model = getattr(xcom, "XComModelV2", None)
    if model is None:
        _insert(session, xcom.XComModel, values)
    else:
        kept = {name: values[name] for name in ("key", "value", "timestamp")}
        _insert(session, model, {"id": uuid4(), "task_instance_id": task_instance_id, **kept})


def rewrite_xcoms(session: Any, run_id: str, **values: Any) -> None:
    """Change the XComs of a Dag run, as writing them anew does."""
    model = getattr(xcom, "XComModelV2", None)
    if model is None:
        table = xcom.XComModel.__table__
        which = table.c.run_id == run_id
    else:
        table = model.__table__
        which = table.c.task_instance_id.in_(select(TaskInstance.id).where(TaskInstance.run_id == run_id))
    session.execute(table.update().where(which).values(**values))


def _insert(session: Any, model: Any, values: dict[str, Any]) -> None:
    table = model.__table__
    if "region_index" in table.c:
        values = {("region_index" if name == "map_index" else name): value for name, value in values.items()}
    session.execute(table.insert().values(**values))
