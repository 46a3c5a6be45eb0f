"""All that differs between the versions of Airflow, and all of it that is not public API, each in one place.

Runs on 3.0 to 3.4 (`make matrix-airflow`). What differs:
- 3.0 has no `BaseHook`, `conf` and exceptions below `airflow.sdk`; 3.1 none of the latter two.
- Before 3.3 there is no task state store: `store` keeps what servers read in XComs, which Airflow forgets when a try
  begins. What a later try has to know stands on the Jobs in the cluster.
- Before 3.3 a trigger has no `on_kill`, which is called for what a user does: there `cleanup`, which is always called,
  asks what has happened (`TELLS_OF_KILLS`).
- 3.0 has no tabs of plugins.
- 3.4 calls the map index `region_index` in the tables of task instances, XComs and the store (`map_index_column`).
  XComs are rows of two tables there, one for what was written before; `XComModel` reads both under the old names.
- 3.4 heeds a tab's `applies_to`: other tasks have no empty tab (`plugin.OPERATORS`).
- 3.4 empties the task state store with a user's clear: `identity.decide` then goes by the Jobs in the cluster alone.
- 3.4 does not call `on_kill` when a trigger was only handed to another triggerer; to ask for the state stays right.

What is not public is in PRIVATE, and each has a test that fails when it goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from airflow import __version__ as AIRFLOW_VERSION
from airflow.triggers.base import BaseTrigger, TriggerEvent

AIRFLOW = tuple(int(part) for part in AIRFLOW_VERSION.split(".")[:2])

if AIRFLOW >= (3, 3):
    from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # not in its stub
else:
    NEVER_EXPIRE = None

if AIRFLOW >= (3, 2):
    from airflow.sdk import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowRescheduleException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferred,
    )
else:
    from airflow.configuration import conf  # type: ignore[no-redef]
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowRescheduleException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferred,
    )

if AIRFLOW >= (3, 1):
    from airflow.sdk import BaseHook
else:
    from airflow.hooks.base import BaseHook

__all__ = [
    "AIRFLOW",
    "GONE",
    "HAS_STORE",
    "NEVER_EXPIRE",
    "PRIVATE",
    "TABS",
    "TELLS_OF_KILLS",
    "AirflowException",
    "AirflowFailException",
    "AirflowRescheduleException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "BaseHook",
    "BaseTrigger",
    "TaskDeferred",
    "TriggerEvent",
    "clear_number",
    "conf",
    "dag_details",
    "dag_details_of",
    "deserialised",
    "due_at",
    "first_look",
    "get_xcom",
    "map_index_column",
    "masked",
    "masks",
    "memory_rows",
    "newest_first",
    "note_clear",
    "serialised",
    "set_xcom",
    "store_in_database",
    "task_state",
    "task_state_from_trigger",
    "task_state_or_none",
    "undecorated",
    "variable",
    "variable_from_trigger",
    "variable_of_server",
    "xcom_of",
]

HAS_STORE = AIRFLOW >= (3, 3)
"""Whether there is a task state store."""
TELLS_OF_KILLS = hasattr(BaseTrigger, "on_kill")
"""Whether a trigger is told of what a user does with its task."""
TABS = AIRFLOW >= (3, 1)
"""Whether plugins can show a tab."""
PRIVATE = (
    "airflow.sdk.execution_time.task_runner:RuntimeTaskInstance.get_task_states",
    "airflow.sdk.execution_time.comms:GetTaskRescheduleStartDate",
    "airflow.sdk.execution_time.comms:GetTaskStates",
    "airflow.sdk.execution_time.comms:GetVariable",
    "airflow.sdk.execution_time.comms:GetXCom",
    "airflow.sdk.execution_time.comms:SetXCom",
    "airflow.sdk.execution_time.xcom:XCom.get_one",
    "airflow.sdk.bases.decorator:remove_task_decorator",
    *(("airflow.sdk.log:redact",) if AIRFLOW >= (3, 1) else ("airflow.sdk.execution_time.secrets_masker:redact",)),
    *(("airflow.sdk.serde:serialize",) if AIRFLOW >= (3, 2) else ("airflow.serialization.serde:serialize",)),
    *(("airflow._shared.state:TaskScope", "airflow.state:get_state_backend") if AIRFLOW >= (3, 3) else ()),
    *(("airflow.models.task_state_store:TaskStateStoreModel",) if AIRFLOW >= (3, 3) else ()),
    "airflow.models.variable:Variable.get_variable_from_secrets",
    "airflow.models.xcom:XComModel",
    "airflow.models.serialized_dag:SerializedDagModel",
    "airflow.api_fastapi.app:get_auth_manager",
    "airflow.api_fastapi.auth.managers.models.resource_details:DagDetails",
    "airflow.api_fastapi.common.db.common:SessionDep",
    "airflow.api_fastapi.core_api.security:requires_access_dag",
    "airflow.api_fastapi.logging.decorators:action_logging",
)
"""What is used of Airflow without being public, as `module:name`, here and in `plugin`."""


def map_index_column(model: Any) -> Any:
    """The column of an Airflow model that has the map index, -1 for a task that is not mapped."""
    return model.region_index if hasattr(model, "region_index") else model.map_index


GONE = "deleted"
"""Instead of a state: Airflow knows no such task instance any more, somebody deleted its Dag or its Dag run."""


async def task_state_from_trigger(ti: Any) -> str | None:
    """State of `ti` in Airflow's database, None when it has none (just cleared), or GONE. For triggers.

    Raises LookupError when the answer is about something else.
    """
    from airflow.sdk.execution_time.comms import GetTaskStates

    answer = await _answer(
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
    from airflow.sdk.execution_time.comms import GetVariable

    return getattr(await _answer(GetVariable(key=key)), "value", None)


async def _answer(message: Any) -> Any:
    """What the supervisor of a triggerer says, or of the worker in which a trigger runs (`waiting`)."""
    from airflow.sdk.execution_time import task_runner  # SUPERVISOR_COMMS exists only inside a running process

    comms = task_runner.SUPERVISOR_COMMS
    if hasattr(comms, "asend"):
        return await comms.asend(message)
    return await asyncio.to_thread(comms.send, message)  # of a worker, before 3.1


def _pick(states: dict[str, dict[str, Any]], ti: Any) -> str | None:
    # The API adds the map index to the key of mapped task instances.
    key = f"{ti.task_id}_{ti.map_index}" if ti.map_index is not None and ti.map_index >= 0 else ti.task_id
    state = states[ti.run_id][key]
    return None if state is None else str(getattr(state, "value", state))


async def set_xcom(ti: Any, key: str, value: Any) -> None:
    """Write an XCom of `ti` while it is deferred. For triggers."""
    from airflow.sdk.execution_time.comms import SetXCom
    from airflow.sdk.execution_time.xcom import XCom

    place = _place(ti)
    await _answer(SetXCom(key=key, value=XCom.serialize_value(value, key=key, **place), **place))


def _place(ti: Any) -> dict[str, Any]:
    index = -1 if ti.map_index is None else ti.map_index
    return {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": index}


def xcom_of(ti: Any, key: str) -> Any:
    """As `get_xcom`, for workers, of any task instance of any Dag."""
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.get_one(key=key, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)


async def get_xcom(ti: Any, key: str) -> Any:
    """An XCom of `ti`, None when there is none. For triggers."""
    from airflow.sdk.execution_time.comms import GetXCom
    from airflow.sdk.execution_time.xcom import XCom

    found = await _answer(GetXCom(key=key, **_place(ti)))
    return None if getattr(found, "value", None) is None else XCom.deserialize_value(found)


def due_at(context: Any) -> float | None:
    """Logical date of the Dag run, or from when it may run, where it has none: Unix seconds. None where Airflow does
    not say."""
    run = context["dag_run"]
    found = getattr(run, "logical_date", None) or getattr(run, "run_after", None)
    return None if found is None else float(found.timestamp())


def clear_number(context: Any) -> int:
    """How often tasks of the DAG run were cleared; 0 where Airflow does not say (`dag.test()`)."""
    return int(getattr(context["dag_run"], "clear_number", 0) or 0)


def first_look(context: Any) -> float | None:
    """When this try first ended with AirflowRescheduleException, Unix seconds; None when it has not, and where Airflow
    does not say."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import GetTaskRescheduleStartDate

    if not context.get("task_reschedule_count"):
        return None
    ti = context["ti"]
    try:
        asked = GetTaskRescheduleStartDate(ti_id=ti.id, try_number=ti.try_number)
        found = task_runner.SUPERVISOR_COMMS.send(asked).start_date
    except Exception:  # `dag.test()`, or an API that does not answer
        return None
    return None if found is None else float(found.timestamp())


