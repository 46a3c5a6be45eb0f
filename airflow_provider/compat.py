"""The few things of Airflow 3.3 that are not public API, each in one place. Nothing else imports `execution_time`."""

from __future__ import annotations

from typing import Any

from airflow.sdk.execution_time.comms import GetTaskStates
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = ["BaseTrigger", "TriggerEvent", "clear_number", "set_xcom", "task_state", "task_state_from_trigger"]


async def task_state_from_trigger(ti: Any) -> str | None:
    """State of `ti` in Airflow's database, None when it has none (just cleared). For triggers.

    Raises LookupError when the task instance does not exist any more.
    """
    from airflow.sdk.execution_time import task_runner  # SUPERVISOR_COMMS exists only inside a running process

    answer = await task_runner.SUPERVISOR_COMMS.asend(
        GetTaskStates(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index)
    )
    return _pick(answer.task_states, ti)


def task_state(ti: Any) -> str | None:
    """As `task_state_from_trigger`, blocking, for workers."""
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
    )
    return _pick(states, ti)


def _pick(states: dict[str, dict[str, Any]], ti: Any) -> str | None:
    # The API adds the map index to the key of mapped task instances.
    key = f"{ti.task_id}_{ti.map_index}" if ti.map_index is not None and ti.map_index >= 0 else ti.task_id
    state = states[ti.run_id][key]
    return None if state is None else str(getattr(state, "value", state))


async def set_xcom(ti: Any, key: str, value: Any) -> None:
    """Write an XCom of `ti` while it is deferred. For triggers."""
    await XCom.aset(
        key,
        value,
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )


def clear_number(context: Any) -> int:
    """How often tasks of the DAG run were cleared; 0 where Airflow does not say (`dag.test()`)."""
    return int(getattr(context["dag_run"], "clear_number", 0) or 0)
