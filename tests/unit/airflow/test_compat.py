"""What is not public in Airflow, asked as a worker or a triggerer asks it."""

from __future__ import annotations

import importlib
import pkgutil
from types import SimpleNamespace
from typing import Any

import pytest

import airflow_provider
from airflow_provider import compat, memory
from airflow_provider.compat import variable, variable_from_trigger  # before a fixture takes their place


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"r": {"train": "failed"}}, "failed"),
        ({"r": {"train": None}}, None),
        ({}, compat.GONE),
        ({"r": {"other": "failed"}}, LookupError),  # not what was asked for: proves nothing
        ({"r": {}}, LookupError),
    ],
)
async def test_a_task_is_gone_only_when_airflow_knows_of_none(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], state: Any
) -> None:
    from airflow.sdk.execution_time import task_runner

    async def asend(message: Any) -> Any:
        assert (message.dag_id, message.task_ids, message.run_ids) == ("d", ["train"], ["r"])
        return SimpleNamespace(task_states=answer)

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(asend=asend), raising=False)
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="train", map_index=-1)
    if state is LookupError:
        with pytest.raises(LookupError):
            await compat.task_state_from_trigger(ti)
    else:
        assert await compat.task_state_from_trigger(ti) == state


class Comms:
    """A process's channel to its supervisor."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def send(self, message: Any) -> Any:
        assert (type(message).__name__, message.key) == ("GetVariable", "v")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def asend(self, message: Any) -> Any:
        return self.send(message)


def answers() -> list[tuple[Any, Any]]:
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, VariableResult

    down = AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
    return [
        (VariableResult(key="v", value="x"), "x"),
        (ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND), None),
        (down, AirflowRuntimeError),
    ]


@pytest.mark.parametrize("number", range(3))
async def test_a_variable_that_cannot_be_asked_for_is_not_taken_for_missing(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    from airflow.sdk.execution_time import task_runner

    answer, wanted = answers()[number]
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Comms(answer), raising=False)
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            variable("v")
        with pytest.raises(wanted):
            await variable_from_trigger("v")
    else:
        assert variable("v") == wanted
        assert await variable_from_trigger("v") == wanted


@pytest.mark.parametrize("what", compat.PRIVATE)
def test_what_is_not_public_is_still_there(what: str) -> None:
    module, _, path = what.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)


@pytest.mark.parametrize(
    "name", [each.name for each in pkgutil.walk_packages(airflow_provider.__path__, "airflow_provider.")]
)
def test_every_module_is_imported_by_this_airflow(name: str) -> None:
    if name == "airflow_provider.openlineage":
        pytest.importorskip("airflow.providers.openlineage.api", reason="this OpenLineage provider has no `api`")
    importlib.import_module(name)


class Told:
    """A task instance that keeps its XComs."""

    dag_id, run_id, task_id, map_index = "d", "r", "t", -1

    def __init__(self) -> None:
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: str, key: str, map_indexes: int) -> Any:
        return self.xcoms.get(key)


class Own(dict[str, Any]):
    """A task state store."""

    def set(self, key: str, value: object, *, retention: object = None) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


def test_without_a_store_servers_read_xcoms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "HAS_STORE", False)
    ti = Told()
    store = memory.store_of({"ti": ti})
    memory.write_down(store, memory.MANIFEST_KEY, "text")
    assert (store.get(memory.MANIFEST_KEY), ti.xcoms) == ("text", {memory.MANIFEST_KEY: "text"})
    assert not memory.lasts(store) and not compat.store_in_database()


def test_a_store_that_servers_cannot_read_has_xcoms_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "HAS_STORE", True)
    monkeypatch.setenv("AIRFLOW__STATE_STORE__BACKEND", "company.Backend")
    ti, own = Told(), Own()
    store = memory.store_of({"ti": ti, "task_state_store": own})
    for key in (memory.MANIFEST_KEY, memory.STORE_KEY):
        memory.write_down(store, key, "text")
    assert own == {memory.MANIFEST_KEY: "text", memory.STORE_KEY: "text"}
    assert ti.xcoms == {memory.STORE_KEY: "text"}
    assert memory.lasts(store)


def test_the_usual_store_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "HAS_STORE", True)
    own = Own()
    assert memory.store_of({"ti": Told(), "task_state_store": own}) is own
    assert memory.store_of({"ti": Told()}) is None, "`dag.test()`"


def test_before_there_was_a_store_a_clear_of_a_running_task_adds_to_its_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "HAS_STORE", False)
    row = SimpleNamespace(max_tries=2)
    compat.note_clear(row, memory.CLEARED_KEY, "1")
    assert row.max_tries == 3