def serialised(value: Any) -> Any:
    """`value` as Airflow writes an XCom down, whatever its backend. Raises what its serialisers raise."""
    return _serde().serialize(value)


def deserialised(value: Any) -> Any:
    """The opposite. Raises what the deserialisers raise."""
    return _serde().deserialize(value)


def _serde() -> Any:
    if AIRFLOW >= (3, 2):
        from airflow.sdk import serde
    else:
        from airflow.serialization import serde
    return serde


def masks(value: Any) -> bool:
    """Whether Airflow masks a text in `value`, which may be one, or a container of some."""
    if isinstance(value, str):
        return bool(value) and masked(value) != value
    if isinstance(value, Mapping):
        return any(masks(part) for pair in value.items() for part in pair)
    return isinstance(value, (list, tuple, set, frozenset)) and any(masks(part) for part in value)


def masked(text: str) -> str:
    """`text` without what Airflow masks in the logs of this process: passwords of connections and the like."""
    if AIRFLOW >= (3, 1):
        from airflow.sdk.log import redact
    else:
        from airflow.sdk.execution_time.secrets_masker import redact

    return str(redact(text))


def undecorated(source: str, decorator: str) -> str:
    """Source of a function without that decorator of a task, and Airflow's own `setup`, `teardown` and the like."""
    from airflow.sdk.bases.decorator import remove_task_decorator

    return str(remove_task_decorator(source, decorator))


