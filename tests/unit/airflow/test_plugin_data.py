"""The UI plugin without an api-server: whose Job may be acted on, what is remembered, what lists show."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import db_rows
import pytest
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow_fakes import NAMESPACE, WAITING, make_workload
from sqlalchemy.orm import Session

from airflow_provider import memory
from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try
from airflow_provider.lineage import condensed, goodput
from airflow_provider.lineage import moves as document_moves
from airflow_provider.plugin import SingularityPlugin, actions, data, listing
from airflow_provider.plugin.live_looks import LiveLooks
from airflow_provider.plugin.static_files import STATIC
from kueue_integration.cli import trace_svg
from kueue_integration.contract import job_names
from kueue_integration.contract.attempt_phases import AttemptPhases
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.jobs import move_trace
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from singularity_proxy.protocol import decode
from singularity_proxy.protocol.decode import Unreadable
from singularity_proxy.protocol.messages import to_json
from singularity_proxy.protocol.phases import SavePhases, StartPhases

KEY = TaskKey("dag", "run", "train", -1)


def made(kube: FakeKube, key: TaskKey = KEY) -> dict[str, Any]:
    """A Job of task instance `key`, and what Airflow's store says about it."""
    claim = Claim(key, 0, Try(1, 0, 0), NAMESPACE, "train-1")
    job = kube.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": claim.name,
                "namespace": claim.namespace,
                "labels": {
                    job_names.LABEL_MANAGED: "true",
                    job_names.LABEL_JOB: claim.name,
                    job_names.KUEUE_QUEUE_LABEL: "training",
                },
                "annotations": {ANN_TASK: json.dumps(claim.to_dict())},
            },
            "spec": {"parallelism": 2, "suspend": True, "template": {"spec": {"containers": []}}},
        }
    )
    return {**claim.to_dict(), "uid": job["metadata"]["uid"], "conn_id": "c"}


def test_live_shows_the_job_and_looks_once_for_many_tabs() -> None:
    kube = FakeKube()
    claim = made(kube)
    asked: list[str] = []
    looks = LiveLooks(actions.Clusters(lambda conn_id: (asked.append(conn_id), (kube, "default"))[1]))
    first = looks.ask(KEY, claim).result(120)
    assert (first["name"], first["queue"], first["phase"]) == ("train-1", "training", "Submitted")
    kube.delete(JOB, NAMESPACE, "train-1")
    assert looks.ask(KEY, claim).result(120) == first
    assert asked == ["c"]


def test_live_says_at_which_place_in_the_queue_the_job_waits() -> None:
    kube = FakeKube()
    claim = made(kube)
    job = kube.get(JOB, NAMESPACE, "train-1")
    workload = make_workload(job, *WAITING)
    kube.put({**workload, "spec": {**workload.get("spec", {}), "queueName": "training"}})
    queue = f"namespaces/{NAMESPACE}/localqueues/training/pendingworkloads?limit=1000"
    kube.paths[f"/apis/visibility.kueue.x-k8s.io/v1beta2/{queue}"] = {
        "items": [
            {
                "metadata": {"name": name, "namespace": NAMESPACE},
                "localQueueName": "training",
                "positionInLocalQueue": place,
                "positionInClusterQueue": place,
            }
            for place, name in enumerate(("other", workload["metadata"]["name"]))
        ]
    }
    shown = LiveLooks(actions.Clusters(lambda conn_id: (kube, "default"))).ask(KEY, claim).result(120)
    assert shown["queue_position"]["place"] == 2
    assert "place 2 of 2 in queue training" in shown["message"]


@pytest.mark.parametrize("other", [TaskKey("dag", "run", "train", 3), TaskKey("other", "run", "train", -1)])
def test_a_job_of_somebody_else_is_not_touched(other: TaskKey) -> None:
    kube = FakeKube()
    claim = made(kube, other)
    with pytest.raises(actions.NotTheJobError, match="does not belong"):
        actions.find(kube, KEY, claim)


def test_a_job_of_another_airflow_is_not_touched() -> None:
    kube = FakeKube()
    claim = {**made(kube), "deployment": "here"}
    with pytest.raises(actions.NotTheJobError, match="does not belong"):
        actions.find(kube, KEY, claim)


