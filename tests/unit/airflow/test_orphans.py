"""Jobs whose task has ended without them: which are deleted, when they are looked for, and who calls for it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import db_rows
import pytest
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.variable import Variable
from airflow_versions import NEEDS_STORE
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from airflow_provider import compat, memory
from airflow_provider.identity import ANN_TASK, DEPLOYMENT, LABEL_OWNER, Claim, TaskKey, Try
from airflow_provider.plugin import (
    SingularityPlugin,
    cleared,
    connection,
    data,
    deployment,
    listener,
    orphans,
    patrol,
)
from kueue_integration.contract import job_names
from kueue_integration.errors import Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB

NAMESPACE = "team-a"
STARTING = SimpleNamespace(_sa_instance_state=object())
"""A row of Airflow's table of schedulers, triggerers and dag-processors, as it tells of itself."""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Airflow's database, as far as it is asked."""
    with db_rows.database() as made:
        for module in (orphans, patrol):
            monkeypatch.setattr(module, "create_session", lambda: contextlib.nullcontext(made))
        yield made


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    fake = FakeKube()
    monkeypatch.setattr(connection, "connect", lambda conn_id: (fake, "default"))
    monkeypatch.setenv("AIRFLOW__SINGULARITY__SERVER_CONNECTIONS", "c")
    return fake


def task(session: Session, kube: FakeKube, task_id: str, state: str | None, map_index: int = -1) -> Claim:
    """A task instance in that state, whose Job is alive."""
    key = TaskKey("dag", "run", task_id, map_index)
    claim = Claim(key, 0, Try(1, 0, 0), NAMESPACE, f"{task_id}-{map_index + 1}")
    row = {"dag_id": "dag", "run_id": "run", "task_id": task_id, "map_index": map_index}
    db_rows.task_instance(session, **row, state=state)
    db_rows.stored(session, **row, key=memory.STORE_KEY, value=json.dumps({**claim.to_dict(), "conn_id": "c"}))
    metadata = {
        "name": claim.name,
        "namespace": NAMESPACE,
        "labels": {job_names.LABEL_MANAGED: "true", LABEL_OWNER: key.owner},
        "annotations": {ANN_TASK: json.dumps(claim.to_dict())},
    }
    spec = {"parallelism": 1, "suspend": True, "template": {"spec": {"containers": []}}}
    kube.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    return claim


def left(kube: FakeKube) -> set[str]:
    return {job["metadata"]["name"] for job in kube.list(JOB, NAMESPACE)}


def test_only_jobs_of_tasks_that_have_ended_are_deleted(session: Session, kube: FakeKube) -> None:
    for state in ("failed", "success", "skipped", "deferred", "running", "up_for_retry", "restarting"):
        task(session, kube, state.replace("_", "-"), state)
    task(session, kube, "waits", None)
    task(session, kube, "mapped", "failed", 0)
    task(session, kube, "mapped", "deferred", 1)
    session.execute(update(TaskInstance).values(try_number=1, max_tries=0))
    assert orphans.delete_orphans("dag", "run") == 4
    assert left(kube) == {"deferred-0", "running-0", "up-for-retry-0", "restarting-0", "waits-0", "mapped-2"}
    assert orphans.delete_orphans("dag", "another-run") == 0


def test_a_job_that_its_task_did_not_wait_for_trains_on(session: Session, kube: FakeKube) -> None:
    claim = task(session, kube, "started", "success")
    alone = replace(claim, detached=True)
    note = {"metadata": {"annotations": {ANN_TASK: json.dumps(alone.to_dict())}}}
    kube.patch(JOB, NAMESPACE, claim.name, note)
    assert orphans.delete_orphans("dag", "run") == 0 and left(kube) == {claim.name}


@pytest.mark.parametrize("state", [None, "scheduled", "queued"])
@pytest.mark.parametrize(("max_tries", "deleted"), [(0, 0), (2, 1)])
def test_a_job_from_before_a_clear_does_not_train_on(
    session: Session, kube: FakeKube, state: str | None, max_tries: int, deleted: int
) -> None:
    """Its next try may never start. A task that waits for a retry takes its Job up again."""
    claim = task(session, kube, "train", state)
    session.execute(update(TaskInstance).values(try_number=1, max_tries=max_tries))
    assert orphans.delete_orphans("dag", "run") == deleted
    assert left(kube) == (set() if deleted else {claim.name})


CLEARED_HOW = {"while it waited": {"max_tries": 2}, "while it ran": {"try_number": 2, "max_tries": 1}}


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "deferred", "running", "up_for_retry", "success"])
@pytest.mark.parametrize("how", [None, *CLEARED_HOW])
def test_a_clear_that_no_listener_tells_of_is_found(
    session: Session, kube: FakeKube, state: str | None, how: str | None
) -> None:
    """With no triggerer its Job trained on until the next try started, which may be never."""
    task(session, kube, "other", "deferred")
    claim = task(session, kube, "train", state, map_index=3)
    session.execute(update(TaskInstance).values(try_number=1, max_tries=0))
    if how:
        session.execute(update(TaskInstance).where(TaskInstance.map_index == 3).values(**CLEARED_HOW[how]))
    if how == "while it ran":
        row = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": 3}
        db_rows.stored(session, **row, key=memory.CLEARED_KEY, value="1")
    found: list[tuple[str, str]] = []
    patrol.look(None, lambda *run: found.append(run))
    waits = state in (None, "scheduled", "queued")
    assert found == ([("dag", "run")] if how and waits else [])
    for run in found:
        orphans.delete_orphans(*run)
    assert left(kube) == {"other-0"} | (set() if found else {claim.name})


def test_a_scheduler_that_starts_looks_after_what_has_just_ended(session: Session, kube: FakeKube) -> None:
    """The one before it may have died with the cue."""
    now = datetime.now(UTC)
    for number, ago in enumerate((10, 100)):
        task(session, kube, "train", "failed", map_index=number)
        row = update(TaskInstance).where(TaskInstance.map_index == number)
        session.execute(row.values(run_id=f"run-{number}", updated_at=now - timedelta(minutes=ago)))
        session.execute(
            update(compat.memory_rows())
            .where(compat.memory_rows().map_index == number)
            .values(run_id=f"run-{number}")
        )
    found: list[tuple[str, str]] = []
    patrol.look(now - patrol.BEFORE_START, lambda *run: found.append(run))
    assert found == [("dag", "run-0")]


@pytest.mark.parametrize("kind", ["SchedulerJobRunner", "TriggererJobRunner"])
def test_a_scheduler_looks_round_by_itself_and_nobody_else_does(
    session: Session, kube: FakeKube, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By what Airflow itself says of a process that starts: before it says what it is."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.jobs.triggerer_job_runner import TriggererJobRunner

    runner = {"SchedulerJobRunner": SchedulerJobRunner, "TriggererJobRunner": TriggererJobRunner}[kind]
    assert (runner.job_type == patrol.SCHEDULER) is (runner is SchedulerJobRunner)
    task(session, kube, "train", None)
    session.execute(update(TaskInstance).values(try_number=1, max_tries=2))
    told, begin, rows = threading.Semaphore(0), patrol.start, list[Any]()
    monkeypatch.setattr(patrol, "start", lambda component: rows.append((component, component.job_type)))
    monkeypatch.setattr(deployment, "ensure", lambda: None)
    listener.on_starting(row := Job())
    assert rows[-1] == (row, None)
    row.job_type = runner.job_type  # as BaseJobRunner.__init__
    over = begin(row, 0.01, lambda *run: told.release())
    thread = next(each for each in threading.enumerate() if each.name == f"singularity-patrol-{id(over)}")
    if runner is SchedulerJobRunner:
        assert all(told.acquire(timeout=120) for _ in range(3)), "again and again"
        over.set()
    thread.join(120)
    assert not thread.is_alive()
    assert runner is SchedulerJobRunner or not told.acquire(blocking=False)


def test_a_connection_that_the_task_wrote_is_not_used_for_the_search(
    session: Session, kube: FakeKube, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task(session, kube, "train", "failed")
    monkeypatch.setenv("AIRFLOW__SINGULARITY__SERVER_CONNECTIONS", "d")
    monkeypatch.setattr(connection, "connect", lambda conn_id: pytest.fail(f"{conn_id} was used"))
    assert orphans.delete_orphans("dag", "run") == 0
    assert "connection 'c' is not one that the Dag names for task train" in caplog.text


def test_a_cluster_that_does_not_answer_keeps_nothing_alive_in_others(
    session: Session, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the search, which is given up after ten minutes."""
    for name in ("a", "b", "c"):
        task(session, kube, name, "failed")
    gone: list[str] = []

    def owned(cluster: FakeKube, namespace: str, key: TaskKey, deployments: Any) -> list[Any]:
        if key.task_id == "b":
            raise Unreachable("no answer")
        gone.append(key.task_id)
        return [job for job in kube.list(JOB, namespace) if job["metadata"]["labels"][LABEL_OWNER] == key.owner]

    monkeypatch.setattr(orphans.submission, "owned_jobs", owned)  # type: ignore[attr-defined]
    with pytest.raises(Unreachable):
        orphans.delete_orphans("dag", "run")
    assert (sorted(gone), left(kube)) == (["a", "c"], {"b-0"})


