"""Ranks of the state engine that go on while they are saved: what their sidecars, leader and controller make of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.protocol import exit_codes, page
from singularity_proxy.protocol.messages import LauncherEvent

FIRST = page.generation(1, 1)


@pytest.fixture
async def world(folder: Path, controller: FakeController) -> AsyncIterator[World]:
    world = await World(folder, controller, workers=2, world_size=2, engine="state").start()
    yield world
    await world.end()


async def saving(world: World, controller: FakeController) -> asyncio.Event:
    """A periodic checkpoint is being written; it goes on when the event is set."""
    gate = asyncio.Event()

    async def written() -> None:
        await gate.wait()

    for launcher in world.launchers:
        launcher.pages_written = written
    await world.stepped(3)
    await controller.command(then="continue")
    await eventually("they are saved", lambda: all(FIRST in rank.frozen for rank in world.ranks))
    return gate


async def test_ranks_go_on_before_the_checkpoint_is_stored(world: World, controller: FakeController) -> None:
    gate = await saving(world, controller)
    step = world.ranks[0].frozen[FIRST]
    await world.stepped(step + 20)
    assert not controller.commits
    gate.set()
    await eventually("commit", lambda: controller.commits)
    assert controller.commits[0].goes_on and controller.commits[0].checkpoint.step == step
    await eventually("its files go", lambda: all(x.commands[-1].op == "resume" for x in world.launchers))
    assert not controller.failures


async def test_a_leave_waits_for_the_save_in_the_background_and_saves_anew(
    world: World, controller: FakeController
) -> None:
    gate = await saving(world, controller)
    step = world.ranks[0].frozen[FIRST]
    await controller.command()
    await controller.heard(2)
    await world.stepped(step + 10)
    assert not controller.commits, "the first one is not given up"
    gate.set()
    await eventually("both commits", lambda: len(controller.commits) == 2)
    one, two = controller.commits
    assert (one.goes_on, two.goes_on) == (True, False)
    assert one.checkpoint.step == step and two.checkpoint.step >= step + 10
    assert two.checkpoint.generation == one.checkpoint.generation + 1
    assert {rank.boundary.count for rank in world.ranks} == {two.checkpoint.step}, "for the last one they stand"


async def test_a_pod_that_ends_during_a_save_that_fails_is_saved_all_the_same(
    world: World, controller: FakeController
) -> None:
    gate = await saving(world, controller)
    await world.launchers[1].post(LauncherEvent("terminating", grace_s=30))
    world.launchers[0].dump_error = "rank 0 cannot be saved: no space is left"
    gate.set()
    await eventually("failure", lambda: controller.failures)
    world.launchers[0].dump_error = ""
    assert controller.failures[0].goes_on and "no space is left" in controller.failures[0].message
    await eventually("commit", lambda: controller.commits)
    assert [commit.goes_on for commit in controller.commits] == [False]
    await eventually("exit", lambda: all(x.exit_code == exit_codes.STOPPED for x in world.launchers))
