"""Ranks that stay stopped after their checkpoint, because somebody is about to end their attempt: real sidecars."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.protocol import exit_codes, page
from singularity_proxy.protocol.messages import LauncherEvent
from singularity_proxy.sidecar.sidecar import run

FIRST = page.generation(1, 1)


@pytest.fixture
async def world(folder: Path, controller: FakeController) -> AsyncIterator[World]:
    world = await World(folder, controller, workers=2, world_size=3).start()
    await world.stepped(3)
    yield world
    await world.end()


def ops(world: World) -> list[list[str]]:
    return [[command.op for command in launcher.commands] for launcher in world.launchers]


async def stopped(world: World, controller: FakeController, stay_s: float = 60.0) -> int:
    """All ranks are saved and stay stopped: at which step."""
    await controller.command(then="stay", stay_s=stay_s)
    await eventually("commit", lambda: controller.commits)
    commit = controller.commits[0]
    assert commit.goes_on and commit.stays and commit.save is None
    assert {rank.boundary.count for rank in world.ranks} == {commit.checkpoint.step}
    assert ops(world) == [["dump"]] * 2, "no pod lets its ranks go on"
    return commit.checkpoint.step


async def test_the_end_that_follows_needs_no_second_save(world: World, controller: FakeController) -> None:
    step = await stopped(world, controller)
    await controller.command()
    await eventually("the end is committed", lambda: len(controller.commits) == 2)
    stay, stop = controller.commits
    assert stop.checkpoint == stay.checkpoint and (stop.goes_on, stop.stays) == (False, False)
    assert stop.save is not None and stop.barrier_ago_s >= stay.barrier_ago_s
    for launcher in world.launchers:
        await launcher.post(LauncherEvent("terminating", grace_s=30))
    await eventually("exit", lambda: all(x.exit_code == exit_codes.STOPPED for x in world.launchers))
    assert ops(world) == [["dump", "exit"]] * 2, "saved once, and never resumed"
    assert {rank.boundary.count for rank in world.ranks} == {step} and not controller.failures


async def test_pods_that_are_asked_to_end_meanwhile_end_with_that_checkpoint(
    world: World, controller: FakeController
) -> None:
    """Without a hold Kueue suspends the Job at once."""
    await stopped(world, controller)
    for launcher in world.launchers:
        await launcher.post(LauncherEvent("terminating", grace_s=30))
    await eventually("exit", lambda: all(x.exit_code == exit_codes.STOPPED for x in world.launchers))
    assert [commit.goes_on for commit in controller.commits] == [True, False]
    assert controller.commits[0].checkpoint == controller.commits[1].checkpoint
    assert ops(world) == [["dump", "exit"]] * 2


async def test_they_go_on_by_themselves_when_nothing_comes(world: World, controller: FakeController) -> None:
    """The controller has crashed between the commit and the eviction, say."""
    step = await stopped(world, controller, stay_s=0.5)
    await world.stepped(step + 5)
    await eventually("all pods let them go on", lambda: ops(world) == [["dump", "resume"]] * 2)
    await controller.command()
    await eventually("the end is saved", lambda: len(controller.commits) == 2)
    later = controller.commits[1].checkpoint
    assert later.step >= step + 5 and later.generation == controller.commits[0].checkpoint.generation + 1


async def test_they_go_on_when_nobody_ends_them_any_more(world: World, controller: FakeController) -> None:
    step = await stopped(world, controller)
    await controller.resume()
    await world.stepped(step + 5)
    assert not controller.failures and len(controller.commits) == 1


async def test_a_request_that_is_taken_back_during_the_save_leaves_a_checkpoint(
    world: World, controller: FakeController
) -> None:
    gate = asyncio.Event()

    async def written() -> None:
        await gate.wait()

    world.launchers[1].pages_written = written
    await controller.command(then="stay", stay_s=60)
    await eventually("they are saved", lambda: all(FIRST in rank.frozen for rank in world.ranks))
    await controller.resume()
    await controller.heard(2)
    gate.set()
    await eventually("commit", lambda: controller.commits)
    assert (controller.commits[0].goes_on, controller.commits[0].stays) == (True, False)
    await world.stepped(controller.commits[0].checkpoint.step + 5)


async def test_a_save_that_fails_lets_them_go_on(world: World, controller: FakeController) -> None:
    world.launchers[1].dump_error = "rank 2 holds a lock on a file"
    await controller.command(then="stay", stay_s=60)
    await eventually("failure", lambda: controller.failures)
    assert controller.failures[0].goes_on and "holds a lock" in controller.failures[0].message
    await world.stepped(world.ranks[0].frozen[FIRST] + 5)
    assert not controller.commits


async def test_a_save_that_hangs_is_given_up_and_they_go_on(world: World, controller: FakeController) -> None:
    gate = asyncio.Event()

    async def hangs() -> None:
        await gate.wait()

    world.launchers[0].pages_written = hangs
    await controller.command(1, then="stay", stay_s=60)
    await eventually("failure", lambda: controller.failures)
    assert controller.failures[0].goes_on and "not saved within" in controller.failures[0].message
    gate.set()  # the launcher goes on to its next command: the ranks of its pod go on
    await world.stepped(world.ranks[0].frozen[FIRST] + 5)
    assert not controller.commits


async def test_an_eviction_during_the_save_joins_it(world: World, controller: FakeController) -> None:
    gate = asyncio.Event()

    async def written() -> None:
        await gate.wait()

    world.launchers[0].pages_written = written
    await controller.command(then="stay", stay_s=60)
    await eventually("they are saved", lambda: all(FIRST in rank.frozen for rank in world.ranks))
    await controller.command()
    await controller.heard(2)
    gate.set()
    await eventually("commit", lambda: controller.commits)
    assert [(commit.goes_on, commit.stays) for commit in controller.commits] == [(False, False)]
    assert ops(world) == [["dump"]] * 2 and not controller.failures


async def test_an_eviction_during_the_commit_is_told_with_the_same_checkpoint(
    world: World, controller: FakeController
) -> None:
    async def evicted() -> None:
        await controller.command()
        await controller.heard(2)

    controller.before_commit = evicted
    await controller.command(then="stay", stay_s=60)
    await eventually("both commits", lambda: len(controller.commits) == 2)
    assert [(commit.goes_on, commit.stays) for commit in controller.commits] == [(True, True), (False, False)]
    assert controller.commits[0].checkpoint == controller.commits[1].checkpoint
    assert ops(world) == [["dump"]] * 2


async def test_a_leader_that_is_restarted_meanwhile_lets_them_go_on(world: World, controller: FakeController) -> None:
    """It does not know for how long they may stay stopped."""
    step = await stopped(world, controller)
    world.sidecars[0].cancel()
    await asyncio.gather(world.sidecars[0], return_exceptions=True)
    controller.commands.clear()
    world.sidecars[0] = asyncio.create_task(run(world.configs[0], world.stops[0]))
    await world.stepped(step + 5)
