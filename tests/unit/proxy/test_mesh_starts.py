"""What a sidecar does with a store or a controller that is away when its pod starts: the image of the program may still
be pulled then, and nobody waits for a plan yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.errors import ProxyError, StoreAwayError, StoreError
from singularity_proxy.protocol import exit_codes
from singularity_proxy.sidecar import restore, sidecar
from singularity_proxy.store import Store


class Faulty:
    """In the place of a call: fails as long as it is told to."""

    def __init__(self, stock: Callable[..., Any], error: ProxyError) -> None:
        self._stock, self._error = stock, error
        self.away = True
        self.calls = 0

    def before(self) -> None:
        self.calls += 1
        if self.away:
            raise self._error


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "HELLO_S", 0.3)
    monkeypatch.setattr(sidecar, "AGAIN_S", 0.05, raising=False)


def failing_probe(monkeypatch: pytest.MonkeyPatch, error: ProxyError) -> Faulty:
    faulty = Faulty(Store.probe, error)

    def probe(store: Store, namespace: str, job: str) -> None:
        faulty.before()
        faulty._stock(store, namespace, job)

    monkeypatch.setattr(Store, "probe", probe)
    return faulty


def sidecars_alone(folder: Path, controller: FakeController, attempt: int = 1) -> World:
    """The images of the training containers are being pulled."""
    world = World(folder, controller, workers=2, world_size=2, attempt=attempt)
    world.sidecars = [asyncio.create_task(sidecar.run(c, s)) for c, s in zip(world.configs, world.stops, strict=True)]
    return world


async def test_a_controller_that_is_away_while_the_image_is_pulled(folder: Path, controller: FakeController) -> None:
    controller.away = True
    world = sidecars_alone(folder, controller)
    began = asyncio.get_running_loop().time()
    await eventually("the sidecars give up three times", lambda: asyncio.get_running_loop().time() - began > 1.5)
    assert not any(task.done() for task in world.sidecars), "a sidecar that has ended leaves its launcher alone"
    controller.away = False
    await world.launch().stepped(3)
    await world.end()


async def without_store(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> tuple[Faulty, World]:
    """Sidecars that have tried to reach their store more than once each, in vain."""
    faulty = failing_probe(monkeypatch, StoreAwayError("store gs://b: cannot write probe-1: 503"))
    world = sidecars_alone(folder, controller)
    await eventually("more than one try of each", lambda: faulty.calls > 6)
    return faulty, world


async def test_a_store_that_is_away_while_the_image_is_pulled(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, world = await without_store(folder, controller, monkeypatch)
    faulty.away = False
    await world.launch().stepped(3)
    await world.end()


async def test_a_store_that_stays_away_is_said_to_the_launcher_that_asks(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, world = await without_store(folder, controller, monkeypatch)
    world.launch()
    await eventually("the answers", lambda: all(launcher.refusal for launcher in world.launchers))
    assert [launcher.refused_with for launcher in world.launchers] == [exit_codes.LOST] * 2
    results = await asyncio.wait_for(asyncio.gather(*world.sidecars, return_exceptions=True), 120)
    assert all(isinstance(result, StoreAwayError) for result in results)


async def test_what_does_not_pass_is_kept_for_the_launcher_however_late_it_comes(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "REFUSAL_S", 0.1, raising=False)
    failing_probe(monkeypatch, StoreError("store gs://b: cannot write probe-1: 403 Forbidden"))
    world = sidecars_alone(folder, controller)
    done, _ = await asyncio.wait(world.sidecars, timeout=1.0)
    assert not done, "the launcher would read that its sidecar cannot be reached"
    world.launch()
    await eventually("the answers", lambda: all(launcher.refusal for launcher in world.launchers))
    assert [launcher.refused_with for launcher in world.launchers] == [exit_codes.PROTOCOL] * 2
    assert "403 Forbidden" in world.launchers[0].refusal
    await asyncio.gather(*world.sidecars, return_exceptions=True)


async def test_a_sidecar_that_waits_for_its_launcher_ends_when_it_is_told_to(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = failing_probe(monkeypatch, StoreAwayError("away"))
    world = sidecars_alone(folder, controller)
    await eventually("more than one try of each", lambda: faulty.calls > 6)
    for stop in world.stops:
        stop.set()
    await asyncio.wait_for(asyncio.gather(*world.sidecars), 120)


async def test_programs_run_as_soon_as_they_are_started_whether_they_make_steps_or_not(
    folder: Path, controller: FakeController
) -> None:
    world = sidecars_alone(folder, controller)
    world.launch()
    for launcher in world.launchers:
        launcher.slow_imports = True
    await eventually("it is said that they run", lambda: any(p.phase == "running" for p in controller.progress))
    running = [p for p in controller.progress if p.phase == "running"]
    assert all(p.free and p.first_step_ago_s is None for p in running), "no step yet, maybe none ever"
    for rank in world.ranks:
        rank.imports.set()
    await eventually("the first step", lambda: controller.progress[-1].first_step_ago_s is not None)
    assert not controller.progress[-1].free
    await world.end()


@pytest.mark.parametrize("index", [0, 1])
async def test_a_pod_that_is_made_anew_after_the_end_of_all_ranks_ends_at_once(
    folder: Path, controller: FakeController, index: int
) -> None:
    controller.finished = True
    world = World(folder, controller, workers=2, world_size=2)
    world.configs, world.stops = world.configs[index : index + 1], world.stops[:1]
    await world.start()
    launcher = world.launchers[0]
    await eventually("a plan", lambda: launcher.plan)
    assert launcher.plan is not None and (launcher.plan.mode, launcher.plan.ranks) == ("finished", [])
    assert not controller.progress, "it has nothing to say of the job"
    await world.end()


async def test_a_sidecar_started_anew_beside_ranks_that_wait_for_the_end_of_all(
    folder: Path, controller: FakeController
) -> None:
    world = await World(folder, controller, workers=2, world_size=2).start()
    await world.stepped(3)
    world.sidecars[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[1]
    controller.finished = True  # the other pod is complete
    world.sidecars[1] = asyncio.create_task(sidecar.run(world.configs[1], world.stops[1]))
    await eventually("the last word", lambda: [c.op for c in world.launchers[1].commands] == ["finish"])
    await world.end()


async def test_a_store_that_is_away_while_a_checkpoint_is_fetched_and_the_image_is_pulled(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await World(folder, controller, workers=2, world_size=2).start()
    await first.stepped(3)
    await controller.command()
    await eventually("a commit", lambda: controller.commits)
    await first.end()

    faulty = Faulty(restore.restore_plan, StoreAwayError("store gs://b: cannot read packs/1: 503"))

    async def fetch(*arguments: Any) -> Any:
        faulty.before()
        return await faulty._stock(*arguments)

    monkeypatch.setattr(restore, "restore_plan", fetch)
    controller.attempt, controller.leader_ip = 2, ""
    controller.commands.clear()
    world = sidecars_alone(folder, controller, attempt=2)
    await eventually("more than one try of each", lambda: faulty.calls > 6)
    faulty.away = False
    await world.launch().stepped(controller.commits[0].checkpoint.step + 3)
    assert all(launcher.plan is not None and launcher.plan.mode == "restore" for launcher in world.launchers)
    await world.end()
