"""The few things of Airflow that are not public API, each in one place. Nothing else imports `execution_time`.

Runs on 3.3 and on 3.4 (3.4.0b2: `make test-airflow-next`). What differs there:
- The tables of task instances, XComs and the task state store call the map index `region_index` (`map_index_column`).
- XComs are rows of two tables, one of them for what was written before; `XComModel` reads both under the old names.
- A tab's `applies_to` is heeded: other tasks have no empty tab (`plugin.OPERATORS`).
- A user's clear empties the task state store: `identity.decide` then goes by the Jobs in the cluster alone.
- `on_kill` is no longer called when a trigger was only handed to another triggerer; asking for the state stays right.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # not in its stub
from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = [
    "GONE",
    "NEVER_EXPIRE",
    "BaseTrigger",
    "TriggerEvent",
    "clear_number",
    "deserialised",
    "due_at",
    "get_xcom",
    "map_index_column",
    "masked",
    "serialised",
    "set_xcom",
    "task_state",
    "task_state_from_trigger",
    "task_state_or_none",
    "undecorated",
    "variable",
    "variable_from_trigger",
    "variable_of_server",
    "xcom_of",
]


def map_index_column(model: Any) -> Any:
    """The column of an Airflow model that has the map index, -1 for a task that is not mapped."""
    return model.region_index if hasattr(model, "region_index") else model.map_index


GONE = "deleted"
"""Instead of a state: Airflow knows no such task instance any more, somebody deleted its Dag or its Dag run."""


async def task_state_from_trigger(ti: Any) -> str | None:
    """State of `ti` in Airflow's database, None when it has none (just cleared), or GONE. For triggers.

    Raises LookupError when the answer is about something else.
    """
    from airflow.sdk.execution_time import task_runner  # SUPERVISOR_COMMS exists only inside a running process
    from airflow.sdk.execution_time.comms import GetTaskStates

    answer = await task_runner.SUPERVISOR_COMMS.asend(
        GetTaskStates(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index)
    )
    # Asked for one task instance of one run: only an empty answer proves that there is none.
    return _pick(answer.task_states, ti) if answer.task_states else GONE


def task_state(ti: Any) -> str | None:
    """As `task_state_from_trigger`, blocking, for workers."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
    )
    return _pick(states, ti)


def task_state_or_none(ti: Any) -> str | None:
    """As `task_state`, of any task instance of any Dag; None, too, where there is no such one. Raises what Airflow's
    API raises."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
    )
    return _pick(states, ti) if states else None


def variable(key: str) -> str | None:
    """An Airflow Variable, None when there is none. For workers.

    Unlike `Variable.get`, which takes an Airflow that does not answer for one without the variable: then
    AirflowRuntimeError is raised.
    """
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import GetVariable

    return getattr(task_runner.SUPERVISOR_COMMS.send(GetVariable(key=key)), "value", None)


def variable_of_server(key: str) -> str | None:
    """As `variable`, for Airflow's servers, which have the database."""
    from airflow.models.variable import Variable

    found = Variable.get_variable_from_secrets(key)
    return None if found is None else str(found)


async def variable_from_trigger(key: str) -> str | None:
    """As `variable`, for triggers."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import GetVariable

    return getattr(await task_runner.SUPERVISOR_COMMS.asend(GetVariable(key=key)), "value", None)


def _pick(states: dict[str, dict[str, Any]], ti: Any) -> str | None:
    # The API adds the map index to the key of mapped task instances.
    key = f"{ti.task_id}_{ti.map_index}" if ti.map_index is not None and ti.map_index >= 0 else ti.task_id
    state = states[ti.run_id][key]
    return None if state is None else str(getattr(state, "value", state))


async def set_xcom(ti: Any, key: str, value: Any) -> None:
    """Write an XCom of `ti` while it is deferred. For triggers."""
    from airflow.sdk.execution_time.xcom import XCom

    await XCom.aset(
        key,
        value,
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )


def xcom_of(ti: Any, key: str) -> Any:
    """As `get_xcom`, for workers, of any task instance of any Dag."""
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.get_one(key=key, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)


async def get_xcom(ti: Any, key: str) -> Any:
    """An XCom of `ti`, None when there is none. For triggers."""
    from airflow.sdk.execution_time.xcom import XCom

    return await XCom.aget_one(
        key=key,
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )


def due_at(context: Any) -> float | None:
    """Logical date of the Dag run, or from when it may run, where it has none: Unix seconds. None where Airflow does
    not say."""
    run = context["dag_run"]
    found = getattr(run, "logical_date", None) or getattr(run, "run_after", None)
    return None if found is None else float(found.timestamp())


def clear_number(context: Any) -> int:
    """How often tasks of the DAG run were cleared; 0 where Airflow does not say (`dag.test()`)."""
    return int(getattr(context["dag_run"], "clear_number", 0) or 0)


def serialised(value: Any) -> Any:
    """`value` as Airflow writes an XCom down, whatever its backend. Raises what its serialisers raise."""
    from airflow.sdk.serde import serialize

    return serialize(value)


def deserialised(value: Any) -> Any:
    """The opposite. Raises what the deserialisers raise."""
    from airflow.sdk.serde import deserialize

    return deserialize(value)


def masked(text: str) -> str:
    """`text` without what Airflow masks in the logs of this process: passwords of connections and the like."""
    from airflow.sdk.log import redact

    return str(redact(text))


def undecorated(source: str, decorator: str) -> str:
    """Source of a function without that decorator of a task, and Airflow's own `setup`, `teardown` and the like."""
    from airflow.sdk.definitions._internal.decorators import remove_task_decorator

    return str(remove_task_decorator(source, decorator))
