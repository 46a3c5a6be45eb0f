"""A node dies under a job, and another one is to be emptied: the job goes on elsewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

import controllers
import pytest
from faults import Faults
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import NODE, condition
from kueue_integration.requests import verbs
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NODES = {"ondemand-0", "ondemand-1"}


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "rows-node", say)
    made.queue("nodes", {"ondemand": "100m"})
    yield made
    made.close()


def used(job: Training, attempt: int) -> set[str]:
    """Nodes of the pods of `attempt`."""
    own = [p for p in job.pods() if p["metadata"]["annotations"].get(job_names.ANN_ATTEMPT) == str(attempt)]
    assert len(own) == job.spec.workers, [p["metadata"]["name"] for p in own]
    return {str(p["spec"]["nodeName"]) for p in own}


def test_node_fails_then_another_is_emptied(rows: Rows, stage: Stage) -> None:
    faults = Faults(stage, rows.namespace)
    job = rows.train("node", "nodes", workers=2, grace_period_s=20)
    job.until_steps()
    assert used(job, 1) == NODES, "each pod on a node of its own"
    saved = verbs.wait(rows.kube, verbs.checkpoint(rows.kube, rows.namespace, job.name), TIMEOUT_S)
    assert saved.state == "done", saved
    kept = job.look().checkpoints[-1]
    job.until(lambda s: s.step >= kept["step"] + 10, "10 steps after the checkpoint")
    refuge = controllers.leaders_node(rows.kube)  # another test is about a leader's death
    (dead,) = NODES - {refuge} if refuge in NODES else {"ondemand-1"}
    (refuge,) = NODES - {dead}
    with faults.node_down(dead):
        rows.say(f"--> {dead} is dead")
        assert faults.count[f"killed kubelet-{dead}"] == 1
        status = job.until(lambda s: "should have ended" in s.message, "the fence waits for the pod on the dead node")
        rows.say(status.message)
        assert status.attempt == 1, "nothing may start while the node could still write"
        lost = status.attempts[0]
        assert (lost.ended_by, lost.checkpoint) == ("Deleted", None), lost
        ready = condition(rows.kube.get(NODE, None, dead), "Ready") or {}
        assert ready.get("status") == "Unknown", ready
        command = re.search(r"kubectl (taint nodes \S+ \S+)", status.message)
        assert command, status.message
        faults.kubectl(*shlex.split(command[1].rstrip(",")))
        rows.say(f"--> the administrator follows the advice: kubectl {command[1]}")
        status = job.until_attempt(2)
        assert used(job, 2) == {refuge}
        assert (status.attempts[1].restored_from, status.attempts[1].first_step) == (kept["id"], kept["step"])
    faults.kubectl("taint", "nodes", dead, "node.kubernetes.io/out-of-service-")
    assert job.repeated() > 0, "the steps after the checkpoint were run again, with the same bits"

    rows.say(f"--> migrate --away-from-node {refuge}")
    moved = verbs.wait(rows.kube, verbs.migrate(rows.kube, rows.namespace, job.name, away_from_node=refuge), TIMEOUT_S)
    assert moved.state == "done", moved
    job.until_attempt(3)
    assert used(job, 3) == {dead}
    last = job.finish()
    assert job.repeated() >= last.steps_lost > 0
    second, third = last.attempts[1:]
    assert (third.restored_from, third.first_step) == (second.checkpoint, (second.last_step or 0) + 1)


def test_nobody_waits_for_ever_for_a_node_that_is_removed(rows: Rows, stage: Stage) -> None:
    """One pod, and all of the job dies with its node: Kubernetes itself ends it once the Node object is deleted."""
    faults = Faults(stage, rows.namespace)
    spared = controllers.leaders_node(rows.kube)
    faults.kubectl("cordon", spared)
    job = rows.train("only", "nodes", grace_period_s=20)
    job.until_steps()
    faults.kubectl("uncordon", spared)
    saved = verbs.wait(rows.kube, verbs.checkpoint(rows.kube, rows.namespace, job.name), TIMEOUT_S)
    assert saved.state == "done", saved
    kept = job.look().checkpoints[-1]
    (dead,) = used(job, 1)
    with faults.node_down(dead):
        wait_for(
            lambda: (condition(rows.kube.get(NODE, None, dead), "Ready") or {}).get("status") == "Unknown",
            f"{dead} is not ready", TIMEOUT_S,
        )  # fmt: skip
        assert job.look().attempt == 1
        faults.kubectl("delete", "node", dead)
        rows.say(f"--> {dead} is dead, and its cloud provider removes the Node")
        status = job.until_attempt(2)
        assert used(job, 2) == NODES - {dead}
        assert (status.attempts[1].restored_from, status.attempts[1].first_step) == (kept["id"], kept["step"])
    job.finish()
    job.repeated()
