"""The page of the cluster: who sees what, which connections there are, and that nobody waits long for a cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import db_rows
import pytest
from airflow.api_fastapi.common.db.common import _get_session
from airflow.api_fastapi.core_api.security import get_user
from airflow.sdk import DAG
from fastapi.testclient import TestClient
from overview_scene import NOW, cluster_queue, local_queue, planner_event, record, training, workload
from sqlalchemy.orm import Session

from airflow_provider import compat, memory
from airflow_provider.identity import ANN_TASK, DEPLOYMENT, Claim, TaskKey, Try
from airflow_provider.operators import SingularityTrainOperator
from airflow_provider.plugin import SingularityPlugin, cluster_api, cluster_looks
from airflow_provider.plugin.app import app
from airflow_provider.plugin.cluster_looks import Looks
from airflow_provider.plugin.static_files import STATIC
from kueue_integration.contract.record_types import Preemptor
from kueue_integration.errors import Forbidden, Unreachable
from kueue_integration.kube.client import Kube
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CLUSTER_QUEUE, JOB, KINDS, WORKLOAD, Object

GPU = ("a100", "nvidia.com/gpu")
NEEDS = "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor a100, 2 more needed"
SECRET = Preemptor("job-secret", "team-b", "Job", "secret", "training", 1000)


def claim(dag_id: str, job: str, deployment: str = "here") -> Claim:
    return Claim(TaskKey(dag_id, "run", "train"), 0, Try(1, 0, 0), "default", job, f"uid-{job}", deployment)


def job(dag_id: str, name: str, *history: Any, deployment: str = "here") -> Object:
    own = {ANN_TASK: json.dumps(claim(dag_id, name, deployment).to_dict())}
    return training(name, history, annotations=own, suspend=not history)


def scene() -> FakeKube:
    """`first` and `next` are of Dag `mine`; `secret` of another Dag, `foreign` of another Airflow, two of none."""
    gone = record(1, evicted_at=9_990.0, ended_by="Preempted", preempted_by="job-secret", preemptor=SECRET)
    return FakeKube(
        cluster_queue("a", {GPU: "8"}, "c"), local_queue("training", "a"),
        job("mine", "first", gone, record(2)), workload("first", holds=("a", {GPU: "4"}), pods=4),
        job("mine", "next"), workload("next", why=("WaitingForQuota", NEEDS)),
        job("theirs", "secret", record(2)), workload("secret", holds=("a", {GPU: "2"}), pods=2),
        planner_event("secret", 9_980.0, "node n1 is cordoned", action="migrate", policy="cordon"),
        job("mine", "foreign", record(1), deployment="elsewhere"), workload("foreign", holds=("a", {GPU: "1"})),
        workload("plain", holds=("a", {GPU: "3"}), kind="RayCluster"), workload("hidden"),
    )  # fmt: skip


class Clients:
    """As `actions.Clusters`, of one cluster that a test holds back or breaks."""

    def __init__(self, kube: FakeKube) -> None:
        self._kube = kube
        self.error: Exception | None = None
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.asked: list[str] = []
        self.forgotten: list[str] = []

    def kube(self, conn_id: str) -> Kube:
        self.asked.append(conn_id)
        self.begun.set()
        assert self.go.wait(120)
        if self.error is not None:
            raise self.error
        return self._kube

    def forget(self, conn_id: str) -> None:
        self.forgotten.append(conn_id)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Page:
    """The endpoint as a user of these Dags asks it."""

    def __init__(self, clients: Clients, clock: Clock, readable: set[str]) -> None:
        self.clients, self.clock, self.readable = clients, clock, readable
        self._client = TestClient(app)

    def get(self, **query: str) -> Any:
        return self._client.get("/cluster", params=query)

    def body(self, **query: str) -> dict[str, Any]:
        answer = self.get(**query)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]


def submit(session: Session, dag_id: str, conn_id: str, number: int) -> None:
    """A task whose Dag names this connection has submitted a job, or so its record says."""
    named = conn_id.partition(" ")[0]
    with DAG(dag_id, schedule=None) as dag:
        SingularityTrainOperator(task_id="train", queue_name="q", command=["x"], kubernetes_conn_id=named)
    version = db_rows.serialized(session, dag)
    row = {"dag_id": dag_id, "run_id": f"run-{number}", "task_id": "train", "map_index": -1}
    db_rows.task_instance(session, **row, dag_version_id=version, state="deferred")
    value = json.dumps({**claim(dag_id, "x").to_dict(), "conn_id": conn_id})
    db_rows.stored(session, **row, key=memory.STORE_KEY, value=value, dag_run_id=number)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    clients, clock = Clients(scene()), Clock()
    made = Page(clients, clock, {"mine"})
    manager = SimpleNamespace(get_authorized_dag_ids=lambda user, method: made.readable)
    monkeypatch.setattr(cluster_api, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(cluster_api, "looks", Looks(clients, clock, lambda: NOW))
    monkeypatch.setattr(cluster_api, "FIRST_WAIT_S", 30.0)
    monkeypatch.setattr(cluster_api, "offers", cluster_api.Offers())
    monkeypatch.setattr(compat, "variable_of_server", {DEPLOYMENT: "here"}.get)
    with db_rows.database() as session:
        submit(session, "mine", "west", 1)
        session.commit()
        app.dependency_overrides |= {get_user: lambda: "somebody", _get_session: lambda: session}
        monkeypatch.setattr(cluster_api, "create_session", lambda scoped: nullcontext(session))
        made.session = session  # type: ignore[attr-defined]
        yield made
    clients.go.set()
    app.dependency_overrides.clear()


# --- who sees what ----------------------------------------------------------------------------------------------------
def test_jobs_of_readable_dags_are_named_and_all_others_are_counted(page: Page) -> None:
    body = page.body()
    report = body["report"]
    assert (body["connection"], body["trouble"]) == ("west", None)
    (first,) = report["holders"]
    assert (first["job"], first["queue"], first["pods"], first["attempt"]) == ("default/first", "a", 4, 2)
    assert first["task"] == {"dag_id": "mine", "run_id": "run", "task_id": "train", "map_index": -1}
    assert (first["flavors"], first["quota"], first["phase"]) == (["a100"], "a100: 4 nvidia.com/gpu", "Starting")
    assert report["others_hold"] == [{"queue": "a", "count": 3, "pods": 4, "quota": "a100: 6 nvidia.com/gpu"}]
    (following,) = report["waiting"]
    assert (following["job"], following["queue"]) == ("default/next", "a")
    assert following["message"] == "waits for quota; needs 2 nvidia.com/gpu more in flavor a100"
    assert report["others_wait"] == [{"queue": "a", "count": 1, "pods": 1, "quota": ""}]
    assert (report["holds"], report["waits"], report["others_moved"], report["actions"]) == (4, 2, 1, [])
    (line,) = (line for line in report["quota"] if line["name"] == "a")
    assert (line["nominal"], line["used"], line["training"], line["others"]) == (8.0, 10.0, 7.0, 3.0)
    assert (line["borrowed"], line["words"]["used"]) == (2.0, "10")
    for word in ("secret", "theirs", "foreign", "elsewhere", "plain", "hidden", "team-b"):
        assert word not in json.dumps(body), word


def test_the_preemptor_is_named_to_those_who_may_see_it(page: Page) -> None:
    (seen,) = page.body()["report"]["preemptions"]
    assert (seen["job"], seen["attempt"], seen["by"], seen["by_priority"]) == ("default/first", 1, None, 1000)
    page.readable = {"mine", "theirs"}
    own = {ANN_TASK: json.dumps({**claim("theirs", "secret").to_dict(), "namespace": "team-b"})}
    page.clients._kube.put(training("secret", [record(2)], annotations=own))
    page.clock.now += cluster_looks.STALE_S + 1
    done_after(page, page.body)
    (seen,) = page.body()["report"]["preemptions"]
    assert seen["by"]["job"] == "team-b/secret" and seen["by"]["task"]["dag_id"] == "theirs"


def test_actions_of_the_planner_on_ones_own_jobs_have_their_reason(page: Page) -> None:
    submit(page.session, "theirs", "west", 2)  # type: ignore[attr-defined]
    page.readable = {"theirs"}
    (action,) = page.body()["report"]["actions"]
    assert set(action) == {"time", "policy", "job", "task", "action", "reason", "dry_run"}
    assert (action["time"], action["policy"], action["job"]) == (9_980.0, "cordon", "default/secret")
    assert (action["action"], action["dry_run"]) == ("migrate", False)
    why = "node n1 is cordoned (costs about 9 device-seconds)"
    assert action["reason"] == f"cordon: migrate of default/secret: {why}"


def test_shares_of_device_time_are_those_of_ones_own_jobs_and_their_tenants(page: Page) -> None:
    told = page.body()["report"]["shares"]
    assert {job["job"] for job in told["jobs"]} == {"default/first", "default/next"}
    assert told["jobs"][0]["task"]["dag_id"] == "mine" and told["others"] == 2
    (tenant,) = told["tenants"]
    assert (tenant["namespace"], tenant["local_queue"], tenant["jobs"], tenant["promised"]) == (
        "default", "training", 4, None,
    )  # fmt: skip
    assert any("what the tiers promise is not known" in note for note in told["notes"])


def test_long_lists_are_cut_and_say_so(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider.plugin.cluster_view.MOST", 2)
    for number in range(5):
        page.clients._kube.put(job("mine", f"more-{number}"))
        page.clients._kube.put(workload(f"more-{number}"))
    report = page.body()["report"]
    assert (len(report["waiting"]), report["left_out"], report["waits"]) == (2, 4, 7)


# --- which cluster ----------------------------------------------------------------------------------------------------
def test_connections_are_those_that_the_dags_name_and_the_user_may_read(page: Page) -> None:
    session: Session = page.session  # type: ignore[attr-defined]
    submit(session, "also", "east", 2)
    submit(session, "theirs", "north", 3)
    submit(session, "mine", "west evil", 4)  # its record names another connection than its Dag
    page.readable = {"mine", "also"}
    body = page.body()
    assert (body["connections"], body["connection"]) == (["east", "west"], "east")
    assert page.body(connection="west")["connection"] == "west"
    for wrong in ("north", "west evil", "x"):
        answer = page.get(connection=wrong)
        assert answer.status_code == 404 and "choose east, west" in answer.json()["detail"]
    assert set(page.clients.asked) == {"east", "west"}


def test_who_reads_no_training_dag_sees_no_cluster(page: Page) -> None:
    page.readable = {"theirs"}
    assert page.body() == {"connections": [], "connection": None, "report": None, "trouble": None}
    assert page.clients.asked == []


# --- one reader, bounded time -----------------------------------------------------------------------------------------
def test_pages_share_a_look_for_some_seconds(page: Page) -> None:
    for _ in range(3):
        page.body()
    assert page.clients.asked == ["west"]
    page.clock.now += cluster_looks.FRESH_S + 1
    looked = done_after(page, page.body)
    assert looked["report"] is not None and page.clients.asked == ["west", "west"]


def over() -> None:
    """Returns when the look that is under way is over."""
    under_way = cluster_api.looks.under_way("west")
    assert under_way is not None
    under_way.result(120)


def done_after(page: Page, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `act` answers; returns when the look that it may have started is over."""
    found = act()
    over()
    return found


