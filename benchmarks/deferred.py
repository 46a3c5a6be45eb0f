"""Put the mapped tasks of a Dag run into the state that their operator leaves them in: deferred, on a real trigger.

    python -m benchmarks.deferred DAG_ID RUN_ID FILE     in the environment of an Airflow
    python -m benchmarks.deferred DAG_ID RUN_ID          deletes the run with its tasks, whatever its state

FILE is a JSON list with `[classpath, kwargs]` of the trigger of each map index. A scheduler and its workers on two
cores need most of an hour to submit and defer a thousand tasks. The triggerer cannot tell the difference: it finds the
same rows in the database.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent


class NothingTrigger(BaseTrigger):  # type: ignore[misc]
    """Waits for nothing, for ever: what a trigger costs Airflow itself. `name` only tells one from the other."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.NothingTrigger", {"name": self.name}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.Event().wait()
        yield TriggerEvent({})


def defer(dag_id: str, run_id: str, triggers: list[tuple[str, dict[str, Any]]]) -> int:
    """Returns how many tasks are deferred now: as many as both there are and have a trigger."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    now = datetime.now(timezone.utc)
    with create_session() as session:
        mine = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.map_index >= 0)
        tasks = session.scalars(select(TaskInstance).where(*mine).order_by(TaskInstance.map_index)).all()
        pairs = list(zip(tasks, triggers, strict=False))
        for task, (classpath, kwargs) in pairs:
            row = Trigger(classpath=classpath, kwargs=kwargs)
            session.add(row)
            session.flush()
            task.state = TaskInstanceState.DEFERRED
            task.trigger_id = row.id
            task.next_method, task.next_kwargs = "execute_complete", {}
            task.try_number, task.start_date = 1, now
    return len(pairs)


def forget(dag_id: str, run_id: str) -> None:
    """What the REST API does for a run that does not run. Marked failed first, our trigger would delete the Jobs."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        session.delete(session.scalars(select(DagRun).filter_by(dag_id=dag_id, run_id=run_id)).one())


if __name__ == "__main__":
    dag_id, run_id, *files = sys.argv[1:]
    if files:
        print(defer(dag_id, run_id, json.loads(Path(files[0]).read_text())))
    else:
        forget(dag_id, run_id)
