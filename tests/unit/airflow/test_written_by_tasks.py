"""Whatever a task writes about itself: nobody else's page, worker, trigger or server is hurt by it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import db_rows
import garbage
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy.orm import Session
from test_plugin_data import add, lineage
from test_train_operator import Store

from airflow_provider import compat, memory, return_value
from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try, belongs
from airflow_provider.lineage import condensed
from airflow_provider.logplace import Place
from airflow_provider.plugin import app, data, listing
from singularity_proxy.protocol import decode
from singularity_proxy.protocol.decode import Unreadable

ATTEMPT = {
    "attempt": 1, "queued_at": 1.0, "admitted_at": 2.0, "first_step": 0, "first_step_at": 3.0, "last_step": 9,
    "evicted_at": 5.0, "barrier_at": None, "finished_at": 6.0,
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "phase": "Running", "attempts": [ATTEMPT], "namespace": "n", "name": "j", "reason": "", "message": "m",
    "queue": "q", "step": 3, "priority_class": "", "flavor": "f", "pods": 2, "workers": 2, "steps_lost": 1,
    "created_at": "2026-01-01T00:00:00Z", "attempts_omitted": 0,
}  # fmt: skip
KEY = TaskKey("dag", "run", "train")
CLAIM = Claim(KEY, 0, Try(1, 0, 0), "ns", "job", "uid").to_dict()
written = garbage.texts() | garbage.spoilt(json.dumps(DOCUMENT)) | garbage.spoilt(json.dumps(CLAIM))
slow = settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))


@slow
@given(written)
def test_a_line_is_plain_data_or_a_reason(text: str) -> None:
    found = condensed(data.decoded(text), 10.0)
    if isinstance(found, Unreadable):
        assert 0 < len(found.why) < 500
    else:
        json.dumps(found, allow_nan=False).encode()
        assert all(len(value) <= 1000 for value in found.values() if isinstance(value, str))


def test_a_good_document_is_read() -> None:
    found = condensed(DOCUMENT, 10.0)
    assert isinstance(found, dict)
    assert (found["attempts"], found["evictions"], found["step"], found["flavor"]) == (1, 1, 3, "f")
    assert found["goodput"] is not None


@slow
@given(written)
def test_a_claim_is_one_or_none(text: str) -> None:
    claim = Claim.from_dict(data.decoded(text))
    job = {"metadata": {"uid": "u", "annotations": {ANN_TASK: text}}}
    assert Claim.of_job(job) is None or claim is not None
    assert belongs(job, {"a"}) in (True, False)
    if claim is not None:
        assert "/" not in claim.namespace + claim.name and ".." not in (claim.namespace, claim.name)
        assert Claim.from_dict(claim.to_dict()) == claim


@slow
@given(garbage.values(), garbage.values())
def test_what_a_task_remembers_of_itself(first: Any, second: Any) -> None:
    store = Store({memory.OUTCOME_KEY: first, memory.RESULT_KEY: second, memory.PAST_KEY: first})
    assert memory.outcome(store, "uid") is None
    assert memory.cleared_try(Store({memory.CLEARED_KEY: first})) >= 0 or isinstance(first, int)
    memory.add_past(store, DOCUMENT | {"uid": "uid"})
    assert store[memory.PAST_KEY][-1]["uid"] == "uid"
    found = asyncio.run(place(second))
    assert found is None or [type(part) for part in found] == [int, str, int]


async def place(value: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:

        async def get(ti: Any, key: str) -> Any:
            return value

        patch.setattr(compat, "get_xcom", get)
        return await Place(SimpleNamespace(), SimpleNamespace(debug=lambda *_: None)).load()


@slow
@given(garbage.texts())
def test_a_return_value_is_whole_or_missing(text: str) -> None:
    with contextlib.suppress(LookupError):
        return_value.taken(decode.json_value(text))


# --- the page of everybody --------------------------------------------------------------------------------------------
@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(app, "lines", listing.Lines())
    with db_rows.database() as made:
        yield made


def page(session: Session, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    manager = SimpleNamespace(get_authorized_dag_ids=lambda user, method: {"mine"}, is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(app, "get_auth_manager", lambda: manager)
    answer = app.runs(SimpleNamespace(headers={}), "somebody", session, None, 200)  # type: ignore[arg-type]
    return json.loads(bytes(answer.body))  # type: ignore[no-any-return]


HOSTILE = [
    "text",
    7,
    [],
    {"phase": "Running", "attempts": 5},
    {"phase": "Running", "attempts": [None]},
    {"phase": "Running", "attempts": [{"admitted_at": "x"}]},
    {"phase": "Running", "attempts": [], "step": float("nan")},
    {"phase": "Running", "attempts": [{**ATTEMPT, "last_step": 10**400}]},
    {"phase": {"a": 1}, "attempts": []},
    json.dumps(json.dumps(DOCUMENT)),
    "[" * 100_000,
    "\ud800",
]


def test_one_bad_document_hides_nothing_of_the_others(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, value in enumerate(HOSTILE):
        add(session, "mine", number, value)
    add(session, "mine", 100, lineage("Running"))
    add(session, "mine", 101, json.dumps(lineage("Running")))  # as Airflow's client writes it
    for _ in range(2):
        found = page(session, monkeypatch)
        assert [row["run_id"] for row in found["runs"]] == ["run-101", "run-100"]
        assert {row["run_id"] for row in found["unreadable"]} == {f"run-{n}" for n in range(len(HOSTILE))}
        assert all(row["why"] and row["task_id"] == "train" for row in found["unreadable"])
    for number in range(len(HOSTILE)):
        assert isinstance(data.lineage(session, TaskKey("mine", f"run-{number}", "train")), Unreadable)


def test_a_document_of_megabytes_is_not_fetched(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    add(session, "mine", 1, {**DOCUMENT, "message": "x" * 5_000_000})
    (row,) = page(session, monkeypatch)["unreadable"]
    assert "longer than" in row["why"]
