"""The trial of an attempt: when there is one, what it shows, and how it gives way to a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.protocol import names, page
from singularity_proxy.protocol.messages import Gpus, LauncherEvent, Weight
from singularity_proxy.sidecar import trial
from singularity_proxy.sidecar.leader import Leader

FIRST = page.generation(1, 1)
GIB = 1 << 30


BOTH = pytest.mark.parametrize("world", ["process", "state"], indirect=True)


@pytest.fixture
async def world(request: pytest.FixtureRequest, folder: Path, controller: FakeController) -> AsyncIterator[World]:
    controller.trial_after_s = 0.2
    world = World(folder, controller, workers=2, world_size=2, engine=getattr(request, "param", "process"))
    await world.start()
    yield world
    await world.end()


def dumps(world: World, index: int = 0) -> list[tuple[int, bool]]:
    """Generation, and whether it was a trial."""
    commands = world.launchers[index].commands
    return [(command.generation, command.trial) for command in commands if command.op == "dump"]


async def trying(world: World) -> None:
    """A trial is under way in all pods, and would take long."""
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    for launcher in world.launchers:
        launcher.pages_written = wait
    await eventually("they are tried", lambda: all(FIRST in rank.frozen for rank in world.ranks))
    await eventually("both pods try", lambda: dumps(world) and dumps(world, 1))


async def goes_on(world: World) -> None:
    await world.stepped(max(rank.boundary.count for rank in world.ranks) + 10)


@BOTH
async def test_an_attempt_is_tried_once_and_trains_on(world: World, controller: FakeController) -> None:
    await eventually("the outcome", lambda: controller.trials)
    assert [report.verdict for report in controller.trials] == ["yes"]
    await goes_on(world)
    assert dumps(world) == dumps(world, 1) == [(FIRST, True)]
    assert not controller.commits and not controller.failures
    for config in world.configs:
        assert not [path for path in config.image_dir.rglob("*") if path.is_file()], "nothing is kept"
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    assert controller.commits[0].checkpoint.generation == FIRST + 1
    assert len(controller.trials) == 1


async def test_a_trial_that_fails_says_why_with_its_pod_and_the_ranks_train_on(
    world: World, controller: FakeController
) -> None:
    world.launchers[1].dump_error = "rank 1: CRIU dump failed: python3 train.py (pid 7) is traced"
    await eventually("the outcome", lambda: controller.trials)
    (report,) = controller.trials
    assert (report.verdict, report.cause) == ("no", "program")
    assert report.why == "pod 1: rank 1: CRIU dump failed: python3 train.py (pid 7) is traced"
    await goes_on(world)
    assert not controller.failures, "nobody has asked for a checkpoint"


async def test_a_trial_that_takes_too_long_shows_nothing(world: World, controller: FakeController) -> None:
    for launcher in world.launchers:
        launcher.dump_error, launcher.late = "the trial has taken longer than it may", True
    await eventually("the outcome", lambda: controller.trials)
    assert (controller.trials[0].verdict, controller.trials[0].cause) == ("not tried", "time")
    await goes_on(world)


@BOTH
@pytest.mark.parametrize("then", ["stop", "stay", "continue"])
async def test_a_checkpoint_takes_the_place_of_a_trial_at_once(
    world: World, controller: FakeController, then: str
) -> None:
    """The ranks stand already: it is made at the very stop of the trial."""
    await trying(world)
    step = world.ranks[0].frozen[FIRST]
    for launcher in world.launchers:
        launcher.pages_written = None
    await controller.command(then=then)  # type: ignore[arg-type]
    await eventually("commit", lambda: controller.commits)
    (commit,) = controller.commits
    assert (commit.checkpoint.generation, commit.checkpoint.step) == (FIRST, step)
    assert dumps(world) == dumps(world, 1) == [(FIRST, True), (FIRST, False)]
    assert not controller.failures and not controller.trials, "the checkpoint shows it"
    if then == "continue":
        await goes_on(world)


async def test_a_checkpoint_that_comes_before_the_ranks_stand_is_made_at_that_stop(
    world: World, controller: FakeController
) -> None:
    await world.stepped(1)
    world.ranks[0].stalled.set()
    await eventually("the barrier", lambda: any(p.phase == "barrier" for p in controller.progress))
    await controller.command()
    await controller.heard(1)
    world.ranks[0].stalled.clear()
    await eventually("commit", lambda: controller.commits)
    assert controller.commits[0].checkpoint.generation == FIRST
    assert [tried for _, tried in dumps(world)] == [False]


async def test_a_pod_that_is_asked_to_end_during_a_trial_is_saved(world: World, controller: FakeController) -> None:
    await trying(world)
    for launcher in world.launchers:
        launcher.pages_written = None
    await world.launchers[1].post(LauncherEvent("terminating", grace_s=30))
    await eventually("commit", lambda: controller.commits)
    assert not controller.commits[0].goes_on


async def test_there_is_no_trial_after_a_checkpoint(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()
    stock = trial.run

    async def run(leader: Leader, engine: str, after_s: float) -> None:
        await stock(leader, engine, after_s)
        ended.set()

    monkeypatch.setattr(trial, "run", run)
    controller.trial_after_s = 3600.0
    world = await World(folder, controller, workers=2, world_size=2).start()
    await world.stepped(3)
    assert not ended.is_set()
    await controller.command(then="continue")
    await eventually("commit", lambda: controller.commits)
    await asyncio.wait_for(ended.wait(), 120)
    assert [tried for _, tried in dumps(world)] == [False] and not controller.trials
    await world.end()


@pytest.mark.parametrize(
    ("weight", "gpus", "why"),
    [
        (Weight(60 * GIB), None, "a trial would stop the ranks for about 62 s, and may take 36 s"),
        (Weight(4 * GIB, 8 * GIB), Gpus(2, memory_peak=5 * GIB), "the limit of the container is 8192 MiB"),
    ],
)
async def test_a_trial_that_would_cost_too_much_or_could_harm_is_not_made(
    folder: Path, controller: FakeController, weight: Weight, gpus: Gpus | None, why: str
) -> None:
    controller.trial_after_s = 0.2
    world = World(folder, controller, workers=2, world_size=2)
    await world.start()
    world.launchers[1].weight = weight
    await eventually("launchers", lambda: len(world.ranks) == 2)
    if gpus is not None:
        await world.launchers[1].post(LauncherEvent("gpus", gpus=gpus))
    await eventually("the word", lambda: controller.trials)
    assert controller.trials[0].verdict == "not tried" and why in controller.trials[0].why
    await goes_on(world)
    assert dumps(world) == []
    await world.end()


async def test_pods_that_do_not_say_what_they_hold_are_not_tried(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "WEIGH_S", 0.5)
    controller.trial_after_s = 0.2
    world = await World(folder, controller, workers=2, world_size=2).start()
    world.launchers[1].weight = None
    await eventually("the word", lambda: controller.trials)
    assert "pod 1 did not say" in controller.trials[0].why
    await world.end()


def test_the_cost_of_a_trial_grows_with_what_the_ranks_hold() -> None:
    small = trial.stopped_s(Weight(GIB), None, names.ENGINE_PROCESS)
    assert small < trial.LIMIT_S / 5
    for engine in names.ENGINES:
        one, two = (trial.stopped_s(Weight(n * GIB), None, engine) for n in (1, 2))
        assert one < two < trial.stopped_s(Weight(2 * GIB), Gpus(1, memory_peak=GIB), engine)
