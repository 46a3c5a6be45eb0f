"""`singularityctl drain`: a node is emptied of training jobs, and no step is lost."""

from __future__ import annotations

import re

import pytest
from faults import Faults
from rows import Rows, Training, places
from shell import Shell

from kueue_integration.drain import nodes
from kueue_integration.kube.resources import NODE
from kueue_integration.requests import placement
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1200)]
NAMESPACE = "drain"
NODES = ("ondemand-0", "ondemand-1")
SHORT_GRACE_S = 10
"""`kubectl drain` alone would leave the pods no more than this."""


def cordoned(rows: Rows, node: str) -> bool:
    return nodes.cordoned(rows.kube.get(NODE, None, node))


def unharmed(job: Training) -> None:
    """It trains in its first attempt, and nobody has asked it for anything."""
    status = job.look()
    assert (status.attempt, status.phase, status.requests) == (1, "Running", []), status


def test_a_node_is_emptied_of_training_jobs_without_a_lost_step(rows: Rows, faults: Faults) -> None:
    shell = Shell(rows.stage.cluster)
    drained, refuge = NODES
    rows.queue("drain", {"ondemand": "150m"})
    faults.kubectl("cordon", refuge)  # so that all pods start on the other node
    pair = rows.train("pair", "drain", workers=2, grace_period_s=SHORT_GRACE_S)
    bare = rows.train("bare", "drain", hold=False)
    pair.until_steps()
    bare.until_steps()
    assert places(pair) == places(bare) == {drained}
    faults.kubectl("uncordon", refuge)

    rows.say("--> a dry run")
    shown = shell.run("drain", drained, "-n", rows.namespace, "--dry-run", code=1)
    assert "drain/pair" in shown and "left: drain/bare: its hold is off" in shown and "nothing was changed" in shown
    assert not cordoned(rows, drained)
    unharmed(pair)
    unharmed(bare)

    rows.say("--> one job moves; one would lose steps, stays, and the exit code says so")
    told = shell.run("drain", drained, "-n", rows.namespace, code=1)
    assert f"node {drained} cordoned" in told and cordoned(rows, drained)
    assert re.search(rf"drain/pair +\S+ +0 +[\d.]+ +attempt 2 on ondemand \({refuge}\)", told), told
    assert "left: drain/bare: its hold is off" in told and "1 of 2 jobs are left" in told
    unharmed(bare)
    went_on(pair, refuge)

    rows.say("--> nothing is left, and kubectl may go on")
    bare.finish()
    told = shell.run("drain", drained, "-n", rows.namespace)
    assert f"node {drained} was cordoned already" in told and f"kubectl drain {drained}" in told
    pair.assert_exact(pair.finish())


def went_on(job: Training, refuge: str) -> None:
    """It goes on from a checkpoint of the move, and may go anywhere again at its next start."""
    status = job.until_attempt(2)
    assert places(job) == {refuge}
    first = status.attempts[0]
    assert (first.ended_by, first.checkpoint is not None) == ("Migrated", True), first
    assert first.note and "drain of" in first.note
    wait_for(lambda: placement.of(job.job()) == placement.ANYWHERE, "no node is avoided any more", 60)
    job.assert_exact()