def test_a_job_of_the_same_name_is_not_the_job() -> None:
    kube = FakeKube()
    claim = {**made(kube), "uid": "another"}
    with pytest.raises(actions.NotTheJobError, match="does not exist"):
        actions.find(kube, KEY, claim)


class Store(dict[str, Any]):
    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self[key] = value


def test_the_past_keeps_one_document_per_job_and_stays_small() -> None:
    store = Store()
    memory.add_past(store, {"uid": "a", "attempts": [{"attempt": 1}]})
    memory.add_past(store, {"uid": "b", "attempts": []})
    memory.add_past(store, {"uid": "a", "attempts": [{"attempt": 1}, {"attempt": 2}]})
    assert [(p["uid"], len(p["attempts"])) for p in store[memory.PAST_KEY]] == [("a", 2)]
    for number in range(40):
        memory.add_past(store, {"uid": str(number), "attempts": [{"note": "x" * 3000}]})
    kept = [p["uid"] for p in store[memory.PAST_KEY]]
    assert kept == [str(n) for n in range(40 - len(kept), 40)]
    assert 5 < len(kept) < 20


def attempt(**times: float) -> dict[str, Any]:
    return {"queued_at": 0.0, "admitted_at": 10.0, "first_step": 0, **times}


def test_goodput_counts_steps_that_stand() -> None:
    only = attempt(first_step_at=20.0, finished_at=100.0, last_step=79)
    done = {"phase": "Succeeded", "steps_lost": 0, "attempts": [only]}
    assert goodput(done, now=1e9) == pytest.approx(0.8)
    assert goodput({**done, "steps_lost": 20}, now=1e9) == pytest.approx(0.6)
    assert goodput({**done, "phase": "Preempted"}, now=200.0) == pytest.approx(0.4)
    assert goodput({"phase": "Queued", "attempts": []}, now=1.0) is None


def test_condensed_takes_nothing_else_for_a_lineage() -> None:
    for other in (None, "text", {"phase": "Running"}, {"phase": "Running", "attempts": [{"admitted_at": "soon"}]}):
        assert isinstance(condensed(other), Unreadable)


# --- the trace of moves -----------------------------------------------------------------------------------------------
HISTORY = [
    AttemptRecord(1, "r1", "spot", 2, 2, 10.0, first_step_at=12.0, evicted_at=20.0, barrier_at=20.5, committed_at=24.0,
                  released_at=25.0, checkpoint="c", ended_by="Preempted"),
    AttemptRecord(2, "r2", "ondemand", 2, 2, 27.0, running_at=33.0, first_step_at=34.0, restored_from="c"),
]  # fmt: skip
TOLD = [AttemptPhases(1, save=SavePhases(barrier=0.5, dump=2.0)), AttemptPhases(2, StartPhases(fetch=3.0))]


def traced(kube: FakeKube) -> dict[str, Any]:
    """A Job that has moved, and its claim."""
    claim = made(kube)
    notes = {job_names.ANN_HISTORY: to_json(HISTORY), job_names.ANN_PHASES: to_json(TOLD)}
    job = kube.get(JOB, NAMESPACE, "train-1")
    job["metadata"]["annotations"].update(notes)
    kube.put(job)
    return claim


def test_the_tab_draws_the_moves_that_the_command_draws() -> None:
    kube = FakeKube()
    claim = traced(kube)
    found = document_moves(LiveLooks(actions.Clusters(lambda conn_id: (kube, "default"))).ask(KEY, claim).result(120))
    assert found == json.loads(json.dumps([dataclasses.asdict(move) for move in move_trace.moves(HISTORY, TOLD)]))
    assert [(move["left"], move["right"], move["seconds"]) for move in found] == [(1, 2, 14.0)]
    assert {"phase": "fetch", "by": "store", "start": 10.0, "seconds": 3.0} in found[0]["spans"]


@pytest.mark.parametrize("spoilt", [{}, {"attempts": "many"}, {"attempts": [{"attempt": 1}]}, {"attempts": [None]}])
def test_a_document_that_a_task_has_spoilt_has_no_moves(spoilt: dict[str, Any]) -> None:
    assert document_moves(spoilt) == []


def test_a_document_of_before_the_trace_is_drawn_with_what_it_has() -> None:
    old = {"attempts": [decode.plain(record) for record in HISTORY]}
    assert document_moves(old)[0]["notes"] == [move_trace.UNTOLD_SAVE, move_trace.UNTOLD_START]


