"""Required topology on a real Kueue: a job is admitted into one rack, is preempted, and comes back to one rack only."""

from __future__ import annotations

import pytest
from faults import Faults
from node_racks import RACK, most_of_a_node, racks, waits_for
from rows import TIMEOUT_S, Rows
from shell import Shell

from kueue_integration.errors import SpecError
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1200)]
NAMESPACE = "placement"


def test_a_job_that_requires_one_rack_gets_one_again_after_a_preemption(
    rows: Rows, faults: Faults, racked: str
) -> None:
    cpu = most_of_a_node(rows)
    rows.queue("racks", {racked: f"{2 * cpu}m"})
    with pytest.raises(SpecError, match="is not a level of the topologies"):
        rows.train("row", "racks", cpu=f"{cpu}m", topology={"required": "example.com/row"})
    shell = Shell(rows.stage.cluster)
    found = shell.doctor_whatever_it_exits_with("-n", rows.namespace)[f"topology {rows.cluster_queue('racks')}"]
    assert found["status"] == "ok" and RACK in found["message"]

    rows.say("--> three nodes have room for one pod each; only rack b has two of them")
    pair = rows.train("pair", "racks", workers=2, cpu=f"{cpu}m", topology={"required": RACK})
    pair.until_steps()
    assert racks(pair) == ["b", "b"]

    rows.say("--> preempted with a checkpoint")
    rows.other("urgent", "racks", cpu=f"{cpu}m")
    ended = pair.until_ended(1)
    assert ended.checkpoint is not None, ended
    rows.until_admitted("urgent")

    rows.say("--> quota is free again and two nodes have room, but in two racks: it waits")
    faults.kubectl("cordon", "spot-0")
    rows.remove("urgent")
    wait_for(lambda: waits_for(rows, "pair", racked), "Kueue finds no rack for pair", TIMEOUT_S)

    rows.say("--> rack b is whole again")
    faults.kubectl("uncordon", "spot-0")
    pair.until_attempt(2)
    assert racks(pair) == ["b", "b"]
    pair.assert_exact(pair.finish())
