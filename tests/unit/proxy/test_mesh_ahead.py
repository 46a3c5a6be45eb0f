"""Two pods upload while their ranks are still being dumped: the checkpoint is whole, and every failure is told once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mesh_world import FakeController, World, eventually
from store_samples import FOLDER, JOB, MIB, NAMESPACE

from singularity_proxy.errors import StoreError
from singularity_proxy.protocol import exit_codes
from singularity_proxy.protocol.messages import LauncherEvent
from singularity_proxy.sidecar import state_machine
from singularity_proxy.sidecar.peers import PodReport
from singularity_proxy.sidecar.pod import Pod
from singularity_proxy.sidecar.state_machine import State, Trigger
from singularity_proxy.store import Store
from singularity_proxy.store.upload import Upload

OWN = 24 * MIB


@pytest.fixture
async def world(folder: Path, controller: FakeController) -> AsyncIterator[World]:
    world = await World(folder, controller, workers=2, world_size=2).start()
    for launcher in world.launchers:
        launcher.own_bytes = OWN
    await world.stepped(3)
    yield world
    await world.end()


@pytest.fixture
def store(folder: Path) -> Store:
    return Store(f"file://{folder}/store")


def packs(store: Store) -> int:
    return len(store.backend.find(f"{FOLDER}/packs"))


async def packs_appear(store: Store) -> None:
    await eventually("content is stored before the dump has ended", lambda: packs(store) >= 1, 60.0)


async def test_content_is_stored_before_the_dump_has_ended(
    world: World, controller: FakeController, store: Store
) -> None:
    for launcher in world.launchers:
        launcher.pages_written = lambda: packs_appear(store)
    await controller.command(90)
    await eventually("commit", lambda: controller.commits, 90.0)
    made = store.read_manifest(NAMESPACE, JOB, controller.commits[0].checkpoint.id)
    assert store.verify(made) == [] and sum(f.size for r in made.ranks for f in r.files) > 2 * OWN
    for launcher in world.launchers:
        back = launcher.config.root / "back"
        rank = launcher.config.index
        store.fetch_ranks(made, {rank: back})
        assert (back / "pages-1.img").read_bytes() == launcher.sent[rank]


def test_ranks_that_go_on_after_the_dump_do_not_share_their_processors_with_an_upload() -> None:
    state = State(job="train", attempt=1, workers=1, world_size=1, phase="save", sequence=1)
    for then, ahead in (("continue", False), ("stop", True)):
        trigger = Trigger("on demand", 0.0, 60.0, then)  # type: ignore[arg-type]
        found = state_machine.directive(State(**{**vars(state), "trigger": trigger}))
        assert (found.op, found.ahead) == ("save", ahead)


async def test_a_dump_that_fails_after_content_was_stored(
    world: World, controller: FakeController, store: Store
) -> None:
    failing = world.launchers[1]
    failing.pages_written, failing.dump_error = lambda: packs_appear(store), "criu: Error (cr-dump.c): no"
    await controller.command(90)
    await eventually("the failure", lambda: controller.failures, 60.0)
    assert "criu: Error (cr-dump.c): no" in controller.failures[0].message
    assert "cancelled" not in controller.failures[0].message
    assert controller.commits == [] and store.list_checkpoints(NAMESPACE, JOB) == []
    failing.dump_error = ""
    await controller.command(90)
    await eventually("the next one is committed", lambda: controller.commits, 90.0)
    assert store.verify(store.read_manifest(NAMESPACE, JOB, controller.commits[0].checkpoint.id)) == []
    assert len(controller.failures) == 1


async def test_a_store_that_fails_during_the_dump_is_told_when_the_dump_has_ended(
    world: World, controller: FakeController, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    told: list[int] = []
    reports: list[int] = []
    stock = Pod.report

    def report(self: Pod) -> PodReport:
        made = stock(self)
        reports.append(made.index)
        return made

    monkeypatch.setattr(Pod, "report", report)

    def write(self: Upload, *args: object) -> None:
        failed.append("the wire is cut")
        raise StoreError(failed[0])

    async def until_failed() -> None:
        await eventually("the store failed", lambda: failed, 60.0)
        await eventually("the uploads have ended", lambda: not store.backend.find(f"{FOLDER}/locks"), 60.0)
        before = len(reports)
        await eventually("the pods have reported since", lambda: set(reports[before:]) == {0, 1}, 60.0)
        told.append(len(controller.failures))

    with monkeypatch.context() as patch:
        patch.setattr(Upload, "_write", write)
        for launcher in world.launchers:
            launcher.pages_written = until_failed
        await controller.command(90)
        await eventually("the failure", lambda: controller.failures, 60.0)
    assert "upload: the wire is cut" in controller.failures[0].message and told[0] == 0
    at = max(rank.boundary.count for rank in world.ranks)
    await eventually("the ranks go on", lambda: all(rank.boundary.count > at + 5 for rank in world.ranks))
    for launcher in world.launchers:
        launcher.pages_written = None
    await controller.command(90)
    await eventually("the next one is committed", lambda: controller.commits, 90.0)


async def test_sidecars_that_are_asked_to_end_do_not_wait_for_a_dump_that_nobody_makes_any_more(
    world: World, controller: FakeController
) -> None:
    never, stands = asyncio.Event(), asyncio.Event()

    async def for_ever() -> None:
        stands.set()
        await never.wait()

    for launcher in world.launchers:
        launcher.pages_written = for_ever
    await controller.command(3600)
    await asyncio.wait_for(stands.wait(), 120)
    for index in (1, 0):
        world.stops[index].set()
    # The leader gives the others some time to hear its last word: far less than the checkpoint's hour.
    done, pending = await asyncio.wait(world.sidecars, timeout=60)
    assert len(done) == 2 and not pending
    assert exit_codes.STOPPED not in [launcher.exit_code for launcher in world.launchers]


async def test_a_pod_that_is_asked_to_end_during_the_dump_waits_for_the_upload(
    world: World, controller: FakeController, store: Store
) -> None:
    async def terminating() -> None:
        await world.launchers[0].post(LauncherEvent("terminating", grace_s=90))
        await packs_appear(store)

    world.launchers[0].pages_written = terminating
    await controller.command(90)
    await eventually("commit", lambda: controller.commits, 90.0)
    await eventually("it ends", lambda: world.launchers[0].exit_code == exit_codes.STOPPED, 60.0)