def test_who_works_in_a_phase_has_a_colour_in_the_tab() -> None:
    script = (STATIC / "training.js").read_text()
    table = re.search(r"const WORKER = {(.*?)};", script)
    assert table is not None
    assert set(re.findall(r"(\w+):", table[1])) == set(trace_svg.COLOURS)


# --- the database queries, on Airflow's own models --------------------------------------------------------------------
@pytest.fixture
def session() -> Iterator[Session]:
    with db_rows.database() as made_session:
        yield made_session


def lineage(phase: str) -> dict[str, Any]:
    return {"phase": phase, "attempts": [attempt(first_step_at=20.0, last_step=4)], "queue": "q", "steps_lost": 0}


def add(session: Session, dag_id: str, number: int, value: Any) -> None:
    from datetime import datetime, timedelta, timezone

    start = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(hours=number)
    run_id = f"run-{number}"
    run = {"id": number, "dag_id": dag_id, "run_id": run_id, "run_type": "manual", "state": "running"}
    row = {"dag_id": dag_id, "run_id": run_id, "task_id": "train", "map_index": -1}
    session.execute(DagRun.__table__.insert().values(**run, run_after=start, clear_number=0))
    task = db_rows.task_instance(session, **row, state="deferred")
    db_rows.xcom_of(session, task, **row, dag_run_id=number, key="lineage", value=value, timestamp=start)


def test_runs_lists_readable_dags_newest_first(session: Session) -> None:
    for number in range(5):
        add(session, "mine", number, lineage("Running"))
    add(session, "theirs", 7, lineage("Running"))
    add(session, "mine", 8, "not a lineage")
    lines = listing.Lines()

    def runs(*wanted: Any) -> list[dict[str, Any]]:
        found, unreadable = lines.of(session, listing.listed(session, *wanted))
        assert [row["run_id"] for row in unreadable] == (["run-8"] if "mine" in wanted[0] and not wanted[1] else [])
        return found

    for _ in range(2):  # the second time out of memory
        found = runs({"mine"}, None, 3)
        assert [r["run_id"] for r in found] == ["run-4", "run-3"]  # the unreadable one was among the newest three
        assert found[0]["state"] == "deferred" and found[0]["queue"] == "q"
        assert {r["dag_id"] for r in runs({"mine", "theirs"}, None, 10)} == {"mine", "theirs"}
        assert [r["run_id"] for r in runs({"mine", "theirs"}, "theirs", 10)] == ["run-7"]
        assert runs(set(), None, 10) == []


def test_lineage_of_exactly_one_task_instance(session: Session) -> None:
    for number, value in enumerate((lineage("Running"), "not a lineage", lineage("Succeeded"))):
        add(session, "mine", number, value)
    assert data.lineage(session, TaskKey("mine", "run-2", "train")) == lineage("Succeeded")
    assert data.lineage(session, TaskKey("mine", "run-1", "train")) == Unreadable(
        "not valid JSON: Expecting value: line 1 column 1 (char 0)"
    )
    assert data.lineage(session, TaskKey("mine", "run-2", "train", 0)) is None


