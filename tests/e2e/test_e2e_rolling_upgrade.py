"""The loop of the runbook "Upgrade a node", as it stands there: two nodes restart, and no training step is lost."""

from __future__ import annotations

import re

import pytest
from faults import Faults
from rows import Rows, Training, places
from shell import Shell

from kueue_integration.drain import nodes
from kueue_integration.kube.resources import NODE
from kueue_integration.requests import placement
from localcluster.demo.stage import CHECKOUT

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "rolling"
NODES = ("ondemand-0", "ondemand-1")
RUNBOOKS = CHECKOUT / "docs/operations/runbooks.md"


def before_and_after() -> tuple[str, str]:
    """What the loop does with $NODE before its upgrade, and after it. The first error ends the script."""
    (body,) = re.findall(r"^for NODE in .*?; do\n(.*?)^done$", RUNBOOKS.read_text(), re.DOTALL | re.MULTILINE)
    before, comment, after = body.replace("|| break", "").partition("  # upgrade the node")
    assert "singularityctl drain $NODE" in before and comment and "kubectl uncordon $NODE" in after
    return before, comment + after


def test_two_nodes_are_upgraded_in_turn_while_jobs_train(rows: Rows, faults: Faults) -> None:
    shell = Shell(rows.stage.cluster)
    before, after = before_and_after()
    rows.queue("rolling", {"ondemand": "150m"})
    faults.kubectl("cordon", NODES[1])  # so that both jobs are in the way of the first upgrade
    pair, single = rows.train("pair", "rolling", workers=2), rows.train("single", "rolling")
    for job in (pair, single):
        job.until_steps()
        assert places(job) == {NODES[0]}
    faults.kubectl("uncordon", NODES[1])

    for number, (node, other) in enumerate((NODES, NODES[::-1]), start=1):
        rows.say(f"--> {node}: drained, restarted, and back")
        shell.type(f"NODE={node}\n{before}")
        assert nodes.cordoned(rows.kube.get(NODE, None, node))
        for job in (pair, single):
            assert places(job) == {other}
        with faults.node_down(node):
            trains_on(pair, number + 1)
        shell.type(f"NODE={node}\n{after}")
        assert not nodes.cordoned(rows.kube.get(NODE, None, node))
    assert all(faults.count[f"killed kubelet-{node}"] == 1 for node in NODES)

    for job in (pair, single):
        assert placement.of(job.job()) == placement.ANYWHERE
        last = job.finish()
        assert [record.ended_by for record in last.attempts] == ["Migrated", "Migrated", "Finished"]
        job.assert_exact(last)


def trains_on(job: Training, attempt: int) -> None:
    """While the node is away: ten steps more of an attempt that nothing disturbs."""
    seen = job.until_attempt(attempt).step
    status = job.until(lambda s: s.step >= seen + 10, "10 steps while the node is away")
    assert status.attempt == attempt, status
