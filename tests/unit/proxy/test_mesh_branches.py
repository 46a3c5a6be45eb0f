"""Real sidecars of two jobs and of one job's two branches: a fork reads the other's checkpoint, and touches nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, Origin
from singularity_proxy.sidecar import retention
from singularity_proxy.store import Store


async def saved(world: World, controller: FakeController, count: int) -> list[CheckpointRef]:
    """Checkpoints, one after the other, while the ranks go on; oldest first."""
    done = len(controller.commits)
    for number in range(done + 1, done + count + 1):
        await controller.command(30, then="continue")
        await eventually("commit", lambda n=number: len(controller.commits) == n)
        await world.stepped(controller.commits[-1].checkpoint.step + 3)
    return [commit.checkpoint for commit in controller.commits[done:]]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
async def other(folder: Path) -> AsyncIterator[FakeController]:
    """The controller as the forked job meets it."""
    made = FakeController()
    (folder / "other").mkdir()
    runner = await made.start(folder / "other")
    yield made
    await runner.cleanup()


async def test_a_fork_goes_on_beside_its_source_and_writes_into_a_folder_of_its_own(
    folder: Path, controller: FakeController, other: FakeController
) -> None:
    source = await World(folder, controller, workers=2, world_size=2).start()
    await source.stepped(3)
    first, second = await saved(source, controller, 2)
    store = Store(first.url)
    store.hold("team", "train", first.id, "twin", first.sha256)
    before = content(folder / "store/jobs/team/train")

    other.attempt, other.checkpoint, other.committed = 2, first, [first]
    other.origin = Origin("train", first.id)
    twin = await World(folder, other, workers=1, world_size=2, attempt=2, job="twin").start()
    await eventually("it is restored", lambda: len(twin.ranks) == 2)
    assert [r.boundary.count >= first.step for r in twin.ranks] == [True, True]
    await twin.stepped(first.step + 3)
    mine = await saved(twin, other, 1)
    assert mine[0].generation > second.generation and mine[0].step > first.step
    manifest = store.read_manifest("team", "twin", mine[0].id, mine[0].sha256)
    assert store.verify(manifest) == [], "all that it needs lies in its own folder"
    assert content(folder / "store/jobs/team/train") == before, "nothing of the source was changed"

    # The hold lasts while the fork may have to come back to it, and no longer.
    await saved(twin, other, retention.KEEP - 1)
    await eventually(
        "the source's checkpoint is let go",
        lambda: [x.held for x in store.list_checkpoints("team", "train") if x.id == first.id] == [()],
    )
    after = content(folder / "store/jobs/team/train")
    assert before.keys() - after.keys() == {f"pins/{first.id}.twin"}
    assert after.keys() <= before.keys()
    await saved(source, controller, 1)  # the source has gone on all the while
    await twin.end()
    await source.end()


async def test_a_fork_that_ends_before_it_is_saved_lets_go_of_its_source(
    folder: Path, controller: FakeController, other: FakeController
) -> None:
    source = await World(folder, controller, workers=1, world_size=1).start()
    await source.stepped(3)
    (ref,) = await saved(source, controller, 1)
    await source.end()
    store = Store(ref.url)
    store.hold("team", "train", ref.id, "twin", ref.sha256)
    before = content(folder / "store/jobs/team/train")
    other.attempt, other.checkpoint, other.committed, other.origin = 2, ref, [ref], Origin("train", ref.id)
    twin = await World(folder, other, workers=1, world_size=1, attempt=2, job="twin").start(last=ref.step + 5)
    await eventually("its ranks have ended", lambda: [x.exit_code for x in twin.launchers] == [0])
    await twin.end()
    assert other.commits == []
    assert before.keys() - content(folder / "store/jobs/team/train").keys() == {f"pins/{ref.id}.twin"}


async def test_a_damaged_origin_is_reported_with_the_object_in_the_source_s_folder(
    folder: Path, controller: FakeController, other: FakeController
) -> None:
    source = await World(folder, controller, workers=1, world_size=1).start()
    await source.stepped(3)
    (ref,) = await saved(source, controller, 1)
    await source.end()
    for pack in (folder / "store/jobs/team/train/packs").iterdir():
        pack.write_bytes(b"x" + pack.read_bytes()[1:])
    other.attempt, other.checkpoint, other.committed, other.origin = 2, ref, [ref], Origin("train", ref.id)
    twin = await World(folder, other, workers=1, world_size=1, attempt=2, job="twin").start()
    await eventually("the launcher is told", lambda: twin.launchers[0].refusal)
    assert [found.id for found in other.damage[0].damaged] == [ref.id]
    await twin.end()


async def test_the_branch_that_was_given_up_stays_until_newer_checkpoints_replace_it(
    folder: Path, controller: FakeController
) -> None:
    first = await World(folder, controller, workers=1, world_size=1).start()
    await first.stepped(3)
    a, b, c = await saved(first, controller, 3)
    await first.end()
    store = Store(a.url)
    store.hold("team", "train", a.id, names.HOLD_REWIND, a.sha256)
    # What the controller does: the job's checkpoint is the older one, and only its branch is told.
    controller.checkpoint, controller.committed = a, [a]
    controller.next_attempt()
    second = await World(folder, controller, workers=1, world_size=1, attempt=2).start()
    await second.stepped(a.step + 3)
    assert [x.id for x in store.list_checkpoints("team", "train")] == [c.id, b.id, a.id]
    (d,) = await saved(second, controller, 1)
    left = {a.id, c.id, d.id}
    await eventually(
        "one branch gives way to the other", lambda: {x.id for x in store.list_checkpoints("team", "train")} == left
    )
    await eventually(
        "no hold any more, as the job has gone on from it",
        lambda: not any(x.held for x in store.list_checkpoints("team", "train")),
    )
    await saved(second, controller, 2)
    await eventually(
        "only the branch that the job is on is left",
        lambda: all(x.id == a.id or (x.manifest and x.manifest.attempt == 2)
                    for x in store.list_checkpoints("team", "train")),
    )  # fmt: skip
    await second.end()