def test_nobody_waits_for_a_cluster_that_is_slow_and_one_thread_asks_it(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "FIRST_WAIT_S", 0.01)
    page.clients.go.clear()
    for _ in range(3):
        body = page.body()
        assert (body["report"], body["trouble"]) == (None, None)
    page.clock.now += cluster_looks.LIMIT_S + 1
    assert page.body()["trouble"] == "the cluster of connection west has not answered for 16 s"
    assert page.clients.asked == ["west"]
    page.clients.go.set()
    over()
    assert page.body()["report"]["holds"] == 4


def test_a_slow_cluster_is_asked_less_often(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_api, "FIRST_WAIT_S", 0.01)
    page.clients.go.clear()
    looks = cluster_api.looks
    looks.latest("west")
    assert page.clients.begun.wait(120)
    page.clock.now += 3.0
    page.clients.go.set()
    over()
    page.clock.now += 3.0 / cluster_looks.SHARE - 1
    looks.latest("west")
    assert page.clients.asked == ["west"]
    page.clock.now += 2
    done_after(page, page.body)
    assert page.clients.asked == ["west", "west"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unreachable("connection refused"), "the cluster of connection west does not answer: connection refused"),
        (ValueError("no such file"), "the api-server cannot use connection 'west' (ValueError: no such file)"),
        (cluster_api.connection.RefusedError("logs in with 'exec'"), "connection west: logs in with 'exec'"),
    ],
)
def test_trouble_is_a_sentence_beside_the_last_report(page: Page, error: Exception, words: str) -> None:
    assert page.body()["report"] is not None
    page.clients.error = error
    page.clock.now += cluster_looks.FRESH_S + 1
    done_after(page, page.body)
    body = page.body()
    assert (body["trouble"], body["report"] is not None) == (words, True)
    assert page.clients.forgotten == ["west"]
    page.clock.now += cluster_looks.KEPT_S
    done_after(page, page.body)
    assert page.body()["report"] is None
    page.clients.error = None
    page.clock.now += cluster_looks.FRESH_S + 1
    done_after(page, page.body)
    assert page.body()["trouble"] is None


