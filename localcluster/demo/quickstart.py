"""The story as an Airflow user sees it: DAG `quickstart`, and the same script once uninterrupted for comparison."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from datetime import datetime, timezone

from kueue_integration.contract import job_names
from kueue_integration.job import states
from kueue_integration.kube.api import Kube
from kueue_integration.kube.resources import JOB, is_true

from . import reference
from .compare import Comparison, compare, read_output
from .errors import StoryError
from .follow import Follower, managed_jobs
from .model import Expectation, StoryRecord, TaskSample
from .rest import AirflowApi
from .stage import DAGS, NAMESPACE, Stage
from .story import drive, record, remove
from .wait import wait_for

DAG_ID, TASK_ID = "quickstart", "train"
SCRIPT = DAGS / "scripts" / "train_digits.py"
INTRUDER = "urgent"
PARSED_TIMEOUT_S = 120.0
SUBMITTED_TIMEOUT_S = 180.0
RUN_END_TIMEOUT_S = 180.0
STEPS, PAUSE_S = 400, 0.15
"""A job grows back only when it has trained as long as its moves take. Without the pause a fast machine would be done
first. Every step is computed twice, for the comparison, where nothing pauses."""


def expectation(steps: int) -> Expectation:
    """The story of a job that looks like the quickstart's, with `steps` steps."""
    return Expectation(
        steps=steps, ranks=4, workers=4, min_workers=2, flavor="ondemand", other_flavor="spot", intruder=INTRUDER
    )


class TaskSampler:
    """Asks Airflow's REST API for the state of one task instance; keeps every answer."""

    def __init__(self, api: AirflowApi, run_id: str) -> None:
        self._api, self._run_id = api, run_id
        self.samples: list[TaskSample] = []

    def sample(self) -> None:
        task = self._api.task(DAG_ID, self._run_id, TASK_ID)
        self.samples.append(TaskSample(time.time(), task["state"] or "none", int(task["try_number"])))


def trigger(stage: Stage, run_id: str, steps: int) -> None:
    """Wait until Airflow has read the DAG, then start a run of it. Raises StoryError with the DAG's import error."""
    api = stage.airflow.api

    def parsed() -> bool:
        errors = api.import_errors()
        if errors:
            raise StoryError(f"Airflow cannot read a DAG file: {errors[0]}")
        return api.dag_exists(DAG_ID)

    wait_for(parsed, f"DAG {DAG_ID} known to Airflow", PARSED_TIMEOUT_S)
    api.unpause(DAG_ID)
    api.trigger(DAG_ID, run_id, {"steps": steps, "pause": PAUSE_S})


def submitted_job(stage: Stage, run_id: str, known: set[str]) -> str:
    """Name of the Job that the run's train task makes; `known` are the uids of those that were there before.

    Raises StoryError when a task fails first, or when there are two new ones.
    """
    api = stage.airflow.api

    def found() -> str | None:
        new = {uid: name for uid, name in managed_jobs(stage.kube, NAMESPACE).items() if uid not in known}
        if len(new) > 1:
            raise StoryError(f"one train task made several Jobs: {sorted(new.values())}")
        states = {name: task["state"] for name, task in api.tasks(DAG_ID, run_id).items()}
        failed = [name for name, state in states.items() if state in ("failed", "upstream_failed")]
        if failed:
            raise StoryError(f"task {failed[0]} failed:\n{api.log(DAG_ID, run_id, failed[0])[-3000:]}")
        return next(iter(new.values()), None)

    return wait_for(found, "the train task's Job", SUBMITTED_TIMEOUT_S)


def clear_the_way(kube: Kube, *namespaces: str) -> None:
    """Undo what a killed demo leaves on a cluster that stayed up. Raises StoryError for a Job that may be a user's.

    :param namespaces: that share the queue with the usual one
    """
    remove(kube, NAMESPACE, INTRUDER)
    managed = f"{job_names.LABEL_MANAGED}=true"
    for job in (job for namespace in (NAMESPACE, *namespaces) for job in kube.list(JOB, namespace, managed)):
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        if not (is_true(job, "Complete") or is_true(job, "Failed")):
            raise StoryError(
                f"Job {name} of namespace {namespace} is still there and would take part of the queue that the story "
                f"needs: wait for its end, or delete it with `singularityctl delete {name} --namespace {namespace}`"
            )


def play(stage: Stage, steps: int = STEPS) -> tuple[Expectation, StoryRecord]:
    """Run DAG and story to the end of the DAG run. Raises StoryError."""
    kube, api, say = stage.kube, stage.airflow.api, stage.say
    clear_the_way(kube)
    run_id = f"demo-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    known = set(managed_jobs(kube, NAMESPACE))
    say(f"DAG run {run_id} of {DAG_ID}: prepare -> train -> evaluate")
    started_at = time.time()
    trigger(stage, run_id, steps)
    job = submitted_job(stage, run_id, known)
    made = kube.get_job(NAMESPACE, job)
    argv = reference.command_of(made)
    expect = expectation(int(reference.option(argv, "--steps")))
    say(f"train is Job {job}: {' '.join(argv)}")
    say(f"its launcher's capabilities count here: {states.privileges(made)}")
    sampler = TaskSampler(api, run_id)
    follower = Follower(kube, NAMESPACE, job, say, also=sampler.sample)
    last = drive(kube, NAMESPACE, follower, expect, stage.platform.train_image, say)

    def ended() -> str | None:
        sampler.sample()
        state = api.dag_run_state(DAG_ID, run_id)
        return state if state in ("success", "failed") else None

    dag_run_state = wait_for(ended, "the end of the DAG run", RUN_END_TIMEOUT_S)
    say(f"DAG run ended: {dag_run_state}")
    measured = record(follower, started_at, last)
    return expect, replace(measured, task_samples=tuple(sampler.samples), dag_run_state=dag_run_state)


def compare_with_reference(stage: Stage, job: str, ranks: int) -> Comparison:
    """Run the job's script once uninterrupted and compare what both wrote. Raises StoryError, OSError, ValueError."""
    argv = reference.command_of(stage.kube.get_job(NAMESPACE, job))
    output = reference.option(argv, "--output")
    plain = f"{output.rstrip('/')}-uninterrupted"
    shutil.rmtree(reference.host_path(stage.platform, plain), ignore_errors=True)
    name = f"reference-{int(time.time())}"
    plain_argv = reference.with_option(argv, "--output", plain)
    if "--pause" in plain_argv:
        plain_argv = reference.with_option(plain_argv, "--pause", "0")
    reference.run(stage.kube, NAMESPACE, name, stage.platform, SCRIPT, plain_argv, ranks, stage.say)
    run, wanted = (reference.host_path(stage.platform, path) for path in (output, plain))
    return compare(read_output(run, ranks), read_output(wanted, ranks))
