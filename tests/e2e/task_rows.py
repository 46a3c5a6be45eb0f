"""Playing a row of the table of task faults: one Dag run, what is done to it, and what was seen meanwhile."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider.identity import Claim
from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, Object, is_true
from localcluster.demo.errors import AirflowApiError
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.wait import wait_for

TIMEOUT_S = 900.0
ENDED = ("success", "failed")
MANAGED = f"{job_names.LABEL_MANAGED}=true"
_restarting = threading.Lock()
_writing = threading.Lock()
"""Two requests that write at one moment can hold each other up in the api-server, and all of Airflow with them, for as
long as one waits for SQLite's only writer: minutes, as each is asked again."""


class Jobs:
    """Every event of every training Job, from the moment this is made until `stop`."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._version = kube.list_versioned(JOB, NAMESPACE)[1]
        self._over = threading.Event()
        self.events: list[tuple[str, Object]] = []
        self.trouble: KubeError | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                for kind, job in self._kube.watch(JOB, NAMESPACE, MANAGED, self._version, timeout_s=5):
                    self._version = job["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        self.events.append((kind, job))
            except KubeError as error:
                if not error.transient:  # the history has a hole: no count would be right
                    self.trouble = error
                    return

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)
        assert self.trouble is None, self.trouble

    def of(self, dag_id: str) -> list[tuple[str, Object]]:
        return [(kind, job) for kind, job in list(self.events) if _dag(job) == dag_id]

    def made(self, dag_id: str) -> set[str]:
        """Uids of all Jobs that the Dag's tasks have ever had."""
        return {job["metadata"]["uid"] for _, job in self.of(dag_id)}

    def most_alive(self, dag_id: str) -> int:
        """The largest number of them that were neither finished nor on their way out at one moment."""
        alive: set[str] = set()
        most = 0
        for kind, job in self.of(dag_id):
            if kind == "DELETED" or _over(job):
                alive.discard(job["metadata"]["uid"])
            else:
                alive.add(job["metadata"]["uid"])
            most = max(most, len(alive))
        return most


def alive(kube: Kube, dag_id: str) -> list[str]:
    """The Dag's Jobs that run or wait now."""
    return [
        job["metadata"]["name"] for job in kube.list(JOB, NAMESPACE, MANAGED) if _dag(job) == dag_id and not _over(job)
    ]


def _dag(job: Object) -> str | None:
    claim = Claim.of_job(job)
    return None if claim is None else claim.key.dag_id


def _over(job: Object) -> bool:
    return bool(is_true(job, "Complete") or is_true(job, "Failed") or job["metadata"].get("deletionTimestamp"))


