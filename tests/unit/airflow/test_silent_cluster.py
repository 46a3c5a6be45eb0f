"""A Kubernetes API that accepts and never answers, or slowly, under fifty open tabs costs Airflow's server nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow.models as airflow_models
import db_rows
import pytest
import requests
import uvicorn
from airflow.api_fastapi.common.db import common
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dagrun import DagRun
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool
from starlette.routing import Route
from waits import until

from airflow_provider import memory
from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try
from airflow_provider.plugin import actions, app, cluster_api, connection, live_looks
from airflow_provider.plugin.cluster_looks import Looks
from airflow_provider.plugin.flights import BusyError, Flights, landed
from airflow_provider.plugin.live_looks import LiveLooks
from kueue_integration.contract import job_names
from kueue_integration.errors import Unreachable
from kueue_integration.kube.client import Kube
from kueue_integration.kube.credentials import connect_to
from kueue_integration.kube.fake import FakeKube

TABS = 50
TASKS = 10
LIMIT_S = 4.0
BUSY_S = 60.0
"""That a machine with other things to do may add."""


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and never says a word."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for each in held:
            each.close()


def cluster_at(port: int) -> Kube:
    return connect_to({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    })  # fmt: skip


class Server:
    """Airflow's api-server with the plugin: its default database pool, and the real thread pool of 40."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, kube: Callable[[], Kube]) -> None:
        self.engine = create_engine(
            f"sqlite:///{folder}/airflow.db", poolclass=QueuePool, pool_size=5, max_overflow=10, pool_timeout=10,
            connect_args={"check_same_thread": False},
        )  # fmt: skip
        airflow_models.import_all_models()
        DagRun.metadata.create_all(self.engine)
        with Session(self.engine) as session:
            for number in range(TASKS):
                claim = Claim(self.key(number), 0, Try(1, 0, 0), "ns", f"train-{number}", f"uid-{number}")
                db_rows.stored(
                    session, dag_id="dag", run_id="run", task_id="train", map_index=number, key=memory.STORE_KEY,
                    value=json.dumps({**claim.to_dict(), "conn_id": "c"}),
                )  # fmt: skip
            session.commit()

        @contextmanager
        def opened(scoped: bool = True) -> Iterator[Session]:
            with Session(self.engine) as session:
                yield session
                session.commit()

        def dependency() -> Iterator[Session]:
            with opened() as session:
                yield session

        clusters = actions.Clusters(lambda conn_id: (kube(), "default"))
        manager = SimpleNamespace(
            get_authorized_dag_ids=lambda user, method: {"dag"}, is_authorized_dag=lambda **_: True
        )
        for module in (app, cluster_api):
            monkeypatch.setattr(module, "create_session", opened)
            monkeypatch.setattr(module, "get_auth_manager", lambda: manager)
        monkeypatch.setattr("airflow.api_fastapi.core_api.security.get_auth_manager", lambda: manager)
        monkeypatch.setattr("airflow.models.dag.DagModel.get_team_name", lambda dag_id: None)
        monkeypatch.setattr(app, "clusters", clusters)
        monkeypatch.setattr(app, "looks", LiveLooks(clusters))
        monkeypatch.setattr(app, "flights", Flights())
        monkeypatch.setattr(app, "ACTION_S", LIMIT_S)
        monkeypatch.setattr(cluster_api, "looks", Looks(clusters))
        offered = SimpleNamespace(of=lambda session: ({"c": frozenset({"dag"})}, "here"))
        monkeypatch.setattr(cluster_api, "offers", offered)
        monkeypatch.setattr(live_looks, "LIMIT_S", LIMIT_S)
        monkeypatch.setattr(connection, "of", lambda session, key, conn_id: "c")
        user = SimpleNamespace(get_name=lambda: "ann")
        app.app.dependency_overrides |= {get_user: lambda: user, common._get_session: dependency}
        self._server = uvicorn.Server(uvicorn.Config(app.app, port=0, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until(lambda: self._server.started, "the api-server has started")
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    @staticmethod
    def key(number: int) -> TaskKey:
        return TaskKey("dag", "run", "train", number)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        app.app.dependency_overrides.clear()
        self.engine.dispose()

    def task(self, number: int) -> str:
        return f"{self.url}/dags/dag/dagRuns/run/taskInstances/train/{number % TASKS}"

    def live(self, number: int) -> tuple[int, float, Any]:
        began = time.monotonic()
        answer = requests.get(f"{self.task(number)}/live", timeout=60)
        return answer.status_code, time.monotonic() - began, answer.json()

    def runs(self) -> None:
        """A page that needs the database and the thread pool."""
        assert requests.get(f"{self.url}/runs", timeout=60).status_code == 200


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Callable[[], Kube]], Server]]:
    made: list[Server] = []

    def start(kube: Callable[[], Kube]) -> Server:
        made.append(Server(monkeypatch, tmp_path, kube))
        return made[-1]

    yield start
    for server in made:
        server.stop()


