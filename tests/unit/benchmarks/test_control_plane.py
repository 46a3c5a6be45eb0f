"""A controller as a process on a real API server, behind somebody's webhook that takes 25 s: the Lease is renewed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import control_plane
from benchmarks.control_plane import POLICIES, Renewals, Seen, controller, figures, slow_writes
from benchmarks.large_cluster import Large, heartbeats
from localcluster.api_server import api_server

GAP_S = 12.0
"""Half a write."""
WORKERS = 8


@pytest.mark.timed
def test_no_slow_write_keeps_the_lease_from_being_renewed(tmp_path: Path) -> None:
    programs = [os.environ.get(f"SINGULARITY_{name}") for name in ("APISERVER", "ETCD")]
    if not all(programs):
        pytest.skip("no API server: `python -m localcluster.prepare --env` says where to find it")
    (tmp_path / "api").mkdir()
    with api_server(tmp_path / "api", *map(str, programs)) as server:
        cluster = Large(server)
        cluster.reach(3 * WORKERS, 20)
        with controller(server, tmp_path / "controller", POLICIES) as running, heartbeats(cluster):
            passed = running.passed()
            assert running.rss_mb() > 40 and passed > 10_000
            gap = slow_writes(cluster, tmp_path / "hook", 3 * WORKERS, print)
            assert gap <= GAP_S, f"writes of 25 s: the Lease was not renewed for {gap:.1f} s"
            assert running.plans()[0] > 0 and running.passed() > passed


def test_a_lease_that_was_hardly_renewed_has_no_gap() -> None:
    renewals = Renewals(kube=None)  # type: ignore[arg-type]
    renewals.at = [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(RuntimeError, match="renewed 4 times"):
        renewals.gap_s()
    renewals.at += [9.0]
    assert renewals.gap_s() == 5.0


def test_the_figures_take_the_worst_gap_and_the_largest_size() -> None:
    small = Seen(500, 1000, True, peak_mb=120.0)
    busy = Seen(2000, 5000, True, 210.0, 250.0, 0.4, 2e7, 3, 12.0, {"plan": 2.6})
    rest = Seen(2000, 5000, False, 180.0, 190.0, 0.1, 3e5, 0, 0.0, {"rest": 2.1, "1 slow": 2.2, "24 slow": 2.9})
    found = figures([small, busy, rest])
    assert found["lease_gap_s"].value == 2.9 and found["controller_rss_mb_2000_jobs"].value == 250.0
    assert found["api_bytes_min"].value == 3e5
    assert "8000 pods" in found["controller_rss_mb_2000_jobs"].baseline
    assert {spec.key for spec in control_plane.GROUP.specs} == set(found)