def test_a_right_that_is_missing_is_named(page: Page) -> None:
    page.clients._kube.fail_next("list", CLUSTER_QUEUE, Forbidden("forbidden", 403))
    notes = " ".join(page.body()["report"]["notes"])
    assert "The right to list clusterqueues.kueue.x-k8s.io cluster-wide is missing" in notes
    assert "singularityctl" not in notes and " -n " not in notes, "the page has no options"


def test_without_any_right_the_page_says_which_are_missing(page: Page) -> None:
    for kind in (CLUSTER_QUEUE, WORKLOAD, JOB):
        page.clients._kube.fail_next("list", kind, Forbidden("forbidden", 403))
    body = page.body()
    assert body["report"] is None and "nothing of the cluster may be read" in body["trouble"]
    assert "The right to list workloads.kueue.x-k8s.io in all namespaces is missing" in body["trouble"]


def test_the_documented_role_has_every_right_that_a_look_uses(page: Page) -> None:
    import yaml

    text = (Path(__file__).parents[3] / "docs/operations/cluster.md").read_text()
    (role,) = yaml.safe_load_all(text.partition("```yaml")[2].partition("```")[0])
    rights = {(verb, name) for rule in role["rules"] for verb in rule["verbs"] for name in rule["resources"]}
    page.body()
    asked = {(verb, KINDS[kind].plural) for verb, kind, _ in page.clients._kube.requests}
    for_everybody = {("get", "configmaps")}  # the chart lets everybody read what the platform promises
    assert asked - for_everybody | {("get", "clusterqueues/pendingworkloads")} == rights


