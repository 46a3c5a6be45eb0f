"""What ranks wrote to `$OUTPUTS`: stored by all sidecars, complete with the manifest, and only then the pods end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.errors import ConfigError, StoreError
from singularity_proxy.protocol import exit_codes, names
from singularity_proxy.protocol import outputs as protocol
from singularity_proxy.sidecar import outputs, sidecar
from singularity_proxy.store.outputs import Outputs


@pytest.fixture
def place(folder: Path, controller: FakeController) -> Path:
    controller.outputs = f"file://{folder}/outputs"
    return folder / "outputs"


@pytest.fixture
async def world(folder: Path, controller: FakeController, place: Path) -> AsyncIterator[World]:
    world = await begun(World(folder, controller, workers=2, world_size=4))
    yield world
    await world.end()


async def begun(world: World) -> World:
    for config in world.configs:
        config.work_dir.mkdir(parents=True)
    await world.start()
    await world.stepped(3)
    return world


def writes(world: World, rank: int, name: str, content: str) -> None:
    config = next(config for config in world.configs if rank in config.ranks)
    path = config.work_dir / f"rank-{rank}" / names.OUTPUTS_DIR / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def end_ranks(world: World) -> None:
    for rank in world.ranks:
        rank.last = 0


async def completed(world: World) -> None:
    await eventually("the pods are complete", lambda: all(pod.exit_code == 0 for pod in world.launchers))


async def restart(world: World, index: int) -> None:
    world.sidecars[index].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[index]
    world.sidecars[index] = asyncio.create_task(sidecar.run(world.configs[index], world.stops[index]))


def files(place: Path) -> dict[str, str]:
    found = (path for path in place.rglob("*") if path.is_file() and path.name != protocol.MANIFEST)
    return {str(path.relative_to(place)): path.read_text() for path in found}


async def test_outputs_of_all_ranks_are_one_folder_with_a_manifest(
    world: World, controller: FakeController, place: Path
) -> None:
    assert all(launcher.plan is not None and launcher.plan.outputs for launcher in world.launchers)
    assert not place.exists() or files(place) == {}, "it was only tried"
    writes(world, 0, "model", "weights")
    writes(world, 0, "same", "equal")
    writes(world, 3, "same", "equal")
    writes(world, 3, "shards/3", "third")
    writes(world, 2, "model", "of another rank")
    end_ranks(world)
    await completed(world)
    assert files(place) == {"model": "weights", "same": "equal", "shards/3": "third"}
    manifest = Outputs(f"file://{place}").manifest()
    assert manifest is not None and manifest.job == "train" and manifest.step >= 3
    assert {file.path: (file.rank, file.size) for file in manifest.files} == {
        "model": (0, 7), "same": (0, 5), "shards/3": (3, 5),
    }  # fmt: skip
    assert [(left.path, left.rank) for left in manifest.left_out] == [("model", 2)]
    (told,) = controller.stored
    assert (told.url, told.files, told.bytes, told.left_out) == (f"file://{place}", 3, 17, 1)
    assert told.step == manifest.step and told.attempt == 1


async def test_a_program_that_writes_nothing_has_empty_outputs(
    world: World, controller: FakeController, place: Path
) -> None:
    end_ranks(world)
    await completed(world)
    manifest = Outputs(f"file://{place}").manifest()
    assert manifest is not None and manifest.files == [] and controller.stored[0].files == 0


@pytest.mark.parametrize("index", [0, 1])
async def test_a_sidecar_that_dies_while_it_stores_is_no_loss(
    world: World, controller: FakeController, place: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    held, inside, real = threading.Event(), threading.Event(), Outputs.put

    def put(self: Outputs, chosen: Any, folders: Any, *rest: Any) -> None:
        if world.configs[index].work_dir / f"rank-{2 * index}/outputs" in folders.values() and not held.is_set():
            inside.set()
            held.wait(30)
            raise StoreError("its process is gone")
        real(self, chosen, folders, *rest)

    monkeypatch.setattr(Outputs, "put", put)
    writes(world, 0, "model", "weights")
    writes(world, 2, "other", "second pod")
    end_ranks(world)
    await eventually("it stores", inside.is_set)
    assert Outputs(f"file://{place}").manifest() is None and controller.stored == []
    held.set()
    await restart(world, index)
    await completed(world)
    assert files(place) == {"model": "weights", "other": "second pod"} and len(controller.stored) == 1


async def test_a_leader_that_dies_after_the_manifest_comes_to_the_same(
    world: World, controller: FakeController, place: Path
) -> None:
    controller.outputs_errors = [503] * 100
    writes(world, 0, "model", "weights")
    writes(world, 3, "shards/3", "third")
    end_ranks(world)
    await eventually("the controller is asked", lambda: len(controller.outputs_errors) < 99)
    first = Outputs(f"file://{place}").manifest()
    assert first is not None and not any(launcher.exit_code == 0 for launcher in world.launchers)
    controller.outputs_errors.clear()
    await restart(world, 0)
    await completed(world)
    assert Outputs(f"file://{place}").manifest() == first and len(controller.stored) >= 1


async def test_the_next_attempt_does_it_again_with_the_same_outcome(
    world: World, controller: FakeController, place: Path, folder: Path
) -> None:
    writes(world, 0, "model", "weights")
    controller.outputs_errors = [503] * 1000
    end_ranks(world)
    await eventually("the manifest is there", lambda: Outputs(f"file://{place}").manifest() is not None)
    await world.end()
    controller.outputs_errors.clear()
    controller.next_attempt()
    second = await begun(World(folder, controller, workers=1, world_size=4, attempt=2))
    writes(second, 0, "model", "weights")
    end_ranks(second)
    await completed(second)
    await second.end()
    assert files(place) == {"model": "weights"}
    manifest = Outputs(f"file://{place}").manifest()
    assert manifest is not None and manifest.attempt == 2 and [told.attempt for told in controller.stored] == [2]


async def test_a_place_that_fails_for_a_while_costs_time_alone(
    world: World, controller: FakeController, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "AGAIN_S", 0.05)
    place.rmdir()
    place.write_text("a file where the folder belongs")
    writes(world, 0, "model", "weights")
    writes(world, 2, "other", "second pod")
    end_ranks(world)
    leader = world.launchers[0]
    await eventually("the ranks have ended", lambda: leader.waits)
    await asyncio.sleep(0.3)
    assert leader.exit_code is None
    place.unlink()
    await completed(world)
    assert files(place) == {"model": "weights", "other": "second pod"}


async def test_outputs_that_cannot_be_stored_end_the_pods_with_the_reason(
    world: World, controller: FakeController, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "GIVE_UP_S", 0.2)
    monkeypatch.setattr(outputs, "AGAIN_S", 0.05)
    await controller.command(then="continue")
    await eventually("commit", lambda: controller.commits)
    await world.stepped(controller.commits[0].checkpoint.step + 2)
    place.rmdir()
    place.write_text("a file where the folder belongs")
    writes(world, 2, "other", "second pod")
    end_ranks(world)
    await eventually("they end", lambda: all(pod.exit_code == exit_codes.PROTOCOL for pod in world.launchers))
    for launcher in world.launchers:
        text = launcher.commands[-1].message
        assert text.startswith("the program has ended well, but its outputs could not be stored: store file://")
        assert text.endswith(f"; checkpoint {controller.commits[0].checkpoint.id} has what was written up to it")
    assert controller.stored == []


async def test_a_place_that_cannot_be_written_is_said_before_the_training(
    folder: Path, controller: FakeController, place: Path
) -> None:
    place.write_text("a file where the folder belongs")
    world = World(folder, controller, workers=1, world_size=1)
    await world.start()
    with pytest.raises(StoreError, match="Give a place that the sidecar may write to"):
        await world.sidecars[0]
    (launcher,) = world.launchers
    assert launcher.refused_with == exit_codes.PROTOCOL and f"outputs = file://{place}" in launcher.refusal
    world.sidecars = []
    await world.end()


async def test_a_place_that_the_platform_does_not_allow_is_said_before_the_training(
    folder: Path, controller: FakeController
) -> None:
    controller.outputs_refused = "gs://other/place is not below gs://bucket/outputs/team"
    world = World(folder, controller, workers=1, world_size=1)
    await world.start()
    with pytest.raises(ConfigError, match="is not below gs://bucket/outputs/team"):
        await world.sidecars[0]
    assert world.launchers[0].refused_with == exit_codes.PROTOCOL
    world.sidecars = []
    await world.end()


async def test_pods_without_the_folder_of_the_ranks_say_so(
    folder: Path, controller: FakeController, place: Path
) -> None:
    world = await World(folder, controller, workers=1, world_size=1).start()
    await world.stepped(3)
    end_ranks(world)
    await eventually("they end", lambda: world.launchers[0].exit_code == exit_codes.PROTOCOL)
    assert "the pods of this job were made without outputs" in world.launchers[0].commands[-1].message
    await world.end()


async def test_an_attempt_that_is_not_current_any_more_completes_nothing(
    world: World, controller: FakeController, place: Path
) -> None:
    controller.outputs_errors = [409]
    end_ranks(world)
    await eventually("they end", lambda: all(pod.exit_code == exit_codes.STOPPED for pod in world.launchers))
    assert controller.stored == []
