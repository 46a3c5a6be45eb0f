"""Sidecars that encrypt: a job moves as any other. Without the key it loses nothing, and goes on with the key."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from mesh_world import FakeController, World, eventually
from store_samples import namespace_keys

from singularity_proxy.errors import KeyLostError
from singularity_proxy.protocol import exit_codes
from singularity_proxy.sidecar import sidecar
from singularity_proxy.store import layout
from singularity_proxy.store.backend import Backend
from singularity_proxy.store.sealing import key_id


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "AGAIN_S", 0.05)


def attempt(folder: Path, controller: FakeController, number: int, keys: Path | None) -> World:
    world = World(folder, controller, workers=2, world_size=2, attempt=number)
    world.configs = [replace(config, store_keys=keys) for config in world.configs]
    return world


async def committed(world: World, controller: FakeController, count: int) -> None:
    await controller.command()
    await eventually("a commit", lambda: len(controller.commits) == count)
    await world.end()
    controller.next_attempt()


async def refused(world: World, text: str) -> None:
    """Both pods end with the code after which the job goes on, and say why."""
    await world.start()
    await eventually("the answers", lambda: all(launcher.refusal for launcher in world.launchers))
    assert [launcher.refused_with for launcher in world.launchers] == [exit_codes.LOST] * 2
    assert all(text in launcher.refusal for launcher in world.launchers), world.launchers[0].refusal
    for stop in world.stops:
        stop.set()
    ended = await asyncio.wait_for(asyncio.gather(*world.sidecars, return_exceptions=True), 120)
    assert all(each is None or isinstance(each, KeyLostError) for each in ended), ended


async def test_a_job_that_is_encrypted_from_its_second_attempt_on(folder: Path, controller: FakeController) -> None:
    ours, other = folder / "ours", folder / "other"
    needed, _ = namespace_keys(ours).newest(), namespace_keys(other)
    (folder / "none").mkdir()
    first = await attempt(folder, controller, 1, None).start()
    await first.stepped(3)
    await committed(first, controller, 1)

    second = await attempt(folder, controller, 2, ours).start()
    await second.stepped(controller.commits[0].checkpoint.step + 2)
    await committed(second, controller, 2)
    backend = Backend(f"file://{folder}/store")
    stored = {path: backend.read(path) or b"" for path in backend.find(f"{layout.job_folder('team', 'train')}/packs")}
    assert {bool(key_id(data)) for data in stored.values()} == {True, False}

    await refused(attempt(folder, controller, 3, folder / "none"), "has no key")
    controller.next_attempt()
    await refused(attempt(folder, controller, 4, other), f"needs key {needed} of the namespace")
    controller.next_attempt()
    await refused(attempt(folder, controller, 5, None), f"encrypted, with key {needed} of the namespace")
    controller.next_attempt()
    assert controller.damage == [], "the checkpoint is whole"

    last = await attempt(folder, controller, 6, ours).start()
    await last.stepped(controller.commits[1].checkpoint.step + 2)
    await last.end()
