"""Two sidecars fetch a committed checkpoint from a store that one of them does not reach well, or have no room for it.

Sidecars are processes of their own, as in `test_mesh_store_faults`. That the launcher ends with the exit code in the
answer is shown by `test_launcher_pod`, what that means for the Job by `test_exit_codes`.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mesh_world import FakeController
from store_samples import MIB
from test_mesh_store_faults import Processes

from singularity_proxy.protocol import exit_codes, image_room, names
from singularity_proxy.protocol.manifest import dumps
from singularity_proxy.store import Store, layout

FULL = pytest.mark.full
PATIENCE_S = 3.0
LONG_S = 60.0
Again = Callable[..., Processes]


@pytest.fixture
async def again(folder: Path, controller: FakeController, gcs_server: str, gs_url: str) -> AsyncIterator[Again]:
    """`again(patience_s)`: the next attempt; a checkpoint was committed by the first."""
    first = Processes(folder, controller, gcs_server, gs_url)
    await first.until("steps", lambda: len(first.ranks) == 2 and all(r.boundary.count >= 5 for r in first.ranks))
    await controller.command(90.0)
    await first.until("a commit", lambda: controller.commits)
    await first.end()
    controller.commands.clear()
    made: list[Processes] = []

    def start(patience_s: float = PATIENCE_S, **env: str) -> Processes:
        controller.attempt, controller.leader_ip = controller.attempt + 1, ""
        env["PATIENCE"] = str(patience_s)
        made.append(Processes(folder, controller, gcs_server, gs_url, controller.attempt, **env))
        return made[-1]

    yield start
    for world in made:
        await world.end()


def meets(world: Processes, pod: int, fault: str, times: int = 1 << 30, spreads: bool = True) -> None:
    """In the middle of the fetch: at its first pack for an HTTP status, in the middle of a pack for others."""
    if fault.isdigit():
        world.proxies[pod].fail(fault, times=times, spreads=spreads, about=b"packs%2F")
    else:
        world.proxies[pod].fail(fault, after=MIB, times=times, spreads=spreads)


async def restored(world: Processes, controller: FakeController) -> None:
    """Both pods have, and their ranks make steps together."""
    step = controller.commits[0].checkpoint.step
    await world.until("both are restored", lambda: len(world.ranks) == 2)
    await world.until("steps", lambda: all(rank.boundary.count > step + 5 for rank in world.ranks))
    assert all(launcher.plan is not None and launcher.plan.mode == "restore" for launcher in world.launchers)


async def refused(world: Processes, pod: int, code: int) -> str:
    launcher = world.launchers[pod]
    await world.until("a refusal", lambda: launcher.refusal)
    assert launcher.plan is None and not launcher.ranks, "nothing was begun"
    assert launcher.refused_with == code, launcher.refusal
    return launcher.refusal


@pytest.mark.parametrize(("fault", "least"), [("503", 3), pytest.param("cut", 2, marks=FULL)])
async def test_a_store_that_fails_for_less_than_the_patience(
    again: Again, controller: FakeController, fault: str, least: int
) -> None:
    world = again(LONG_S)
    meets(world, 1, fault, times=1 << 30 if fault == "503" else least, spreads=fault == "503")
    await asyncio.to_thread(world.proxies[1].wait_fired, fault, least)
    assert world.launchers[1].plan is None
    world.proxies[1].heal()
    await restored(world, controller)


@pytest.mark.parametrize("pod", [pytest.param(0, id="leader", marks=FULL), pytest.param(1, id="follower")])
@pytest.mark.parametrize("fault", ["503", pytest.param("cut", marks=FULL), pytest.param("silence", marks=FULL)])
async def test_a_store_that_is_away_for_longer_ends_the_attempt_and_the_next_one_restores(
    again: Again, controller: FakeController, pod: int, fault: str
) -> None:
    world = again()
    meets(world, pod, fault)
    said = await refused(world, pod, exit_codes.LOST)
    assert said.startswith("store gs://") and ": cannot read jobs/team/train/packs/" in said
    assert world.proxies[pod].fired[fault] >= 1
    await world.end()
    await restored(again(), controller)


@pytest.mark.full
async def test_a_store_that_is_away_from_the_start(again: Again, controller: FakeController) -> None:
    world = again()
    world.proxies[1].fail("503")
    assert "/probe-" in await refused(world, 1, exit_codes.LOST)


@pytest.mark.parametrize("what", ["a byte of a pack", pytest.param("manifest", marks=FULL)])
async def test_what_one_pod_finds_damaged_no_pod_restores(
    folder: Path, controller: FakeController, gcs_server: str, gs_url: str, what: str
) -> None:
    """The next attempt goes on from the checkpoint before, in both pods; so does what is saved after that."""
    world = Processes(folder, controller, gcs_server, gs_url)
    await world.until("steps", lambda: len(world.ranks) == 2 and all(r.boundary.count >= 5 for r in world.ranks))
    older = await world.committed(controller, 1)
    packs = Store(gs_url).backend.find("jobs/team/train/packs")
    await controller.command(90.0)
    await world.until("a commit", lambda: len(controller.commits) == 2)
    await world.end()
    newer = controller.commits[1].checkpoint
    store = Store(gs_url)
    manifest = store.read_manifest("team", "train", newer.id)
    if what == "manifest":
        forged = dumps(replace(manifest, step=manifest.step + 1))
        store.backend.write(layout.manifest_path("team", "train", newer.id), forged.encode())
    else:
        path = next(
            path for stored in manifest.ranks[1].packs if (path := f"jobs/team/train/packs/{stored.name}") not in packs
        )
        data = store.backend.read(path) or b""
        store.backend.write(path, data[:-1] + bytes([data[-1] ^ 1]))

    def attempt() -> Processes:
        controller.next_attempt()
        return Processes(folder, controller, gcs_server, gs_url, controller.attempt)

    world = attempt()
    said = await refused(world, 1, exit_codes.NOT_RESTORED)
    assert newer.id in said and f"next is checkpoint {older}" in said
    await world.until("the controller knows", lambda: controller.damage)
    assert [found.id for found in controller.damage[0].damaged] == [newer.id]
    assert not list(world.configs[1].image_dir.glob("*")), "nothing is there to unpack"
    await world.end()
    world = attempt()
    await world.until("both are restored", lambda: len(world.ranks) == 2)
    assert {launcher.plan.checkpoint_id for launcher in world.launchers if launcher.plan} == {older}
    await world.committed(controller, 3)  # the same bytes as before, in part: none of them from the damaged pack
    await world.end()
    world = attempt()
    await world.until("both are restored", lambda: len(world.ranks) == 2)
    plans = {launcher.plan.checkpoint_id for launcher in world.launchers if launcher.plan}
    assert plans == {controller.commits[2].checkpoint.id}
    await world.end()


async def test_a_store_that_may_not_be_read_is_said_at_once(again: Again, controller: FakeController) -> None:
    world = again()
    meets(world, 1, "403")
    said = await refused(world, 1, exit_codes.PROTOCOL)
    assert ": cannot read jobs/team/train/packs/" in said and "Forbidden" in said


async def test_images_over_the_limit_of_their_volume_are_not_fetched(again: Again, controller: FakeController) -> None:
    """The kubelet would evict the pod in the midst. The checkpoint is whole: it counts as a try."""
    world = again(**{names.ENV_IMAGE_ROOM: str(image_room.RESERVE + 256 * 1024)})
    said = await refused(world, 1, exit_codes.NOT_RESTORED)
    assert said.startswith("No space left on device for the images of checkpoint train-a1-g")
    assert "may hold 0 MiB more: its limit is 16 MiB. Raise checkpoint_disk" in said
    images = world.configs[1].image_dir
    assert [path for path in images.rglob("*") if path.is_file()] == [], "nothing was fetched"
    [told] = controller.damage[0].damaged
    assert (told.id, told.tried, told.passes) == (controller.commits[0].checkpoint.id, True, False)
    assert told.problem.startswith("No space left on device for the images of checkpoint")


@pytest.mark.full
async def test_a_pod_without_room_for_the_images(again: Again, controller: FakeController, folder: Path) -> None:
    disk = folder / "a2p1/images"
    disk.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs root: mounts a small file system")
    try:
        world = again()
        assert world.configs[1].image_dir == disk
        said = await refused(world, 1, exit_codes.PROTOCOL)
        assert said.startswith("No space left on device for the images of checkpoint train-a1-g")
        assert f"{disk} has 2 MiB free. Give the node's disk more room" in said
        await world.end()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    await restored(again(), controller)