@dataclass
class Play:
    """One row while it is played."""

    stage: Stage
    dag_id: str
    run_ids: list[str] = field(default_factory=list)

    @property
    def _path(self) -> str:
        return f"dags/{self.dag_id}"

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Again while Airflow cannot: its database is one file, which is locked now and then."""

        def asked() -> tuple[Any]:
            with nullcontext() if method == "GET" else _writing:
                return (self.stage.airflow.api.call(method, path, body),)

        return wait_for(asked, f"{method} {path}", TIMEOUT_S)[0]

    # --- the run ------------------------------------------------------------------------------------------------------
    def switch_on(self) -> None:
        wait_for(lambda: self.stage.airflow.api.dag_exists(self.dag_id), f"{self.dag_id} known to Airflow", TIMEOUT_S)
        self.call("PATCH", self._path, {"is_paused": False})

    def trigger(self) -> None:
        self.switch_on()
        self.run_ids = [f"fault-{time.time_ns()}"]
        try:
            body = {"logical_date": None, "dag_run_id": self.run_ids[0], "conf": {}}
            self.call("POST", f"{self._path}/dagRuns", body)
        except AirflowApiError as error:
            if error.status != 409:  # the first answer came too late: nobody else has a run of this name
                raise

    def runs_made(self, count: int) -> None:
        """Wait for the `count` runs that Airflow itself makes."""

        def there() -> bool:
            runs = self.call("GET", f"{self._path}/dagRuns")["dag_runs"]
            self.run_ids = [each["dag_run_id"] for each in runs]
            return len(runs) >= count

        wait_for(there, f"{count} runs of {self.dag_id}", TIMEOUT_S)

    def tasks(self) -> list[dict[str, Any]]:
        """The task instances, mapped ones too, of all runs."""
        return [
            task
            for run_id in self.run_ids
            for task in self.call("GET", f"{self._path}/dagRuns/{run_id}/taskInstances")["task_instances"]
        ]

    def states(self) -> set[str | None]:
        return {task["state"] for task in self.tasks()}

    def until_state(self, state: str) -> None:
        def reached() -> bool:
            now = self.states()
            assert now == {state} or not now & set(ENDED), f"{self.dag_id} is {now} before {state}:\n{self.log(1)}"
            return now == {state}

        wait_for(reached, f"{self.dag_id} {state}", TIMEOUT_S, detail=lambda: str(self.states()))

    def until_deferred(self) -> None:
        """The task is deferred and a triggerer waits for its Job."""
        self.until_state("deferred")
        wait_for(lambda: f"trigger {self.dag_id}/" in self.log(1), f"{self.dag_id} taken by the triggerer", TIMEOUT_S)

    def until_ended(self) -> None:
        def ended() -> bool:
            states = {self.stage.airflow.api.dag_run_state(self.dag_id, run_id) for run_id in self.run_ids}
            return states <= set(ENDED)

        wait_for(ended, f"the end of {self.dag_id}", TIMEOUT_S, detail=lambda: f"{self.states()}\n{self.log(1)}")

    def log(self, try_number: int) -> str:
        task = self.tasks()[0]
        return self.stage.airflow.api.log(self.dag_id, task["dag_run_id"], "train", try_number, task["map_index"])

    # --- what is done to it -------------------------------------------------------------------------------------------
    def mark(self, state: str) -> None:
        """What the buttons `Mark as` of a task instance do."""
        self.call("PATCH", f"{self._path}/dagRuns/{self.run_ids[0]}/taskInstances/train", {"new_state": state})

    def mark_run(self, state: str) -> None:
        """What the buttons `Mark as` of a Dag run do."""
        self.call("PATCH", f"{self._path}/dagRuns/{self.run_ids[0]}", {"state": state})

    def delete_dag(self) -> None:
        """What the button `Delete Dag` does: Airflow forgets its runs, whatever they wait for."""
        try:
            self.call("DELETE", self._path)
        except AirflowApiError as error:
            if error.status != 404:  # the first answer came too late
                raise
        self.run_ids = []

    def clear(self) -> None:
        body = {"dry_run": False, "dag_run_id": self.run_ids[0], "task_ids": ["train"], "only_failed": False}
        self.call("POST", f"{self._path}/clearTaskInstances", body)

    def paused(self) -> tuple[int, int]:
        """Process of the task, which stands still between Job and deferral, and its supervisor's, the worker."""
        mark = self.stage.airflow.home / f"{self.dag_id}.paused"
        wait_for(mark.exists, f"{self.dag_id} between Job and deferral", TIMEOUT_S, detail=lambda: self.log(1))
        task, supervisor = map(int, mark.read_text().split())
        return task, supervisor

    def go(self) -> None:
        (self.stage.airflow.home / f"{self.dag_id}.go").touch()

    def unreachable_cluster(self, conn_id: str) -> Callable[[], None]:
        """Make a connection to the cluster by an address where nobody listens; returns what puts it right."""
        right = self.stage.cluster.kubeconfig.read_text()
        path = self.stage.airflow.home / f"{conn_id}.kubeconfig"
        wrong = json.loads(right)
        wrong["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
        path.write_text(json.dumps(wrong))
        extra = json.dumps({"kube_config_path": str(path)})
        self.call("POST", "connections", {"connection_id": conn_id, "conn_type": "kubernetes", "extra": extra})

        def mend() -> None:
            path.with_suffix(".new").write_text(right)
            path.with_suffix(".new").rename(path)

        return mend

    def kill(self, processes: Sequence[int], signal_: signal.Signals = signal.SIGKILL) -> None:
        for process in processes:
            os.kill(process, signal_)

    def restart(self, part: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """kill -9 of a part of Airflow with everything that it started; then it is started again."""
        with _restarting:
            self.stage.airflow.kill_part(part)
            try:
                meanwhile()
            finally:
                self.stage.airflow.start_part(part)


@dataclass(frozen=True)
class Seen:
    """What became of a row."""

    states: set[str | None]
    tries: int
    made: int
    at_once: int
    alive: list[str]
    logs: dict[int, str]

    def counted(self, made: int, at_once: int) -> Seen:
        """With what the Jobs' own history says, which is read at the end."""
        return replace(self, made=made, at_once=at_once)
