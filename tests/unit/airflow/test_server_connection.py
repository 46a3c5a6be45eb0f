"""Which connections Airflow's servers use for a task: what the Dag's file names, and none that runs a program."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import db_rows
import pytest
from airflow.sdk import DAG, task
from airflow_fakes import connection as made_connection
from fastapi import HTTPException
from sqlalchemy.orm import Session

from airflow_provider import memory
from airflow_provider.identity import Claim, TaskKey, Try
from airflow_provider.operators import SingularityTrainOperator
from airflow_provider.plugin import actions, app, connection

TASK = {"queue_name": "q", "command": ["x"]}
WHERE = {"dag_id": "dag", "run_id": "run"}


@task
def clusters_of_today() -> list[str]:
    return ["evil"]


def the_dag() -> DAG:
    with DAG("dag", schedule=None) as dag:
        SingularityTrainOperator(task_id="plain", kubernetes_conn_id="a", **TASK)
        SingularityTrainOperator(task_id="default", **TASK)
        SingularityTrainOperator(task_id="template", kubernetes_conn_id="{{ params.c }}", **TASK)
        SingularityTrainOperator.partial(task_id="each", **TASK).expand(kubernetes_conn_id=["m1", "m2"])
        SingularityTrainOperator.partial(task_id="one", kubernetes_conn_id="p", queue_name="q").expand(command=[["x"]])
        kwargs = [{"kubernetes_conn_id": "k1"}, {"kubernetes_conn_id": "{{ z }}"}]
        SingularityTrainOperator.partial(task_id="kwargs", **TASK).expand_kwargs(kwargs)
        SingularityTrainOperator.partial(task_id="told", **TASK).expand(kubernetes_conn_id=clusters_of_today())
        SingularityTrainOperator.partial(task_id="mapped_default", queue_name="q").expand(command=[["x"]])

        @task.singularity_train(queue_name="q", kubernetes_conn_id="deco")
        def function() -> None: ...

        function()
    return dag


@pytest.mark.parametrize(("given", "named"), [("gpu", {"gpu"}), ("{{ x }}", set()), (None, {"kubernetes_default"})])
def test_default_args_of_a_dag_name_the_connection_of_its_mapped_tasks(given: str | None, named: set[str]) -> None:
    """No tab, no button and no search for orphans was there for such a task, and the refusal said that the Dag does not
    name what it does."""
    args = {"retries": 2} if given is None else {"retries": 2, "kubernetes_conn_id": given}
    with DAG("dag", schedule=None, default_args=args) as dag:
        SingularityTrainOperator.partial(task_id="each", queue_name="q").expand(command=[["x"]])
        SingularityTrainOperator.partial(task_id="own", kubernetes_conn_id="own", **TASK).expand(name=["n"])
        SingularityTrainOperator(task_id="plain", **TASK)
    with db_rows.database() as made:
        version = db_rows.serialized(made, dag)
        for name, wanted in {"each": named, "own": {"own"}, "plain": named}.items():
            db_rows.task_instance(made, **WHERE, task_id=name, map_index=0, dag_version_id=version)
            assert connection.named(made, TaskKey("dag", "run", name, 0)) == wanted, name


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with db_rows.database() as made:
        version = db_rows.serialized(made, the_dag())
        for name in NAMED:
            db_rows.task_instance(made, **WHERE, task_id=name, map_index=-1, dag_version_id=version)
        made.commit()
        yield made


NAMED = {
    "plain": {"a"},
    "default": {"kubernetes_default"},
    "template": set(),
    "each": {"m1", "m2"},
    "one": {"p"},
    "kwargs": {"k1"},
    "told": set(),
    "mapped_default": {"kubernetes_default"},
    "function": {"deco"},
    "no_such_task": set(),
}


@pytest.mark.parametrize(("name", "words"), NAMED.items())
def test_what_the_dags_file_names(session: Session, name: str, words: set[str]) -> None:
    assert connection.named(session, TaskKey("dag", "run", name)) == words
    assert connection.named(session, TaskKey("no_such_dag", "run", name)) == set()


def store(session: Session, task_id: str, conn_id: object) -> TaskKey:
    """What a task writes about itself."""
    key = TaskKey("dag", "run", task_id, 7)
    claim = Claim(key, 0, Try(1, 0, 0), "ns", "job", "uid")
    text = json.dumps({**claim.to_dict(), "conn_id": conn_id})
    db_rows.stored(session, **WHERE, task_id=task_id, map_index=7, key=memory.STORE_KEY, value=text)
    return key


@pytest.mark.parametrize("conn_id", ["admin_cluster", "{{ params.c }}", None, 7, ["a"], "x" * 9999])
def test_a_connection_that_the_task_wrote_is_not_used(
    session: Session, monkeypatch: pytest.MonkeyPatch, conn_id: object
) -> None:
    used: list[str] = []
    monkeypatch.setattr(app.clusters, "_connect", lambda name: used.append(name))
    monkeypatch.setattr(app, "create_session", lambda scoped: nullcontext(session))
    key = store(session, "template", conn_id)
    with pytest.raises(HTTPException) as caught:
        asyncio.run(app._with_job(key, lambda kube, claim: {}))
    session.rollback()
    assert used == []
    assert caught.value.status_code == 409
    assert "server_connections" in caught.value.detail and len(caught.value.detail) < 600


def test_the_connection_of_the_dag_is_used_and_so_is_one_that_an_administrator_lists(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr(app, "clusters", actions.Clusters(lambda name: (used.append(name), "default")))  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(app, "create_session", lambda scoped: nullcontext(session))
    key = store(session, "plain", "a")
    assert asyncio.run(app._with_job(key, lambda kube, claim: {"conn": claim["conn_id"]})) == {"conn": "a"}
    session.rollback()
    monkeypatch.setenv("AIRFLOW__SINGULARITY__SERVER_CONNECTIONS", "b, c")
    key = store(session, "template", "c")
    assert asyncio.run(app._with_job(key, lambda kube, claim: {"conn": claim["conn_id"]})) == {"conn": "c"}
    session.rollback()
    assert used == ["a", "c"]


# --- programs in a kubeconfig -----------------------------------------------------------------------------------------
def logs_in_with_a_program(mark: Path, how: str) -> dict[str, Any]:
    """A kubeconfig whose user is made by `touch mark`."""
    config: dict[str, Any] = json.loads(made_connection("http://127.0.0.1:1/"))["extra"]["kube_config"]
    if how == "exec":
        api = "client.authentication.k8s.io/v1"
        user: dict[str, Any] = {"exec": {"apiVersion": api, "command": "touch", "args": [str(mark)]}}
    else:
        program = {"cmd-path": "touch", "cmd-args": str(mark), "token-key": "{.t}", "expiry-key": "{.e}"}
        user = {"auth-provider": {"name": "gcp", "config": program}}
    config["users"][0]["user"] = user
    return config


@pytest.mark.parametrize("place", ["kube_config", "kube_config_path", "KUBECONFIG"])
@pytest.mark.parametrize("how", ["exec", "auth-provider"])
def test_a_server_runs_no_program_of_a_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str, place: str
) -> None:
    mark, file = tmp_path / "ran", tmp_path / "config"
    config = logs_in_with_a_program(mark, how)
    file.write_text(json.dumps(config))
    extra = {"kube_config": {"kube_config": config}, "kube_config_path": {"kube_config_path": str(file)}}
    made = json.dumps({"conn_type": "kubernetes", "extra": extra.get(place, {})})
    monkeypatch.setenv("AIRFLOW_CONN_PROGRAM", made)
    monkeypatch.setattr(connection, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(connection.RefusedError, match=f"logs in with '{how}'.*server_exec_plugins"):
        actions.Clusters().kube("program")
    assert not mark.exists()


def test_an_administrator_may_allow_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And shows that the test above would see one run."""
    mark = tmp_path / "ran"
    extra = {"kube_config": logs_in_with_a_program(mark, "exec")}
    monkeypatch.setenv("AIRFLOW_CONN_PROGRAM", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.setenv("AIRFLOW__SINGULARITY__SERVER_EXEC_PLUGINS", "True")
    actions.Clusters().kube("program")
    assert mark.exists()


def test_users_of_other_contexts_do_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    config = logs_in_with_a_program(mark, "exec")
    config["users"].append({"name": "plain", "user": {"token": "t"}})
    config["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "plain"}})
    extra = {"kube_config": config, "cluster_context": "y"}
    monkeypatch.setenv("AIRFLOW_CONN_PROGRAM", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    actions.Clusters().kube("program")
    assert not mark.exists()
    extra["cluster_context"] = "x"
    monkeypatch.setenv("AIRFLOW_CONN_PROGRAM", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    with pytest.raises(connection.RefusedError):
        actions.Clusters().kube("program")