def test_a_job_of_another_airflow_is_left_alone(session: Session, kube: FakeKube) -> None:
    mine = task(session, kube, "train", "failed")
    job = kube.get(JOB, NAMESPACE, mine.name)
    theirs = replace(mine, name="theirs", deployment="there")
    meta = {**job["metadata"], "name": theirs.name, "annotations": {ANN_TASK: json.dumps(theirs.to_dict())}}
    for field in ("uid", "resourceVersion"):
        meta.pop(field, None)
    kube.create({**job, "metadata": meta})
    assert orphans.delete_orphans("dag", "run") == 1
    assert left(kube) == {"theirs"}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, session: Session) -> Callable[[], list[str]]:
    """Values of the Variable with Airflow's id."""
    monkeypatch.setattr(deployment, "create_session", lambda: contextlib.nullcontext(session))
    monkeypatch.setattr(patrol, "start", lambda component: None)
    return lambda: [row.val for row in session.scalars(select(Variable).where(Variable.key == DEPLOYMENT))]


def test_an_airflow_that_starts_gets_an_id_once(variables: Callable[[], list[str]]) -> None:
    listener.on_starting(SimpleNamespace())  # a worker
    assert variables() == []
    listener.on_starting(STARTING)
    (made,) = variables()
    assert len(made) == 32
    listener.on_starting(STARTING)
    assert variables() == [made]


