"""Where Airflow says that a task or a run has ended: the cue to look for Jobs that nobody waits for any more. And that
it starts: the cue to give this Airflow an id, and to look round from time to time (`patrol`).

Called in the scheduler (a run has ended, a worker was lost) and in the api-server (marked by a user). Workers call it
too, with an object that is no row of the database, and are left alone. Every process loads this: it imports nothing.
"""

from __future__ import annotations

from typing import Any

from airflow.listeners import hookimpl


def _look(row: Any) -> None:
    if hasattr(row, "_sa_instance_state"):
        from .orphans import sweeper

        sweeper.later(row.dag_id, row.run_id)


@hookimpl  # type: ignore[untyped-decorator]
def on_starting(component: Any) -> None:
    """Airflow's hook: a scheduler, triggerer or dag-processor starts, which it does not say yet; or a task in a worker,
    which has no database."""
    if hasattr(component, "_sa_instance_state"):
        from .deployment import ensure
        from .patrol import start

        ensure()
        start(component)


@hookimpl  # type: ignore[untyped-decorator]
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """Airflow's hook: before the row with its new state is written, in the session that writes it."""
    if hasattr(task_instance, "_sa_instance_state"):
        from .cleared import note

        note(task_instance)
    _look(task_instance)


@hookimpl  # type: ignore[untyped-decorator]
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """Airflow's hook."""
    _look(task_instance)


@hookimpl  # type: ignore[untyped-decorator]
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """Airflow's hook."""
    _look(task_instance)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """Airflow's hook."""
    _look(dag_run)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """Airflow's hook."""
    _look(dag_run)