# --- the task state store, and Airflow's servers, which have the database ---------------------------------------------
def store_in_database() -> bool:
    """Whether servers find in Airflow's database what tasks keep in their state store. There may be none, or it keeps
    its values elsewhere."""
    if not HAS_STORE:
        return False
    usual = "airflow.state.metastore.MetastoreBackend"
    elsewhere = conf.get("workers", "state_store_backend", fallback="")
    return not elsewhere and conf.get("state_store", "backend", fallback=usual) == usual


def memory_rows() -> Any:
    """Model of the table with what tasks remember: of the task state store, or of XComs where that is not in the
    database (`memory.Store`)."""
    if store_in_database():
        from airflow.models.task_state_store import TaskStateStoreModel

        return TaskStateStoreModel
    from airflow.models.xcom import XComModel

    return XComModel


def newest_first(rows: Any) -> Any:
    """How `memory_rows` are sorted by the time at which they were written."""
    return (rows.id if hasattr(rows, "id") else rows.timestamp).desc()


def note_clear(row: Any, key: str, value: str) -> None:
    """Tell the next try of `row`, a task instance in its session, that it follows a clear.

    Where there is no task state store, the row gets the retries of a task that was cleared when it did not run: so
    `max_tries` tells of it.
    """
    if not HAS_STORE:
        row.max_tries += 1
        return
    from airflow._shared.state import TaskScope
    from airflow.state import get_state_backend
    from sqlalchemy.orm import object_session

    scope = TaskScope(row.dag_id, row.run_id, row.task_id, -1 if row.map_index is None else row.map_index)
    get_state_backend().set(scope, key, value, session=object_session(row))


def dag_details(dag_id: str) -> Any:
    """Of whom Airflow asks whether they may do something with this Dag: with its team, where there are teams."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.models.dag import DagModel

    if AIRFLOW < (3, 1):
        return DagDetails(id=dag_id)
    return DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))


def dag_details_of(session: Any, dag_ids: list[str]) -> list[Any]:
    """The same of many Dags."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.models.dag import DagModel

    if AIRFLOW < (3, 1):
        return [dag_details(dag_id) for dag_id in dag_ids]
    if AIRFLOW < (3, 2):
        return [
            DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id, session=session)) for dag_id in dag_ids
        ]
    teams = DagModel.get_dag_id_to_team_name_mapping(dag_ids, session=session)
    return [DagDetails(id=dag_id, team_name=teams.get(dag_id)) for dag_id in dag_ids]
