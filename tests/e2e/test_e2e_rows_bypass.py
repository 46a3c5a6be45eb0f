"""Ways to end an attempt that Kueue does not see: they reach the pods as SIGTERM, or as nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import controllers
import pytest
from faults import Faults
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.kube.resources import CONFIG_MAP, JOB, NODE, POD, SERVICE, WORKLOAD, Object
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
TAINT = "cloud.example.com/reclaimed"
GRACE_S = 600
"""A machine that is busy with other things takes minutes to save what takes seconds otherwise."""


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "rows-bypass", say)
    yield made
    made.close()


@pytest.fixture
def faults(faults: Faults) -> Iterator[Faults]:
    yield faults
    for node in ("ondemand-0", "ondemand-1"):  # what a failed test has left
        if _tainted(faults, node):
            faults.kubectl("taint", "node", node, f"{TAINT}:NoExecute-", "--overwrite=true")


def _tainted(faults: Faults, node: str) -> bool:
    taints = faults.kube.get(NODE, None, node)["spec"].get("taints") or ()
    return any(taint["key"] == TAINT for taint in taints)


def running(job: Training, attempt: int) -> list[Object]:
    """Pods of `attempt`, by index."""
    own = [p for p in job.pods() if p["metadata"]["annotations"].get(job_names.ANN_ATTEMPT) == str(attempt)]
    assert len(own) == job.spec.workers, [p["metadata"]["name"] for p in job.pods()]
    return sorted(own, key=lambda p: str(p["metadata"]["name"]))


def saved(job: Training, attempt: int) -> AttemptRecord:
    """Attempt `attempt` ended with a checkpoint, and the next one has gone on from it."""
    job.until_attempt(attempt + 1)
    record = job.until_ended(attempt)
    assert (record.ended_by, record.committed_at is not None) == ("Deleted", True), record
    assert record.note and "not on Kueue's request" in record.note
    job.assert_exact()
    return record


@pytest.mark.full
def test_pod_deleted_node_drained_spot_reclaimed_pod_killed(rows: Rows, faults: Faults) -> None:
    rows.queue("bypass", {"ondemand": "100m"})
    job = rows.train("bypass", "bypass", workers=2, grace_period_s=GRACE_S)
    job.until_steps()

    rows.say("--> kubectl delete pod, one of two")
    faults.kubectl("-n", rows.namespace, "delete", "pod", running(job, 1)[1]["metadata"]["name"], "--wait=false")
    saved(job, 1)

    # The controller that leads must not be on the node that is reclaimed: another test is about its death.
    busy = controllers.leaders_node(rows.kube)
    first, other = ("ondemand-1", "ondemand-0") if busy == "ondemand-1" else ("ondemand-0", "ondemand-1")
    rows.say("--> kubectl drain")
    drained = first if first in {p["spec"]["nodeName"] for p in running(job, 2)} else other
    selector = f"--pod-selector={job_names.LABEL_JOB}={job.name}"
    out = faults.kubectl("drain", drained, selector, "--delete-emptydir-data", "--ignore-daemonsets", "--force")
    assert "evict" in out
    saved(job, 2)
    refuge = {p["spec"]["nodeName"] for p in running(job, 3)}
    assert refuge == {first, other} - {drained}
    faults.kubectl("uncordon", drained)

    if busy not in refuge:
        (reclaimed,) = refuge
        rows.say(f"--> NoExecute taint on {reclaimed}, as before a spot machine goes")
        faults.kubectl("taint", "node", reclaimed, f"{TAINT}=now:NoExecute")
        saved(job, 3)
        assert {p["spec"]["nodeName"] for p in running(job, 4)} == {drained}
        faults.kubectl("taint", "node", reclaimed, f"{TAINT}:NoExecute-")

    now = job.look()
    rows.say("--> a pod's processes are killed without a word")
    job.until_steps()
    faults.kill_pod(running(job, now.attempt)[1])
    assert faults.count["killed process"] >= 3  # sidecar, launcher, rank
    job.until_attempt(now.attempt + 1)
    lost = job.until_ended(now.attempt)
    assert (lost.ended_by, lost.checkpoint) == ("Deleted", None), lost
    before, after = job.look().attempts[now.attempt - 2], job.look().attempts[now.attempt]
    assert lost.note and f"restarts from checkpoint {before.checkpoint}" in lost.note
    assert after.restored_from == before.checkpoint  # back to the last one that was committed
    job.finish()
    assert job.repeated() > 0  # steps since then were run again, with the same bits


def test_a_rank_killed_for_memory_says_so_in_the_history(rows: Rows) -> None:
    quota = [{"name": "cpu", "nominalQuota": "1"}, {"name": "memory", "nominalQuota": "4Gi"}]
    flavors = [{"name": "ondemand", "resources": quota}]
    rows.queue("hungry", {}, resourceGroups=[{"coveredResources": ["cpu", "memory"], "flavors": flavors}])
    job = rows.train("hungry", "hungry", resources={"cpu": "50m", "memory": "1536Mi"})
    job.until_steps()
    (job.output / "hungry").touch()
    job.until_attempt(2)
    record = job.until_ended(1)
    assert record.ended_by == "OutOfMemory", record
    assert record.note and "rank 0 ended with code 137: out of memory: the kernel killed it" in record.note
    assert "the limit of the container is 1536 MiB" in record.note
    assert "restarts from the beginning" in record.note
    job.finish()
    assert job.repeated() > 0


@pytest.mark.full
def test_deleted_job_leaves_nothing_but_its_checkpoints(rows: Rows, faults: Faults) -> None:
    rows.queue("gone", {"ondemand": "50m"})
    job = rows.train("gone", "gone", grace_period_s=GRACE_S)
    job.until_steps()
    faults.kubectl("-n", rows.namespace, "delete", "pod", running(job, 1)[0]["metadata"]["name"], "--wait=false")
    kept = saved(job, 1).checkpoint
    pods = [p["metadata"]["name"] for p in running(job, 2)]
    asked_before = faults.metric("singularity_checkpoints_committed_total")
    faults.kubectl("-n", rows.namespace, "delete", "job", job.name)

    def left() -> list[str]:
        own = f"{job_names.LABEL_JOB}={job.name}"
        found = [o for kind in (JOB, POD, SERVICE, CONFIG_MAP) for o in rows.kube.list(kind, rows.namespace, own)]
        found += [w for w in rows.kube.list(WORKLOAD, rows.namespace) if job.name in str(w["metadata"]["name"])]
        return [str(o["metadata"]["name"]) for o in found]

    wait_for(lambda: not left(), f"nothing of {job.name} left", TIMEOUT_S, detail=lambda: str(left()))
    assert pods
    assert faults.metric("singularity_checkpoints_committed_total") == asked_before  # none was taken for nobody
    store = rows.stage.cluster.shared
    assert list(store.rglob(f"*{kept}*")), "the checkpoints stay in the store until somebody collects them"
