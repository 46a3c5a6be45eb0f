"""How an attempt ends by itself: no pod is complete before every rank of the world has ended well, for Kubernetes never
makes the pod of a complete index again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from mesh_world import FakeController, World, eventually

from singularity_proxy.errors import MeshError
from singularity_proxy.protocol import exit_codes
from singularity_proxy.protocol.messages import CheckpointRef, LauncherEvent
from singularity_proxy.sidecar import sidecar, state_machine
from singularity_proxy.sidecar.mesh import Follower
from singularity_proxy.sidecar.peers import Directive, PodReport


@pytest.fixture
async def world(folder: Path, controller: FakeController) -> AsyncIterator[World]:
    world = await World(folder, controller, workers=3, world_size=4).start()
    await world.stepped(3)
    yield world
    await world.end()


async def _end_of(world: World, *pods: int) -> None:
    """The ranks of these pods end well, and their launchers have said so."""
    for pod in pods:
        for rank in world.launchers[pod].ranks:
            rank.last = 0
    await eventually("they wait", lambda: all(world.launchers[pod].waits for pod in pods))


async def _restart(world: World, index: int) -> None:
    world.sidecars[index].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[index]
    world.sidecars[index] = asyncio.create_task(sidecar.run(world.configs[index], world.stops[index]))


@pytest.mark.parametrize("early", [(0,), pytest.param((2,), marks=pytest.mark.full), (0, 1)])
async def test_a_pod_whose_ranks_have_ended_waits_for_the_others(world: World, early: tuple[int, ...]) -> None:
    await _end_of(world, *early)
    others = [rank for pod, launcher in enumerate(world.launchers) if pod not in early for rank in launcher.ranks]
    at = max(rank.boundary.count for rank in others)
    await eventually("the others train on", lambda: all(rank.boundary.count > at + 20 for rank in others))
    assert all(launcher.exit_code is None for launcher in world.launchers)
    await _end_of(world, *(pod for pod in range(3) if pod not in early))
    await eventually("all end", lambda: [x.exit_code for x in world.launchers] == [0, 0, 0])
    assert all([c.op for c in launcher.commands] == ["finish"] for launcher in world.launchers)


async def test_the_leader_waits_for_a_follower_that_is_cut_off_from_the_last_word(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _end_of(world, 0, 1)
    word, lost = asyncio.Event(), 0
    post = Follower.post

    async def cut(self: Follower, session: ClientSession, report: PodReport, seen: int, hold: float) -> Directive:
        nonlocal lost
        answer = await post(self, session, report, seen, hold)
        if report.index == 2 and answer.op == "finish" and not word.is_set():
            lost += 1
            raise MeshError("the answer is lost on its way")
        return answer

    monkeypatch.setattr(Follower, "post", cut)
    await _end_of(world, 2)
    await eventually("the pod between ends", lambda: world.launchers[1].exit_code == 0)
    await eventually("it is asked again", lambda: lost > 3)
    assert world.launchers[0].exit_code is None and world.launchers[2].exit_code is None
    word.set()
    await eventually("all end", lambda: [x.exit_code for x in world.launchers] == [0, 0, 0])


async def test_an_eviction_that_comes_too_late_leaves_no_pod_complete(world: World, controller: FakeController) -> None:
    """An index that is complete is not made again, and the next attempt could not form its world."""
    for rank in world.ranks:  # their interpreters shut down, and that takes long
        rank.lingers.set()
        rank.last = 0
    await eventually("they end", lambda: all(rank.code == 0 for rank in world.ranks))
    await controller.command()
    await eventually("failure", lambda: controller.failures)
    assert "a rank has ended already" in controller.failures[0].message and controller.failures[0].finishing
    for launcher in world.launchers:
        await launcher.post(LauncherEvent("terminating", grace_s=30))
    await eventually("it is tried with the grace period", lambda: len(controller.failures) > 1)
    assert all(launcher.exit_code is None for launcher in world.launchers), "the launchers end them, with 143"


async def _committed(controller: FakeController, number: int) -> CheckpointRef:
    await eventually(f"checkpoint {number}", lambda: len(controller.commits) == number or controller.failures)
    assert not controller.failures, controller.failures[0].message
    return controller.commits[-1].checkpoint


@pytest.mark.parametrize(
    ("early", "workers"),
    [
        *[((0,), 3), ((1, 2), 4), ((2, 3), 1), ((0, 1, 3), 3)],
        *(pytest.param(*case, marks=pytest.mark.full) for case in (((0,), 2), ((0, 1), 2), ((0, 1, 2), 4), ((3,), 2))),
    ],
)
async def test_ranks_that_have_ended_are_saved_as_ended_and_the_others_go_on(
    world: World, controller: FakeController, folder: Path, early: tuple[int, ...], workers: int
) -> None:
    for rank in world.ranks:
        if rank.rank in early:
            rank.last = 0
    others = [rank for rank in world.ranks if rank.rank not in early]
    await eventually("some have ended", lambda: sum(rank.code == 0 for rank in world.ranks) == len(early))
    await controller.command(then="continue")
    saved = await _committed(controller, 1)
    await eventually("the others go on", lambda: all(r.boundary.count > saved.step + 20 for r in others))
    first = next(rank for rank in range(4) if rank not in early)
    place = next(x for x in world.launchers if first in x.plan.ranks).config.pod_ip  # type: ignore[union-attr]
    for launcher in world.launchers:
        (resume,) = [command for command in launcher.commands if command.op == "resume"]
        assert (resume.ended, resume.master_addr) == ([*early], place), "where the first of the others serves the store"
    await controller.command()
    saved = await _committed(controller, 2)
    assert saved.step > controller.commits[0].checkpoint.step + 20
    await world.end()

    controller.checkpoint = saved
    controller.next_attempt()
    controller.trial_after_s = 0.0
    again = await World(folder, controller, workers=workers, world_size=4, attempt=2).start()
    try:
        await again.stepped(saved.step + 5)
        assert again.over == {*early} and {rank.rank for rank in again.ranks} == {*range(4)} - {*early}
        place = next(x for x in again.launchers if first in x.plan.ranks).config.pod_ip  # type: ignore[union-attr]
        plans = [launcher.plan for launcher in again.launchers if launcher.plan]
        assert [(plan.ended, plan.master_addr) for plan in plans] == [([*early], place)] * workers
        await eventually("it counts as running", lambda: controller.progress[-1].first_step_ago_s is not None)
        await eventually("it is tried, whoever has no rank left", lambda: controller.trials)
        assert [report.verdict for report in controller.trials] == ["yes"]
        await controller.command(then="continue")
        third = await _committed(controller, 3)
        assert third.step >= saved.step + 5
        for rank in again.ranks:
            rank.last = 0
        await eventually("all end", lambda: [x.exit_code for x in again.launchers] == [0] * workers)
    finally:
        await again.end()


async def test_a_rank_that_is_about_to_end_is_waited_for(world: World, controller: FakeController) -> None:
    late = world.launchers[1].ranks[0]
    late.lingers.set()
    late.last = 0
    await eventually("it ends", lambda: late.code == 0)
    await controller.command(then="continue")
    await eventually("the barrier", lambda: controller.progress and controller.progress[-1].phase == "barrier")
    assert not controller.commits
    late.lingers.clear()
    await _committed(controller, 1)


async def test_a_rank_that_has_failed_ends_the_barrier(world: World, controller: FakeController) -> None:
    failed = world.launchers[1].ranks[0]
    await world.launchers[1].post(LauncherEvent("exited", rank=failed.rank, code=3))
    await controller.command(then="continue")
    await eventually("failure", lambda: controller.failures)
    assert "a rank has ended already" in controller.failures[0].message


@pytest.mark.parametrize("waiting", [0, 2])
async def test_a_rank_that_fails_frees_those_that_wait(world: World, waiting: int) -> None:
    await _end_of(world, waiting)
    world.launchers[1].ranks[0].fails = 3
    await eventually("the failure", lambda: world.launchers[1].exit_code == 3)
    await eventually("who waited leaves", lambda: world.launchers[waiting].exit_code == exit_codes.STOPPED)
    (other,) = {0, 2} - {waiting}
    assert world.launchers[other].exit_code is None, "what becomes of running ranks is their launcher's business"


@pytest.mark.parametrize(("gone", "waiting"), [(0, 1), (2, 0), pytest.param(2, 1, marks=pytest.mark.full)])
async def test_a_pod_that_is_gone_frees_those_that_wait(
    world: World, monkeypatch: pytest.MonkeyPatch, gone: int, waiting: int
) -> None:
    heard = asyncio.Event()
    post = Follower.post

    async def noted(self: Follower, session: ClientSession, report: PodReport, seen: int, hold: float) -> Directive:
        answer = await post(self, session, report, seen, hold)
        if report.index == (gone or waiting):
            heard.set()
        return answer

    monkeypatch.setattr(Follower, "post", noted)
    await _end_of(world, waiting)
    await eventually("it is heard", heard.is_set)  # a pod that was never heard is not gone: it may still come
    monkeypatch.setattr(state_machine, "GONE_S", 1.5)
    world.sidecars[gone].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[gone]
    await eventually("who waited leaves", lambda: world.launchers[waiting].exit_code == exit_codes.STOPPED)


@pytest.mark.parametrize("index", [0, 1, pytest.param(2, marks=pytest.mark.full)])
async def test_a_sidecar_that_is_started_anew_learns_that_its_ranks_have_ended(world: World, index: int) -> None:
    await _end_of(world, 0, 1)
    await _restart(world, index)
    await _end_of(world, 2)
    await eventually("all end", lambda: [x.exit_code for x in world.launchers] == [0, 0, 0])


# --- what rank 0 has returned -----------------------------------------------------------------------------------------
RESULT = '{"value": 0.25}'


def _hand(world: World) -> None:
    """As the launcher does before it says that rank 0 has ended."""
    world.configs[0].handed_result.write_text(RESULT)


@pytest.mark.parametrize("errors", [[], [503, 500]])
async def test_a_result_is_on_the_job_while_the_others_train(
    world: World, controller: FakeController, errors: list[int]
) -> None:
    controller.result_errors = [*errors]
    _hand(world)
    await _end_of(world, 0)
    await eventually("it arrives", lambda: bool(controller.results))
    assert controller.results == [({"namespace": "team", "job": "train", "attempt": "1"}, RESULT)]
    await _restart(world, 0)
    await eventually("a sidecar that is started anew brings it, too", lambda: len(controller.results) == 2)
    assert [launcher.exit_code for launcher in world.launchers] == [None] * 3


async def test_a_pod_that_ends_brings_the_result_before_its_sidecar_does(
    folder: Path, controller: FakeController
) -> None:
    """The launcher of a job of one pod ends with its ranks, and the kubelet then ends the sidecar."""
    world = await World(folder, controller, workers=1, world_size=2).start()
    await world.stepped(3)
    controller.result_errors = [503, 503]
    _hand(world)
    await world.end()
    assert [text for _, text in controller.results] == [RESULT]


@pytest.mark.parametrize("status", [409, 400])
async def test_a_result_that_is_not_wanted_is_brought_once(
    world: World, controller: FakeController, status: int
) -> None:
    controller.result_errors = [status, status]
    _hand(world)
    await eventually("it was refused", lambda: len(controller.result_errors) < 2)
    await world.end()
    assert (len(controller.result_errors), controller.results) == (1, [])