@pytest.fixture
def read(session: Session) -> Iterator[list[int]]:
    """How many documents each query has read."""
    from sqlalchemy import event

    counts: list[int] = []

    def seen(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and "value" in statement.partition("FROM")[0]:
            counts.append(statement.count("(?, ?, ?)"))

    event.listen(session.get_bind(), "after_cursor_execute", seen)
    yield counts
    event.remove(session.get_bind(), "after_cursor_execute", seen)


def rewrite(session: Session, number: int, value: Any, second: int) -> None:
    """The XCom is written anew, as a trigger does it."""
    from datetime import datetime, timezone

    at = datetime(2026, 6, 1, second=second, tzinfo=timezone.utc)
    db_rows.rewrite_xcoms(session, f"run-{number}", value=value, timestamp=at)


def test_of_a_thousand_runs_only_what_has_changed_is_read(session: Session, read: list[int]) -> None:
    for number in range(1000):
        add(session, "mine", number, lineage("Succeeded" if number else "Running"))
    lines = listing.Lines()

    def runs() -> list[dict[str, Any]]:
        return lines.of(session, listing.listed(session, {"mine"}, None, 5000))[0]

    assert len(runs()) == 1000
    assert sum(read) == 1000 and max(read) == listing.CHUNK
    read.clear()
    assert len(runs()) == 1000
    assert read == [], "also the one that runs was read"
    read.clear()
    rewrite(session, 5, {**lineage("Failed"), "steps_lost": 7}, 1)
    found = {row["run_id"]: row for row in runs()}
    assert read == [1]
    assert (found["run-5"]["phase"], found["run-5"]["steps_lost"]) == ("Failed", 7)


def test_lines_are_bounded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_KEPT", 10)
    lines = listing.Lines()
    for number in range(30):
        add(session, "mine", number, lineage("Succeeded"))
        assert len(lines.of(session, listing.listed(session, {"mine"}, None, 5))[0]) == min(5, number + 1)
    assert 0 < len(lines._kept) <= 10


def test_the_version_tells_of_every_change(session: Session) -> None:
    from airflow.models.taskinstance import TaskInstance

    def version(now: float = 1e9) -> str:
        return listing.version(listing.listed(session, {"mine"}, None, 10), now)

    seen = [version()]

    def changed() -> bool:
        seen.append(version())
        return seen[-1] not in seen[:-1] and seen[-1] == version()

    add(session, "mine", 1, lineage("Succeeded"))
    assert changed()
    rewrite(session, 1, lineage("Succeeded"), 2)
    assert changed()
    assert version() != version(1e9 + 60)  # goodput of what runs
    session.execute(TaskInstance.__table__.update().values(state="success"))
    assert changed()
    assert version() == version(1e9 + 60)
    add(session, "theirs", 2, lineage("Succeeded"))
    assert not changed()  # not readable


def test_a_list_that_is_known_is_not_sent_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from airflow_provider.plugin import app as plugin_app

    readable = {"mine"}
    manager = SimpleNamespace(get_authorized_dag_ids=lambda user, method: readable, is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(plugin_app, "get_auth_manager", lambda: manager)
    add(session, "mine", 1, lineage("Succeeded"))

    def ask(**headers: str) -> Any:
        return plugin_app.runs(SimpleNamespace(headers=headers), "somebody", session, None, 200)

    first = ask()
    assert [row["run_id"] for row in json.loads(first.body)["runs"]] == ["run-1"]
    assert first.headers["Cache-Control"] == "private, no-cache"
    known = {"if-none-match": first.headers["ETag"]}
    again = ask(**known)
    assert (again.status_code, again.body) == (304, b"")
    readable.clear()  # asked for each time: what was readable is no argument
    assert json.loads(ask(**known).body) == {"runs": [], "unreadable": []}


def test_xcoms_are_shown_to_those_who_may_read_them_in_airflow(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list and what is kept of a task come from XComs: Airflow has a right of its own for these, per Dag."""
    import json

    from airflow_provider.plugin import app as plugin_app

    asked: list[tuple[str, str, str]] = []

    def is_authorized_dag(method: str, access_entity: Any, details: Any, user: str) -> bool:
        asked.append((method, access_entity.name, details.id))
        return access_entity.name != "XCOM" or details.id == "open"

    manager = SimpleNamespace(
        get_authorized_dag_ids=lambda user, method: {"open", "closed", "other"}, is_authorized_dag=is_authorized_dag
    )
    monkeypatch.setattr(plugin_app, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(DagModel, "get_team_name", lambda dag_id, **_: None, raising=False)  # there are teams since 3.1
    for number, dag in enumerate(("open", "closed")):
        add(session, dag, number, lineage("Succeeded"))
    shown = json.loads(bytes(plugin_app.runs(SimpleNamespace(headers={}), "u", session, None, 200).body))
    assert [row["dag_id"] for row in shown["runs"]] == ["open"] and shown["unreadable"] == []
    assert ("GET", "XCOM", "other") not in asked  # nothing trains there: nobody has to be asked
    one = plugin_app.runs(SimpleNamespace(headers={}), "u", session, "closed", 200)
    assert json.loads(bytes(one.body))["runs"] == []
    tasks = {row.dag_id: row for row in listing.listed(session, {"open", "closed"}, None, 200)}
    seen = {
        dag: plugin_app.context(TaskKey(dag, row.run_id, row.task_id, row.map_index), "u", session)
        for dag, row in tasks.items()
    }
    assert seen["open"]["kept"]["phase"] == "Succeeded" and seen["open"]["why"] is None
    assert (seen["closed"]["kept"], seen["closed"]["moves"]) == (None, []) and "XComs" in seen["closed"]["why"]


def test_claim_and_past_of_exactly_one_task_instance(session: Session) -> None:
    import json

    def put(index: int, key: str, value: str) -> None:
        db_rows.stored(session, dag_id="dag", run_id="run", task_id="train", map_index=index, key=key, value=value)

    known = {**Claim(KEY, 0, Try(1, 0, 0), "n", "job", "u").to_dict(), "conn_id": "c"}
    put(-1, memory.STORE_KEY, json.dumps({**known, "uid": None}))
    put(2, memory.STORE_KEY, json.dumps(known))
    put(2, memory.PAST_KEY, "broken")
    assert data.claim(session, KEY) is None
    assert data.claim(session, TaskKey("dag", "run", "train", 2)) == known
    assert data.past(session, TaskKey("dag", "run", "train", 2)) == []
    assert data.past(session, KEY) == []


def test_plugin_has_routes_and_bundles_of_its_own() -> None:
    routes = [entry["url_route"] for entry in SingularityPlugin.react_apps]
    bundles = [entry["bundle_url"] for entry in SingularityPlugin.react_apps]
    assert len(set(routes)) == len(set(bundles)) == 4
    # Airflow refuses a prefix that begins with one of its own, without a word in the UI.
    (api,) = SingularityPlugin.fastapi_apps
    assert not api["url_prefix"].startswith(("/ui", "/api", "/auth", "/execution"))
    assert all(bundle.startswith(api["url_prefix"].strip("/")) for bundle in bundles)


def test_browsers_keep_a_bundle_whose_url_names_its_content() -> None:
    from fastapi.testclient import TestClient

    from airflow_provider.plugin.app import app

    client = TestClient(app)
    bundle = SingularityPlugin.react_apps[0]["bundle_url"].removeprefix("singularity")
    assert client.get(bundle).headers["Cache-Control"].endswith("immutable")
    assert "Cache-Control" not in client.get(bundle.partition("?")[0]).headers
    assert client.get("/static/none.js?v=1").status_code == 404


def test_every_route_is_authorised_and_every_action_is_guarded() -> None:
    from airflow_provider.plugin import app as plugin_app

    routes = [r for r in plugin_app.app.routes if getattr(r, "methods", None)]
    for route in routes:
        calls = [d.call for d in route.dependant.dependencies]
        if "{dag_id}" in route.path:
            assert any("requires_access_dag" in getattr(c, "__qualname__", "") for c in calls), route.path
        if route.methods != {"GET"}:
            assert "{dag_id}" in route.path
            assert plugin_app.same_origin in calls
            assert any("action_logging" in getattr(c, "__qualname__", "") for c in calls)
            assert route.body_field is not None
    assert sum(route.methods == {"POST"} for route in routes) == 7


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 200),  # a program
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({**JSON, "sec-fetch-site": "same-origin", "origin": "https://elsewhere"}, 200),  # the browser has compared
        ({**JSON, "sec-fetch-site": "same-site"}, 403),
        ({**JSON, "sec-fetch-site": "cross-site"}, 403),
        ({**JSON, "sec-fetch-site": ""}, 403),
        ({**JSON, "origin": "http://airflow.corp"}, 200),  # plain http: no browser says where it comes from
        ({**JSON, "origin": "http://airflow.corp:81"}, 403),
        ({**JSON, "origin": "http://other.corp"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({**JSON, "origin": "http://outside.corp", "x-forwarded-host": "outside.corp"}, 200),
        ({"origin": "http://airflow.corp"}, 415),  # a body without a type is JSON for some FastAPI
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
    ],
)
def test_another_origins_page_presses_no_button(headers: dict[str, str], status: int) -> None:
    from fastapi import Depends, FastAPI
    from fastapi.testclient import TestClient

    from airflow_provider.plugin.app import same_origin

    app = FastAPI()

    @app.post("/pause", dependencies=[Depends(same_origin)])
    def pause() -> str:
        return "done"

    client = TestClient(app, base_url="http://airflow.corp")
    assert client.post("/pause", content=b"{}", headers=headers).status_code == status
