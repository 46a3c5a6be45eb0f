"""The inputs of a job are in each pod before its launcher gets a plan, whatever happens to sidecars meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.errors import ConfigError, StoreAwayError
from singularity_proxy.protocol import exit_codes
from singularity_proxy.sidecar import inputs, sidecar
from singularity_proxy.store.inputs import Input


@pytest.fixture
async def world(folder: Path, controller: FakeController) -> AsyncIterator[World]:
    (folder / "data/train").mkdir(parents=True)
    (folder / "data/train/images").write_bytes(b"pixels")
    controller.inputs = {"data": f"file://{folder}/data"}
    world = World(folder, controller, workers=2, world_size=2)
    for config in world.configs:
        config.inputs_dir.mkdir(parents=True)
    yield world
    await world.end()


def there(world: World) -> list[bytes]:
    paths = (config.inputs_dir / "data/train/images" for config in world.configs)
    return [path.read_bytes() for path in paths if path.exists()]


async def test_each_pod_has_them_before_its_ranks_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    held, real = threading.Event(), Input.fetch

    def fetch(self: Input, *args: Any) -> Any:
        assert held.wait(120)
        return real(self, *args)

    monkeypatch.setattr(Input, "fetch", fetch)
    await world.start()
    await asyncio.sleep(0.5)
    assert all(launcher.plan is None for launcher in world.launchers) and there(world) == []
    held.set()
    await world.stepped(2)
    assert there(world) == [b"pixels", b"pixels"]


async def test_a_sidecar_that_dies_while_it_fetches_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, held, real = threading.Event(), threading.Event(), Input.fetch

    def fetch(self: Input, *args: Any) -> Any:
        if self._target.is_relative_to(world.configs[1].inputs_dir) and not held.is_set():
            self._target.mkdir(parents=True)
            (self._target / "half").write_text("x")
            inside.set()
            held.wait(60)
            raise StoreAwayError("gone")
        return real(self, *args)

    monkeypatch.setattr(Input, "fetch", fetch)
    await world.start()
    await eventually("it fetches", inside.is_set)
    world.sidecars[1].cancel()
    held.set()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[1]
    world.sidecars[1] = asyncio.create_task(sidecar.run(world.configs[1], world.stops[1]))
    await world.stepped(2)
    assert there(world) == [b"pixels", b"pixels"]
    assert not (world.configs[1].inputs_dir / "data/half").exists()


async def test_a_place_that_is_away_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "AGAIN_S", 0.05)
    errors, real = [StoreAwayError("503"), StoreAwayError("503")], Input.fetch

    def fetch(self: Input, *args: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(self, *args)

    monkeypatch.setattr(Input, "fetch", fetch)
    await world.start()
    await world.stepped(2)
    assert there(world) == [b"pixels", b"pixels"] and errors == []


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"data": "file:///nowhere/x"}, exit_codes.PROTOCOL, "inputs['data'] = file:///nowhere/x"),
        ({"../up": "file:///nowhere/x"}, exit_codes.PROTOCOL, "the name cannot be that of a folder"),
    ],
)
async def test_what_cannot_be_fetched_ends_the_pod_with_a_sentence(
    world: World, controller: FakeController, change: dict[str, str], code: int, words: str
) -> None:
    controller.inputs = change
    await world.start()
    await eventually("the launchers end", lambda: all(x.refusal for x in world.launchers))
    assert all(words in x.refusal and x.refused_with == code for x in world.launchers)


async def test_a_place_that_the_platform_does_not_allow_is_refused(world: World, controller: FakeController) -> None:
    controller.inputs_refused = "annotation singularity.dev/inputs, data = gs://other/x: is not below a place"
    await world.start()
    for task in world.sidecars:
        with pytest.raises(ConfigError, match=r"inputs: annotation .* is not below a place"):
            await asyncio.wait_for(task, 120)
    world.sidecars = []
    assert there(world) == []


async def test_pods_without_the_folder_say_so(world: World) -> None:
    for config in world.configs:
        config.inputs_dir.rmdir()
    await world.start()
    await eventually("the launchers end", lambda: all(x.refusal for x in world.launchers))
    assert "the pods of this job were made without inputs" in world.launchers[0].refusal
