"""An eviction with a fault after each write of the controller: H1-H3 hold, no wrong resume, and it comes to its end."""

from __future__ import annotations

import pytest
from eviction_world import BUDGET_S, LEASE_S, PARTITION_S, World

from kueue_integration.contract import attempt_records

SKEWS = [0.0, 30.0, -30.0]


def story(world: World) -> None:
    """Start, train, be preempted, start again."""
    world.run(lambda: world.training is not None and world.training.told and (world.training.step or 0) > 10)
    world.evict()
    before = world.training.step
    world.run(lambda: len(world.started) > 1 and world.training is not None and world.training.told)
    world.run(lambda: (world.training.step or 0) > world.training.first + 5)
    world.lost = max(0, before - world.started[-1][1])


def writes_of(monkeypatch, **options) -> int:
    world = World(monkeypatch, **options)
    story(world)
    return world.kube.writes


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("skew", SKEWS)
def test_without_a_fault_no_step_is_lost(monkeypatch, replicas, skew):
    """Half a minute between the clocks of controller and API server changes nothing: neither H1 nor the checkpoint."""
    world = World(monkeypatch, replicas, skew_s=skew)
    story(world)
    assert world.kube.writes >= 8
    assert [attempt for attempt, _ in world.started] == [1, 2]
    assert world.lost == 0
    assert world.denials > 0, "the hold was never tried"
    assert len(world.committed) == 1


@pytest.mark.parametrize("after", [True, False], ids=["after-the-write", "before-the-write"])
@pytest.mark.parametrize("down", [1.0, 15.0])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_crash_at_every_write(monkeypatch, replicas, down, after):
    fired = 0
    writes = writes_of(monkeypatch, replicas=replicas)
    for number in range(1, writes + 1):
        world = World(monkeypatch, replicas, down_s=down)
        world.kube.crash_at, world.kube.crash_after = number, after
        story(world)
        fired += world.kube.fired
        if replicas == 2 or down < LEASE_S:
            assert world.lost == 0, f"crash at write {number} of {writes}"
            assert len(world.started) == 2
    assert fired == writes


@pytest.mark.parametrize("skew", [30.0, -30.0])
def test_a_crash_at_every_write_while_clocks_differ(monkeypatch, skew):
    fired = 0
    writes = writes_of(monkeypatch, skew_s=skew)
    for number in range(1, writes + 1):
        world = World(monkeypatch, skew_s=skew)
        world.kube.crash_at = number
        story(world)
        fired += world.kube.fired
        assert world.lost == 0, f"crash at write {number} of {writes}"
    assert fired == writes


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_partition_of_a_minute_at_every_write(monkeypatch, replicas):
    fired = 0
    writes = writes_of(monkeypatch, replicas=replicas)
    for number in range(1, writes + 1):
        world = World(monkeypatch, replicas, cut_s=PARTITION_S)
        world.kube.crash_at = number
        story(world)
        fired += world.kube.fired
        assert world.longest_hold <= BUDGET_S + LEASE_S + 4
        if replicas == 2:
            assert world.lost == 0, f"partition at write {number} of {writes}"
    assert fired == writes


@pytest.mark.parametrize("lag", [0, 1, 4, 10])
def test_two_controllers_that_both_act_on_old_copies(monkeypatch, lag):
    """The Lease failed us: compare-and-set alone keeps the attempts apart."""
    world = World(monkeypatch, replicas=2, lag=lag, always_leads=True)
    story(world)
    numbers = [record.attempt for record in attempt_records.history(world.job())]
    assert numbers == sorted(set(numbers))
    assert [attempt for attempt, _ in world.started] == [1, 2]
    assert world.lost == 0


def test_a_controller_that_never_comes_back_holds_nobody_up(monkeypatch):
    world = World(monkeypatch, down_s=1e9)
    world.run(lambda: world.training is not None and world.training.told)
    world.evict()
    world.replicas[0].down_until = float("inf")
    world.run(lambda: world.job()["spec"]["suspend"], limit_s=LEASE_S + 4)
    assert world.longest_hold <= LEASE_S + 3
