"""Ranks in one long native call cannot be stopped together: the hold ends at its deadline, and says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dag_run import Run
from scrape import scrape

from kueue_integration.errors import KubeError
from kueue_integration.k8s import Kube
from kueue_integration.resources import POD
from kueue_integration.status import describe
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.follow import running_pods
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import QUEUE, remove
from localcluster.demo.wait import wait_for
from proxy.protocol import names

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.timeout(2400)]
BUDGET_S = 10


def test_deadline_lifts_the_hold_and_the_job_restarts(
    stage: Stage, start_run: Callable[[str], Run], say: Callable[[str], None]
) -> None:
    run = start_run("deadline")
    job = run.job()
    kube = stage.kube
    pods = f"{names.LABEL_JOB}={job}"
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
        return "\n".join(kube.pod_logs(NAMESPACE, name, names.CONTAINER_TRAIN))
    except KubeError:
        return ""
