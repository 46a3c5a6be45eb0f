"""Rank 0 in the task log through a preemption; pod_override and the infrastructure budget, in a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from dag_run import Run
from faults import Faults

from kueue_integration.contract import job_names
from kueue_integration.jobs.status import describe
from kueue_integration.kube.resources import POD
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.follow import running_pods
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import QUEUE, remove
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(2400)]


def test_every_line_of_rank_0_is_in_the_task_log_through_a_preemption(
    stage: Stage, start_run: Callable[[str], Run]
) -> None:
    run = start_run("streamed")
    job, kube = run.job(), stage.kube
    wait_for(lambda: describe(kube, NAMESPACE, job).step >= 20, "20 steps", 600)
    for pod in kube.list(POD, NAMESPACE, f"{job_names.LABEL_JOB}={job}"):
        assert pod["metadata"]["labels"]["team"] == "vision"
        (train,) = pod["spec"]["containers"]
        assert {"name": "FROM_OVERRIDE", "value": "yes"} in train["env"]
    wait_for(lambda: "[rank 0] step 5" in run.log(), "output in the task log while the task is deferred", 300)
    assert run.task_state() == "deferred"
    kube.create(intruder("urgent-log", NAMESPACE, QUEUE, stage.platform.train_image, 4, "250m"))
    try:
        wait_for(lambda: running_pods(kube, NAMESPACE, "job-name=urgent-log") == 4, "the high-priority job", 600)
    finally:
        remove(kube, NAMESPACE, "urgent-log")
    assert run.until_run_ends() == "success"
    assert len(describe(kube, NAMESPACE, job).attempts) == 2, "nothing was preempted"
    steps = [int(n) for n in re.findall(r"\[rank 0\] step (\d+)", run.log())]
    assert steps == list(range(600))
    # preemption_alert = 0: a warning, and nothing else
    assert "preemption_alert" in run.log()
    assert run.api.xcom(run.dag_id, run.run_id, "train", "lineage")["preemption_alert"] is True


def test_an_attempt_lost_beyond_the_budget_fails_the_task(stage: Stage, start_run: Callable[[str], Run]) -> None:
    run = start_run("lost")
    job, kube = run.job(), stage.kube
    pods = f"{job_names.LABEL_JOB}={job}"
    wait_for(lambda: running_pods(kube, NAMESPACE, pods) == 1, "the training pod", 600)
    wait_for(lambda: describe(kube, NAMESPACE, job).phase == "Running", "ranks at work", 600)
    (pod,) = kube.list(POD, NAMESPACE, pods)
    Faults(stage, NAMESPACE).kill_pod(pod)  # a pod that is deleted in good order saves a checkpoint and loses nothing
    assert run.until_run_ends() == "failed"
    status = describe(kube, NAMESPACE, job)
    # Kubernetes counts killed pods itself: whoever of the two sees it first.
    assert status.reason in ("InfrastructureRetriesExceeded", "BackoffLimitExceeded")
    assert "infrastructure_retries = 0" in run.log()
