"""A DAG run that a test started, and what tests ask of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kueue_integration.kube.resources import JOB
from localcluster.demo.follow import managed_jobs
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.wait import wait_for


class Run:
    """A run of `dag_id`, whose one task is called `train`."""

    def __init__(
        self,
        stage: Stage,
        dag_id: str,
        say: Callable[[str], None],
        conf: dict[str, Any] | None = None,
        scheduled: bool = False,
    ) -> None:
        """Triggered with `conf`; or `scheduled`: the run that the scheduler makes once the Dag is switched on."""
        self.api, self.kube = stage.airflow.api, stage.kube
        self.dag_id = dag_id
        self.run_id = f"{dag_id}-{time.time_ns()}"
        self.known = set(managed_jobs(self.kube, NAMESPACE))
        self.version = self.kube.list_versioned(JOB, NAMESPACE)[1]
        wait_for(lambda: self.api.dag_exists(dag_id), f"DAG {dag_id} known to Airflow", 600)
        self.api.unpause(dag_id)
        if scheduled:
            self.run_id = wait_for(self._made_by_scheduler, f"the scheduler's run of {dag_id}", 600)
        else:
            self.api.trigger(dag_id, self.run_id, conf or {})
        say(f"DAG run {self.run_id}")

    def _made_by_scheduler(self) -> str | None:
        runs = self.api.call("GET", f"dags/{self.dag_id}/dagRuns")["dag_runs"]
        return next((str(each["dag_run_id"]) for each in runs), None)

    def task_state(self) -> str | None:
        state: str | None = self.api.task(self.dag_id, self.run_id, "train")["state"]
        return state

    def until_state(self, state: str, timeout_s: float = 600) -> None:
        """Wait for the task's state. Fails at once when the run ends another way."""

        def reached() -> bool:
            now = self.task_state()
            assert now == state or now not in ("failed", "upstream_failed"), self.log()
            return now == state

        wait_for(reached, f"task train {state}", timeout_s, detail=lambda: str(self.task_state()))

    def job(self, timeout_s: float = 600) -> str:
        """Name of the one Job that the run has alive."""

        def found() -> str | None:
            new = [name for uid, name in managed_jobs(self.kube, NAMESPACE).items() if uid not in self.known]
            return new[0] if new else None

        return wait_for(found, "the train task's Job", timeout_s)

    def until_run_ends(self, timeout_s: float = 900) -> str:
        def ended() -> str | None:
            state = self.api.dag_run_state(self.dag_id, self.run_id)
            return state if state in ("success", "failed") else None

        return wait_for(ended, "the end of the DAG run", timeout_s, detail=lambda: str(self.task_state()))

    def log(self, try_number: int = 1) -> str:
        return self.api.log(self.dag_id, self.run_id, "train", try_number)

    def job_events(self) -> list[tuple[str, dict[str, Any]]]:
        """(ADDED | MODIFIED | DELETED, Job) since the run was started, from the API server's own history."""
        events = self.kube.watch(JOB, NAMESPACE, None, self.version, timeout_s=5)
        return [(kind, job) for kind, job in events if kind != "BOOKMARK" and job["metadata"]["uid"] not in self.known]
