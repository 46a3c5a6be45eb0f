"""Ranks have ended well when an eviction comes.

A pod that ends with 0 completes its index, and Kubernetes never makes a pod of that index again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.kube.resources import LOCAL_QUEUE
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(3600)]
NAMESPACE = "rows-uneven"
SCRIPT = Path(__file__).parent / "scripts" / "train_uneven.py"


def submit(rows: Rows, name: str, **spec: object) -> Training:
    folder = Path(rows.namespace) / name
    (rows.stage.cluster.shared / folder).mkdir(parents=True)
    (rows.stage.cluster.shared / folder).chmod(0o777)
    command = ["python3", SCRIPT.name, "--output", f"/shared/{folder}"]
    job = rows.train(name, "uneven", workers=2, command=command, files={SCRIPT.name: SCRIPT.read_text()}, **spec)
    return Training(rows, job.spec, rows.stage.cluster.shared / folder)


def lines(job: Training, name: str) -> int:
    path = job.output / name
    return len(path.read_text().splitlines()) if path.exists() else 0


def waiting(job: Training) -> bool:
    """The pod of rank 1 has said that it waits."""
    names = [p["metadata"]["name"] for p in job.pods() if p["metadata"]["name"].startswith(f"{job.name}-1-")]
    said = [text for name in names for text in job.rows.kube.pod_logs(job.rows.namespace, name, "train")]
    return any("waiting for those of the other pods" in text for text in said)


def test_a_rank_that_has_ended_is_saved_as_ended_and_no_pod_is_complete_before_the_world_is(rows: Rows) -> None:
    rows.queue("uneven", {"ondemand": "100m"})
    job = submit(rows, "uneven", grace_period_s=20)
    wait_for(lambda: lines(job, "trained-1") == 1, "the steps", TIMEOUT_S)
    wait_for(lambda: waiting(job), "rank 1 ended", TIMEOUT_S)
    rows.say("rank 1 has ended well, rank 0 works on; the job is preempted")
    rows.other("urgent", "uneven", cpu="100m")
    rows.until_admitted("urgent")
    first = job.until_ended(1)
    rows.say(f"attempt 1: {first.checkpoint} {first.note}")
    assert first.checkpoint is not None
    assert "succeeded" not in job.job()["status"] or not job.job()["status"]["succeeded"]
    rows.remove("urgent")
    (job.output / "stop").touch()
    last = job.until(lambda s: s.final, "the end")
    assert last.phase == "Succeeded", last.message
    assert [lines(job, f"{what}-{rank}") for what in ("starts", "trained") for rank in (0, 1)] == [1, 1, 1, 1]
    assert job.job()["status"]["succeeded"] == 2


def containers(job: Training) -> dict[str, str]:
    """State of the containers of the job's pod, and the pod's phase."""
    (pod,) = job.pods()
    found = {status["name"]: next(iter(status["state"])) for status in pod["status"].get("containerStatuses") or ()}
    return {**found, "phase": pod["status"]["phase"]}


@pytest.mark.parametrize("moment", ["ranks", "pod"])
def test_an_eviction_after_the_last_step_is_no_loss_and_starts_no_other_attempt(rows: Rows, moment: str) -> None:
    """Between the end of the ranks and a complete Job lie seconds: sidecar, kubelet and Job controller take them."""
    rows.queue("last", {"ondemand": "50m"})
    job = rows.train(f"last-{moment}", "last")
    job.until_steps()
    (job.output / "stop").touch()
    name, state = ("train", "terminated") if moment == "ranks" else ("phase", "Succeeded")
    wait_for(lambda: containers(job).get(name) == state, f"{name} is {state}", TIMEOUT_S)
    rows.patch(LOCAL_QUEUE, "last", {"stopPolicy": "HoldAndDrain"})
    last = job.finish()
    assert [(a.attempt, a.ended_by, a.note) for a in last.attempts] == [(1, "Finished", None)]
    assert (last.steps_lost, job.repeated()) == (0, 0)