def test_fifty_tabs_of_a_silent_cluster_take_nothing_from_airflow(
    serve: Callable[[Callable[[], Kube]], Server], silent: int
) -> None:
    """17 tabs took the database pool and the thread pool: Airflow's pages and its workers' API answered 500."""
    server = serve(lambda: cluster_at(silent))
    with ThreadPoolExecutor(2 * TABS) as pool:
        tabs = [pool.submit(server.live, number) for number in range(TABS)]
        pages = [pool.submit(requests.get, f"{server.url}/cluster", timeout=60) for _ in range(TABS // 2)]
        buttons = [
            pool.submit(requests.post, f"{server.task(number)}/actions/checkpoint", json={}, timeout=60)
            for number in range(TASKS)
        ]
        pages_meanwhile, held = 0, set[int]()
        while not any(tab.done() for tab in tabs):
            server.runs()
            held.add(server.engine.pool.checkedout())  # type: ignore[attr-defined]
            pages_meanwhile += 1
        assert pages_meanwhile > 2, "Airflow's own pages wait for the cluster"
        assert min(held) == 0, "a session is held while the cluster is asked"
        answers = [tab.result() for tab in tabs]
        assert {code for code, _, _ in answers} == {504}
        assert max(took for _, took, _ in answers) < LIMIT_S + BUSY_S
        assert all("the cluster of connection c has not answered for" in body["detail"] for _, _, body in answers)
        assert all(page.result().json()["report"] is None for page in pages)
        assert {button.result().status_code for button in buttons} <= {503, 504}
    later = [server.live(0) for _ in range(3)]
    assert {code for code, _, _ in later} == {504}
    assert min(took for _, took, _ in later) < LIMIT_S, "who comes later hears at once that the cluster is silent"
    assert server.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert sum(thread.name.startswith("singularity-c") for thread in threading.enumerate()) <= 1 + 1 + 8


def job(number: int) -> dict[str, Any]:
    claim = Claim(Server.key(number), 0, Try(1, 0, 0), "ns", f"train-{number}")
    labels = {job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: claim.name, job_names.KUEUE_QUEUE_LABEL: "q"}
    notes = {ANN_TASK: json.dumps(claim.to_dict())}
    meta = {"name": claim.name, "namespace": "ns", "uid": f"uid-{number}", "labels": labels, "annotations": notes}
    spec = {"parallelism": 1, "suspend": True, "template": {"spec": {"containers": []}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


class Slow(FakeKube):
    """Whose lists wait for the test."""

    def __init__(self) -> None:
        super().__init__(*(job(number) for number in range(TASKS)))
        self.go, self.lists = threading.Event(), 0

    def list_versioned(self, *args: Any, **options: Any) -> Any:
        self.lists += 1
        if not self.go.wait(30):
            raise Unreachable("no answer")
        return super().list_versioned(*args, **options)


def test_one_look_serves_all_tabs(serve: Callable[[Callable[[], Kube]], Server]) -> None:
    kube = Slow()
    server = serve(lambda: kube)
    began = time.monotonic()
    app.looks._clock = lambda: began  # however long a busy machine takes for fifty tabs, the look is fresh
    with ThreadPoolExecutor(TABS) as pool:
        first = pool.submit(server.live, 0)
        while not kube.lists:
            time.sleep(0.01)
        tabs = [pool.submit(server.live, number) for number in range(TABS)]
        while sum(len(place.wanted) for place in app.looks._places.values()) < TASKS - 1:
            time.sleep(0.01)
        kube.go.set()
        for number, tab in enumerate([first, *tabs]):
            code, _, body = tab.result()
            assert code == 200 and body["job"]["name"] == f"train-{max(0, number - 1) % TASKS}"
    assert kube.lists == 2 * 4, "a look is four lists, for one job as for ten: the first tab's, and that of all others"


def test_the_last_answer_stands_in_for_one_that_is_late(serve: Callable[[Callable[[], Kube]], Server]) -> None:
    kube = Slow()
    kube.go.set()
    server = serve(lambda: kube)
    code, _, before = server.live(1)
    assert code == 200
    kube.go.clear()
    app.looks._clock = lambda: time.monotonic() + live_looks.FRESH_S
    code, took, body = server.live(1)
    assert (code, body) == (200, before) and took < LIMIT_S + BUSY_S
    app.looks._clock = lambda: time.monotonic() + live_looks.KEPT_S + 10
    code, _, body = server.live(1)
    assert code == 504
    kube.go.set()


def test_a_namespace_that_may_not_be_read_hides_no_other() -> None:
    kube = FakeKube(job(1))
    other = {**Claim(Server.key(2), 0, Try(1, 0, 0), "secret", "x", "u").to_dict(), "conn_id": "c"}
    mine = {**Claim(Server.key(1), 0, Try(1, 0, 0), "ns", "train-1", "uid-1").to_dict(), "conn_id": "c"}
    lists = kube.list_versioned

    def refused(kind: Any, namespace: str | None = None, selector: str | None = None) -> Any:
        if namespace == "secret":
            raise Unreachable("may not")
        return lists(kind, namespace, selector)

    kube.list_versioned = refused  # type: ignore[method-assign]
    found = dict(live_looks._seen(kube, {Server.key(1): mine, Server.key(2): other}))
    assert isinstance(found[Server.key(1)], dict) and isinstance(found[Server.key(2)], Unreachable)


def test_no_route_that_asks_a_cluster_has_a_session() -> None:
    """A session that a route gets as a dependency is held until it has answered."""
    routes = [route for route in [*app.app.routes, *cluster_api.router.routes] if isinstance(route, Route)]
    asking = [r for r in routes if r.path.endswith(("/live", "/cluster")) or "/actions/" in r.path]
    assert len(asking) >= 9
    for route in asking:
        assert asyncio.iscoroutinefunction(route.endpoint), f"{route.path} takes a slot of the thread pool"
        assert "session" not in route.endpoint.__annotations__, f"{route.path} holds a session"


def test_calls_of_one_cluster_are_bounded_and_one_that_is_given_up_goes_on() -> None:
    go = threading.Event()
    flights = Flights(most=2)
    first, second = (flights.start("c", lambda: go.wait(30)) for _ in range(2))
    with pytest.raises(BusyError, match="2 calls to the cluster of connection c wait"):
        flights.start("c", lambda: None)
    assert flights.start("other", lambda: 7).result(10) == 7
    assert asyncio.run(landed(first, 0.05)) is False
    go.set()
    assert first.result(10) is True and asyncio.run(landed(second, 10)) is True
    assert flights.start("c", lambda: 8).result(10) == 8


def test_a_call_that_was_given_up_and_fails_later_is_no_error_of_the_loop() -> None:
    """The loop said of each "exception was never retrieved", with a traceback, in the api-server's log."""
    said: list[str] = []

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
        go = threading.Event()

        def call() -> None:
            go.wait(30)
            raise Unreachable("connection reset")

        future = Flights().start("c", call)
        assert not await landed(future, 0.05)
        future.add_done_callback(lambda _: told.set())
        go.set()
        assert await asyncio.to_thread(told.wait, 30)
        assert isinstance(future.exception(), Unreachable)

    told = threading.Event()
    asyncio.run(give_up())
    gc.collect()
    assert not said


def test_a_look_that_could_not_begin_does_not_keep_the_next_from_it() -> None:
    """It counted as under way from then on: no tab of that cluster had an answer until the api-server was restarted."""
    clients = actions.Clusters(lambda conn_id: (FakeKube(), "default"))
    live, pages, flights = LiveLooks(clients), Looks(clients), Flights(most=1)
    key, claim = TaskKey("dag", "run", "train"), {"conn_id": "c", "namespace": "default", "name": "n", "uid": "u"}
    with pytest.MonkeyPatch.context() as full:

        def start(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", start)
        for _ in range(3):
            with pytest.raises(BusyError, match="cannot ask the cluster of connection c now: can't start new thread"):
                live.ask(key, claim)
            assert live.silent_for("c") == 0.0
            assert "can't start new thread" in str(pages.latest("c").trouble)
            with pytest.raises(BusyError):
                flights.start("c", lambda: 1)
    with pytest.raises(actions.NotTheJobError):
        live.ask(key, claim).result(30)
    pages.latest("c")
    under_way = pages.under_way("c")
    assert under_way is not None
    under_way.result(30)
    assert pages.latest("c").trouble is None
    assert flights.start("c", lambda: 1).result(30) == 1