@pytest.mark.parametrize("error", [IntegrityError("insert", {}, Exception("unique")), OSError("no database")])
def test_airflow_starts_without_an_id_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def broken() -> Any:
        raise error

    monkeypatch.setattr(deployment, "create_session", broken)
    monkeypatch.setattr(patrol, "start", lambda component: None)
    listener.on_starting(STARTING)
    assert ("was not made: OSError" in caplog.text) is isinstance(error, OSError)


@pytest.mark.parametrize("how", ["Complete", "Failed"])
def test_what_has_ended_stays_to_be_looked_at(session: Session, kube: FakeKube, how: str) -> None:
    claim = task(session, kube, "train", "failed")
    kube.set_status(JOB, NAMESPACE, claim.name, {"conditions": [{"type": how, "status": "True"}]})
    assert orphans.delete_orphans("dag", "run") == 0
    assert left(kube) == {claim.name}


def test_a_task_that_is_cleared_at_this_moment_loses_only_the_job_from_before(
    session: Session, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = task(session, kube, "train", "failed")

    def cleared_meanwhile(conn_id: str) -> Any:
        session.execute(update(TaskInstance).values(state=None))
        return kube, "default"

    monkeypatch.setattr(connection, "connect", cleared_meanwhile)
    assert orphans.delete_orphans("dag", "run") == 1
    assert left(kube) == set(), claim.name


def test_a_cluster_that_does_not_answer_is_asked_again() -> None:
    asked: list[tuple[str, str]] = []
    done = threading.Event()

    def look(dag_id: str, run_id: str) -> None:
        asked.append((dag_id, run_id))
        if len(asked) < 4:
            raise Unreachable("no answer")
        done.set()

    sweeper = orphans.Sweeper(look, grace_s=0.01)
    sweeper.later("dag", "run")
    assert done.wait(120)
    assert asked == [("dag", "run")] * 4


def test_it_gives_up_and_starts_again_for_the_next_run() -> None:
    asked: list[str] = []
    ended = threading.Semaphore(0)

    def look(dag_id: str, run_id: str) -> None:
        asked.append(run_id)
        ended.release()
        raise Unreachable("no answer")

    sweeper = orphans.Sweeper(look, grace_s=0.01, tries=1, slow_s=0.01, slow_tries=1)
    for run_id in ("one", "two"):
        sweeper.later("dag", run_id)
        assert ended.acquire(timeout=120) and ended.acquire(timeout=120)
    assert asked == ["one", "one", "two", "two"]


def test_a_long_outage_is_outlasted_and_other_runs_do_not_wait_for_it() -> None:
    """It was given up after ten minutes: the Job of a task that was marked failed meanwhile trained for ever."""
    asked: list[str] = []
    slow, found = threading.Semaphore(0), threading.Event()

    def look(dag_id: str, run_id: str) -> None:
        asked.append(run_id)
        if run_id == "out":
            slow.release()
            raise Unreachable("no answer")
        found.set()

    sweeper = orphans.Sweeper(look, grace_s=0.01, tries=3, slow_s=3600, slow_tries=2)
    sweeper.later("dag", "out")
    assert all(slow.acquire(timeout=120) for _ in range(3))
    sweeper.later("dag", "other")
    assert found.wait(120)
    assert asked == ["out"] * 3 + ["other"]
    with sweeper._lock:
        ((run, (due, tries)),) = sweeper._due.items()
        sweeper._due.clear()  # its thread ends
    assert (run, tries) == (("dag", "out"), 2) and due - time.monotonic() > 3000
    assert orphans.SLOW_S * orphans.SLOW_TRIES >= 24 * 3600


def test_rows_of_the_database_are_looked_after_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(orphans.sweeper, "later", lambda dag_id, run_id: told.append((dag_id, run_id)))
    monkeypatch.setattr(cleared, "note", lambda row: None)
    row = TaskInstance.__new__(TaskInstance)
    row.__dict__["_sa_instance_state"] = object()
    monkeypatch.setattr(TaskInstance, "dag_id", "dag")
    monkeypatch.setattr(TaskInstance, "run_id", "run")
    listener.on_task_instance_failed(None, row, None)
    listener.on_task_instance_success(None, row)
    listener.on_task_instance_skipped(None, row)
    in_a_worker = SimpleNamespace(dag_id="dag", run_id="run")
    listener.on_task_instance_failed("running", in_a_worker, None)
    assert told == [("dag", "run")] * 3


def test_airflow_accepts_the_listener() -> None:
    """Its plugin manager refuses hooks whose arguments it does not know."""
    from airflow.listeners.listener import get_listener_manager

    manager = get_listener_manager()
    (module,) = SingularityPlugin.listeners
    manager.add_listener(module)
    assert manager.pm.is_registered(module)
    names_ = {caller.name for caller in manager.pm.get_hookcallers(module)}
    assert {"on_dag_run_failed", "on_dag_run_success", "on_task_instance_failed"} <= names_


@pytest.mark.parametrize(("state", "written"), [("restarting", "2"), ("running", None)])
@NEEDS_STORE
def test_a_clear_of_a_task_that_runs_is_written_down(
    session: Session, monkeypatch: pytest.MonkeyPatch, state: str, written: str | None
) -> None:
    """By what Airflow itself does when a worker was lost."""
    from airflow.listeners.listener import get_listener_manager

    told: list[str] = []
    monkeypatch.setattr(orphans.sweeper, "later", lambda dag_id, run_id: told.append(run_id))
    where = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1}
    session.add(DagRun(dag_id="dag", run_id="run", run_type="manual", run_after=datetime(2026, 1, 1, tzinfo=UTC)))
    session.flush()
    db_rows.task_instance(session, **where, state=state, try_number=2, max_tries=3)
    session.commit()
    manager = get_listener_manager()
    registered = manager.pm.is_registered(listener)
    if not registered:
        manager.add_listener(listener)
    try:
        (row,) = session.scalars(select(TaskInstance))
        TaskInstance.fetch_handle_failure_context(row, "the worker was lost", session=session)
        session.commit()
    finally:
        if not registered:
            manager.pm.unregister(listener)
    assert (row.state, told) == ("up_for_retry", ["run"])
    found = data.stored(session, TaskKey("dag", "run", "train"), memory.CLEARED_KEY)
    assert found == (None if written is None else int(written))
