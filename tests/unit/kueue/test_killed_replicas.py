"""Either controller dies in the middle of evictions, again and again: no hold is lost, and no checkpoint."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from held_jobs import HeldJob, Suspended
from two_controllers import Cluster, two_controllers

from kueue_integration.controller.snapshot import required

SAVES_S = (0.5, 4.0, 12.0)
"""Seconds that a checkpoint takes; the last one is longer than a Lease lasts."""
NEW = itertools.count()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with two_controllers(tmp_path) as found:
        for name in ("a", "b"):
            found.start(name)
        found.until_led()
        yield found


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, marks=pytest.mark.long),
        pytest.param(50, marks=[pytest.mark.full, pytest.mark.timeout(3000)]),
    ],
)
async def test_a_killed_replica_loses_no_hold(cluster: Cluster, kills: int) -> None:
    chance = random.Random(kills)
    for kill in range(kills):
        leader = cluster.leader()
        (other,) = {*cluster.running} - {leader}
        victim = (leader, other)[kill % 2]
        jobs = [await asyncio.to_thread(HeldJob, cluster, next(NEW)) for _ in SAVES_S]
        evictions = [asyncio.ensure_future(job.evicted(save_s)) for job, save_s in zip(jobs, SAVES_S, strict=True)]
        await asyncio.sleep(chance.uniform(0.0, 4.0))  # the fault comes at any moment
        assert not all(each.done() for each in evictions), "the fault came too late"
        cluster.kill(victim)
        # Its container starts again in the same pod, or another pod comes in its place.
        cluster.start(chance.choice((victim, f"controller-{kill}")))
        for job, done in zip(jobs, await asyncio.gather(*evictions), strict=True):
            await asyncio.to_thread(saved, job, done)
        await asyncio.to_thread(cluster.until_led)
        assert len(cluster.running) == 2


def saved(job: HeldJob, done: Suspended) -> None:
    """The suspend came after the commit and not before, and the records say so."""
    kept = required(done.job.checkpoint)
    assert done.held > 0 and kept is not None and kept.id == done.checkpoint.id, f"{job.name}: {done}"
    job.until_recorded(done)
