"""Ranks that go on once they are dumped, while their images are stored: the process engine's periodic checkpoint."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.errors import StoreError
from singularity_proxy.protocol import page
from singularity_proxy.protocol.messages import LauncherEvent, Occupied
from singularity_proxy.sidecar.sidecar import run
from singularity_proxy.store import Store, locks

FIRST = page.generation(1, 1)
MIB = 1 << 20


class Gate:
    """Where uploads wait after the dump, before the store has anything."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.error = ""
        self.waiting = 0


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, announce = Gate(), locks.announce

    def slow(*args: Any) -> Any:
        made.waiting += 1
        assert made.open.wait(120)
        if made.error:
            raise StoreError(made.error)
        return announce(*args)

    monkeypatch.setattr(locks, "announce", slow)
    yield made
    made.open.set()


@pytest.fixture(params=[0, 64 * MIB], ids=["disk", "memory"])
async def world(
    folder: Path, controller: FakeController, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    world = World(folder, controller, workers=2, world_size=3)
    world.configs = [replace(config, memory=request.param) for config in world.configs]
    await world.start()
    yield world
    await world.end()


async def storing(world: World, controller: FakeController, gate: Gate) -> int:
    """A periodic checkpoint is dumped and the ranks have gone on; the step at which they stood."""
    await world.stepped(3)
    await controller.command(then="continue")
    await eventually("dumped", lambda: gate.waiting == 2)
    step = world.ranks[0].frozen[FIRST]
    await world.stepped(step + 20)
    assert not controller.commits
    return step


def images(world: World) -> list[Path]:
    """Find what lies there now: a walk goes past folders that are removed under it, as `rglob` does not."""
    walks = (walk for config in world.configs for walk in os.walk(config.image_dir))
    return [Path(folder) for folder, _, files in walks if "rank.json" in files]


async def test_they_train_before_the_store_has_anything(
    world: World, controller: FakeController, gate: Gate, folder: Path
) -> None:
    step = await storing(world, controller, gate)
    assert len(images(world)) == 3, "what is being stored stays"
    gate.open.set()
    await eventually("commit", lambda: controller.commits)
    (commit,) = controller.commits
    assert commit.goes_on and commit.checkpoint.step == step and not controller.failures
    await eventually("its files go", lambda: not images(world))
    assert [[c.op for c in x.commands] for x in world.launchers] == [["dump", "resume"]] * 2
    assert [x.commands[0].stream for x in world.launchers] == [world.configs[0].memory > 0] * 2
    store = Store(f"file://{folder}/store")
    manifest = store.read_manifest("team", "train", commit.checkpoint.id, commit.checkpoint.sha256)
    store.fetch_ranks(manifest, {rank: folder / "back" / str(rank) for rank in range(3)})
    sent = {rank: content for x in world.launchers for rank, content in x.sent.items()}
    assert {rank: (folder / "back" / str(rank) / "pages-1.img").read_bytes() for rank in range(3)} == sent


async def test_a_leave_waits_for_it_and_saves_anew(world: World, controller: FakeController, gate: Gate) -> None:
    step = await storing(world, controller, gate)
    await controller.command()
    await controller.heard(2)
    gate.open.set()
    await eventually("both commits", lambda: len(controller.commits) == 2)
    one, two = controller.commits
    assert (one.goes_on, two.goes_on) == (True, False)
    assert one.checkpoint.step == step and two.checkpoint.step >= step + 20
    assert {rank.boundary.count for rank in world.ranks} == {two.checkpoint.step}


async def test_an_upload_that_fails_meanwhile_stops_no_rank(
    world: World, controller: FakeController, gate: Gate
) -> None:
    step = await storing(world, controller, gate)
    gate.error = "503 slow down"
    gate.open.set()
    await eventually("failure", lambda: controller.failures)
    assert controller.failures[0].goes_on and "503 slow down" in controller.failures[0].message
    await eventually("its files go", lambda: not images(world))
    gate.error = ""
    await world.stepped(step + 40)
    await controller.command(then="continue")
    await eventually("the next one", lambda: controller.commits)
    assert controller.commits[0].checkpoint.step >= step + 40
    assert [[c.op for c in x.commands] for x in world.launchers] == [["dump", "resume"] * 2] * 2


@pytest.mark.parametrize("index", [0, 1], ids=["leader", "follower"])
async def test_a_sidecar_that_is_restarted_meanwhile_stops_no_rank(
    world: World, controller: FakeController, gate: Gate, index: int
) -> None:
    """One in the leader's place knows of no checkpoint. One in a follower's place stores what is on the disk."""
    for launcher in world.launchers:
        launcher.occupied = [Occupied(launcher.config.ranks[0], ["tcp 127.0.0.1:7777"])]
    step = await storing(world, controller, gate)
    world.sidecars[index].cancel()
    await asyncio.wait([world.sidecars[index]])
    gate.open.set()
    world.sidecars[index] = asyncio.create_task(run(world.configs[index], world.stops[index]))
    stored = bool(index) and not world.configs[0].memory
    if stored:
        await eventually("commit", lambda: controller.commits)
        assert controller.commits[0].checkpoint.step == step and not controller.failures
        assert "127.0.0.1:7777" in controller.commits[0].checkpoint.crowded
    elif index:
        await eventually("failure", lambda: controller.failures)
        assert "have to be dumped again" in controller.failures[0].message
    await world.stepped(step + 60)
    assert len(controller.commits) == stored
    await controller.command(then="continue")
    await eventually("the next one", lambda: len(controller.commits) == stored + 1)
    assert controller.commits[-1].checkpoint.step >= step + 60
    assert all(x.commands[0].op == "dump" and [c.op for c in x.commands].count("dump") == 2 for x in world.launchers)


async def test_a_pod_that_is_asked_to_end_meanwhile_is_saved_once_more(
    world: World, controller: FakeController, gate: Gate
) -> None:
    step = await storing(world, controller, gate)
    await world.launchers[1].post(LauncherEvent("terminating", grace_s=30))
    gate.open.set()
    await eventually("both commits", lambda: len(controller.commits) == 2)
    assert [commit.goes_on for commit in controller.commits] == [True, False]
    assert controller.commits[0].checkpoint.step == step < controller.commits[1].checkpoint.step


async def test_ranks_that_end_meanwhile_end_well(folder: Path, controller: FakeController, gate: Gate) -> None:
    world = World(folder, controller, workers=2, world_size=3)
    await world.start(last=40)
    try:
        await world.stepped(3)
        await controller.command(then="continue")
        await eventually("their last step", lambda: all(rank.code == 0 for rank in world.ranks))
        assert not controller.commits
        gate.open.set()
        await eventually("commit", lambda: controller.commits)
        await eventually("the end", lambda: [x.exit_code for x in world.launchers] == [0, 0])
        assert not controller.failures
    finally:
        await world.end()
