"""Two controllers whose clocks differ by an hour: one of them leads, and the Lease has the API server's time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from two_controllers import SYSTEM, Cluster, two_controllers

from kueue_integration.contract import job_names
from kueue_integration.kube import server_time
from kueue_integration.kube.resources import LEASE, Object

HOUR = 3600.0


def lease(cluster: Cluster) -> Object:
    return dict(cluster.kube.get(LEASE, SYSTEM, job_names.HOLD_LEASE)["spec"])


@pytest.mark.timed
def test_one_of_two_controllers_with_other_clocks_leads_and_the_other_takes_over(tmp_path: Path) -> None:
    with two_controllers(tmp_path) as cluster:
        cluster.start("early", ahead_s=-HOUR)
        cluster.start("late", ahead_s=HOUR)
        cluster.until_led()
        first = lease(cluster)
        end, seen = time.monotonic() + 25, set[str]()
        while time.monotonic() < end:  # as long as two Leases
            now = lease(cluster)
            seen.add(str(now["renewTime"]))
            assert all(now[key] == first[key] for key in ("holderIdentity", "leaseTransitions"))
            assert abs(server_time.parse(str(now["renewTime"])) - time.time()) < 10, "a replica tells its own time"
            time.sleep(0.5)
        assert len(seen) > 5, "the Lease is renewed"
        leader = cluster.leader()
        (other,) = {"early", "late"} - {leader}
        cluster.kill(leader)
        cluster.until(lambda: cluster.leader() == other, "the other one takes over")
        cluster.until(lambda: lease(cluster)["renewTime"] > now["renewTime"], "and renews")
        assert abs(server_time.parse(str(lease(cluster)["renewTime"])) - time.time()) < 10
