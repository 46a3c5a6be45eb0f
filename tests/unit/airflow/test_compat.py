"""What is not public in Airflow, asked as a worker or a triggerer asks it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider import compat
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
