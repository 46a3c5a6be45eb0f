"""Ranks in one long native call cannot be stopped together: the hold ends at its deadline, and says so.

It does so too when whoever may edit the Job writes another one again and again, and when we cannot write on it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from dag_run import Run
from faults import Faults
from rows import TIMEOUT_S, Rows, Training
from scrape import scrape

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.jobs.status import describe
from kueue_integration.kube import server_time
from kueue_integration.kube.client import Kube
from kueue_integration.kube.credentials import connect
from kueue_integration.kube.resources import POD, condition
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.follow import running_pods
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import QUEUE, remove
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
BUDGET_S = 10
MAX_S = 20
"""The platform's budget.maxSeconds while a tenant plays foul."""
FOREVER = "9" * 400


@pytest.mark.airflow
def test_deadline_lifts_the_hold_and_the_job_restarts(
    stage: Stage, start_run: Callable[[str], Run], say: Callable[[str], None]
) -> None:
    run = start_run("deadline")
    job = run.job()
    kube = stage.kube
    pods = f"{job_names.LABEL_JOB}={job}"
    wait_for(lambda: running_pods(kube, NAMESPACE, pods) == 4, "4 training pods", 300)
    wait_for(lambda: "no step boundary" in first_log(kube, pods), "the script at work", 180)
    say(f"{job} runs; the high-priority job arrives")
    before = scrape(kube)
    kube.create(intruder("urgent-deadline", NAMESPACE, QUEUE, stage.platform.train_image, 4, "250m"))
    try:
        wait_for(lambda: scrape(kube)["singularity_holds_active", ""] == 1, "the hold is counted", 300, tick_s=0.1)
        wait_for(
            lambda: running_pods(kube, NAMESPACE, "job-name=urgent-deadline") == 4, "the high-priority job at work", 300
        )
        first = describe(kube, NAMESPACE, job).attempts[0]
    finally:
        remove(kube, NAMESPACE, "urgent-deadline")
    assert first.evicted_at is not None
    assert first.released_at is not None
    held = first.released_at - first.evicted_at
    say(f"the hold ended after {held:.1f} s: {first.note}")
    wait_for(lambda: scrape(kube)["singularity_holds_active", ""] == 0, "no hold is left", 300)
    now = scrape(kube)
    ended = [("singularity_holds_expired_total", ""), ("singularity_holds_released_total", "deadline")]
    assert [now[key] - before.get(key, 0.0) for key in ended] == [1, 1]
    assert BUDGET_S - 1 <= held <= BUDGET_S + 30
    assert first.checkpoint is None
    assert first.note is not None
    assert f"no checkpoint within {BUDGET_S} s" in first.note
    assert "from the beginning" in first.note
    assert run.until_run_ends() == "success"
    attempts = describe(kube, NAMESPACE, job).attempts
    assert [a.ended_by for a in attempts] == ["Preempted", "Finished"]
    assert attempts[1].restored_from is None
    log = run.log()
    assert f"no checkpoint within {BUDGET_S} s" in log
    assert "from the beginning" in log


def first_log(kube: Kube, pods: str) -> str:
    """What the script has said in the first pod, "" before it said anything."""
    name = kube.list(POD, NAMESPACE, pods)[0]["metadata"]["name"]
    try:
        return "\n".join(kube.pod_logs(NAMESPACE, name, job_names.CONTAINER_TRAIN))
    except KubeError:
        return ""


# --- somebody does not want it to end ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "rows-deadline", say)
    made.queue("foul", {"ondemand": "100m"})
    faults = Faults(stage, made.namespace)
    faults.upgrade(budget__maxSeconds=MAX_S)
    yield made
    made.close()
    faults.upgrade(budget__maxSeconds=stage.platform.max_budget_s)


@contextlib.contextmanager
def foul(rows: Rows, name: str) -> Iterator[Training]:
    """Two ranks at work that will not come to the end of a step; preempted, they start again in the end."""
    job = rows.train(name, "foul", workers=2)
    try:
        job.until_steps(2)
        job.slow()
        yield job
        job.slow(False)
        job.until_attempt(2)
    finally:
        rows.remove(f"urgent-{name}")
        rows.remove(name)


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
def test_a_tenant_who_rewrites_the_deadline_every_two_seconds_is_preempted_in_time(
    rows: Rows, faults: Faults, guarded: bool
) -> None:
    """With the guard of annotations, which leaves the budget and the hold to the tenant, and without it."""
    with foul(rows, "rewrites") as job:
        with contextlib.nullcontext() if guarded else faults.unguarded(), rewriting(job, faults):
            preempted(rows, job)
        assert faults.count["rewritten"] >= MAX_S / 4
        assert bool(faults.count["refused"]) == guarded


def test_a_job_that_the_controller_cannot_write_is_preempted_in_time(rows: Rows, faults: Faults) -> None:
    """A policy of somebody else's refuses it; full annotations would. Nothing changes on the Job meanwhile."""
    with foul(rows, "unwritable") as job:
        with faults.controller_refused(job.name):
            preempted(rows, job)
        assert faults.count["controller refused"] == 1


@contextlib.contextmanager
def rewriting(job: Training, faults: Faults) -> Iterator[None]:
    """Every 2 s the owner writes another deadline and budget, or removes both, and arms the hold again."""
    kube, over = connect(str(job.rows.stage.cluster.kubeconfig)), threading.Event()

    def write() -> None:
        for number in itertools.count():
            texts = ("2099-01-01T00:00:00Z", server_time.to_text(time.time() + 15), None)
            for name, text in {
                job_names.ANN_HOLD_DEADLINE: texts[number % len(texts)],
                job_names.ANN_BUDGET: (FOREVER, "600", None)[number % 3],
                job_names.ANN_HOLD: job_names.HOLD_ARMED,
            }.items():
                try:
                    kube.patch_job(job.rows.namespace, job.name, {"metadata": {"annotations": {name: text}}})
                except KubeError as error:
                    assert "is the platform's" in str(error), error
                    faults.count["refused"] += 1
            faults.count["rewritten"] += 1
            if over.wait(2):
                return

    thread = threading.Thread(target=write, name="tenant")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def preempted(rows: Rows, job: Training) -> None:
    """A job of high priority comes, and is let in when the checkpoint's whole time is over, and not later."""
    urgent = rows.other(f"urgent-{job.name}", "foul", pods=2)
    evicted = wait_for(lambda: since(rows, job.name, "Evicted"), "the eviction", TIMEOUT_S, tick_s=0.1)
    suspended = wait_for(lambda: job.job()["spec"]["suspend"] and time.time(), "the suspend", 4 * MAX_S, tick_s=0.1)
    admitted = wait_for(lambda: since(rows, urgent, "Admitted"), "the admission", 4 * MAX_S, tick_s=0.1)
    rows.say(f"suspended {suspended - evicted:.1f} s after the eviction; other admitted: {admitted - evicted:.0f} s")
    rows.remove(urgent)
    assert MAX_S - 1 <= suspended - evicted <= MAX_S + 4
    assert admitted - evicted <= MAX_S + 5


def since(rows: Rows, job: str, name: str) -> float | None:
    """When the condition of its Workload became True."""
    found = condition(rows.workload(job), name) or {}
    return server_time.transition(found) if found.get("status") == "True" else None