# --- the bundle -------------------------------------------------------------------------------------------------------
def test_the_page_is_in_the_menu_with_a_bundle_of_its_own() -> None:
    (entry,) = (entry for entry in SingularityPlugin.react_apps if entry["url_route"] == "training_cluster")
    assert (entry["destination"], entry["category"]) == ("nav", "browse")
    script = (STATIC / "cluster.js").read_text()
    assert f'globalThis["{entry["name"]}"] =' in script, "the host looks for it by this name"
    answer = TestClient(app).get(entry["bundle_url"].removeprefix("singularity"))
    assert answer.status_code == 200 and "javascript" in answer.headers["content-type"]


def test_scripts_import_what_is_there_and_nothing_from_elsewhere() -> None:
    shared = (STATIC / "shared.js").read_text()
    exported = set(shared.rpartition("export {")[2].partition("}")[0].replace(",", " ").split())
    for script in (STATIC / "cluster.js", STATIC / "training.js"):
        text = script.read_text()
        taken = set(text.partition("} = shared;")[0].rpartition("{")[2].replace(",", " ").split())
        assert taken and taken <= exported, taken - exported
    for script in STATIC.glob("*.js"):
        assert "http://" not in script.read_text() and "https://" not in script.read_text()


def test_every_field_that_the_page_reads_is_in_the_answer(page: Page) -> None:
    """A word of the page after `report.` is a field of the report, so that a renamed one is found here."""
    import re

    report: Mapping[str, Any] = page.body()["report"]
    read = set(re.findall(r"\breport\.(\w+)", (STATIC / "cluster.js").read_text()))
    assert read and read <= set(report), read - set(report)
