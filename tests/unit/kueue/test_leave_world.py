"""A voluntary stop in virtual time: saved first and once, or not stopped at all, whatever fails in between.

The world's own law counts as well: nobody goes on from anything but the newest committed checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from controller_scene import NS
from eviction_world import BUDGET_S, PARTITION_S, SAVE_S, World

from kueue_integration.contract import attempt_records, leaves, saveable
from kueue_integration.controller.planning import carry_out
from kueue_integration.kube import server_time
from kueue_integration.kube.resources import JOB
from kueue_integration.requests import user_requests, verbs

Stop = Callable[[World], None]


def pause(world: World) -> None:
    verbs.pause(world.kube, NS, "train", by="ann")


def regrow(world: World) -> None:
    """As the planner's round does, which passes its own conditions."""
    action = carry_out.saved_first(world.job(), "quota is free again", 600.0, world.now)
    world.replicas[0].act(lambda: world.replicas[0].reconciler.looks.perform(action, world.job(), world.workload()))


STOPS: dict[str, Stop] = {"pause": pause, "regrow": regrow}
BY_NAME = pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)


def training(monkeypatch: pytest.MonkeyPatch, **options: object) -> World:
    world = World(monkeypatch, **options)  # type: ignore[arg-type]
    world.run(lambda: world.training is not None and world.training.told and (world.training.step or 0) > 10)
    return world


def state(world: World) -> str:
    found = leaves.of(world.job())
    return "" if found is None else found.state


def answer(world: World) -> tuple[str, str]:
    found = user_requests.answer(world.job(), user_requests.CHANGE)
    return ("", "") if found is None else (found.state, found.message)


def over(world: World) -> bool:
    """The first attempt has ended, and its pods are gone."""
    return world.training is None or world.training.attempt > 1


def goes_on(world: World, steps: int = 10) -> None:
    """The first attempt trains on."""
    assert world.training is not None
    least = (world.training.step or 0) + steps
    world.run(lambda: world.training is not None and (world.training.step or 0) >= least)
    assert world.training.attempt == 1


def restarted(world: World) -> int:
    """The step at which the next attempt has begun."""
    if world.workload()["spec"].get("active") is False:
        verbs.resume(world.kube, NS, "train", by="ann")
    world.run(lambda: len(world.started) == 2)
    return world.started[-1][1]


@BY_NAME
def test_it_is_saved_once_and_stopped_where_it_was_saved(monkeypatch: pytest.MonkeyPatch, stop: Stop) -> None:
    world = training(monkeypatch)
    stop(world)
    world.run(lambda: state(world) == "saved")
    assert attempt_records.history(world.job())[-1].ended_by is None, "Kueue hears of it once it is saved"
    (ref,) = world.committed
    world.run(lambda: over(world))
    record = attempt_records.history(world.job())[0]
    assert (record.checkpoint, record.last_step) == (ref.id, ref.step - 1)
    assert record.ended_by == ("Paused" if stop is pause else "Regrown")
    assert world.longest_hold < SAVE_S, "the hold lets go at once"
    assert len(world.committed) == 1 and restarted(world) == ref.step
    if stop is pause:
        assert answer(world)[0] in ("", "running", "done")


@BY_NAME
def test_a_job_that_cannot_be_saved_trains_on(monkeypatch: pytest.MonkeyPatch, stop: Stop) -> None:
    world = training(monkeypatch)
    world.save_fails = True
    stop(world)
    world.run(lambda: state(world) == "failed")
    goes_on(world, 40)
    assert world.evicted_at is None and world.longest_hold == 0.0 and len(world.started) == 1
    assert saveable.barred(world.job()) == "the store is full", "the planner leaves it alone"
    if stop is pause:
        said, message = answer(world)
        assert said == "failed" and "no checkpoint: the store is full" in message and "--lose-work" in message
    world.save_fails = False
    stop(world)
    world.run(lambda: over(world))
    assert restarted(world) == world.committed[-1].step


@BY_NAME
@pytest.mark.parametrize("down", [1.0, 15.0, 80.0], ids=lambda s: f"{s:.0f}s")
@pytest.mark.parametrize("after", [True, False], ids=["after-the-write", "before-the-write"])
def test_a_crash_at_every_write_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, stop: Stop, down: float, after: bool
) -> None:
    """80 s: the ranks have gone on by themselves when the next controller looks."""


    def story(crash_at: int) -> World:
        world = training(monkeypatch, down_s=down)
        stop(world)
        world.kube.crash_at, world.kube.crash_after = world.kube.writes + crash_at, after
        world.run(lambda: over(world))
        return world

    writes = 0
    while (world := story(writes + 1)).kube.fired:
        writes += 1
        reached = world.reached
        assert restarted(world) == reached == world.committed[-1].step, f"crash at write {writes}"
    assert writes >= 4


@BY_NAME
def test_a_partition_of_a_minute_between_commit_and_eviction(monkeypatch: pytest.MonkeyPatch, stop: Stop) -> None:
    """The ranks go on by themselves, and the next look saves them anew."""
    world = training(monkeypatch, cut_s=PARTITION_S + 10)
    world.when_saved = lambda: world.fault(world.replicas[0])
    stop(world)
    world.run(lambda: bool(world.committed))
    world.when_saved = lambda: None
    stopped_at = world.reached
    world.run(lambda: over(world))
    first, second = world.committed
    assert (first.step, second.step) == (stopped_at, world.reached) and second.step > first.step
    assert restarted(world) == second.step


def test_a_save_that_hangs_is_given_up_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training(monkeypatch)
    world.save_s = 10_000.0
    began = world.now
    pause(world)
    world.run(lambda: answer(world)[0] == "failed")
    assert BUDGET_S <= world.now - began <= BUDGET_S + 3
    assert "no checkpoint: not saved in time" in answer(world)[1]
    goes_on(world)
    assert world.evicted_at is None


def test_an_eviction_meanwhile_joins_the_save(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training(monkeypatch)
    pause(world)
    world.run(lambda: world.training is not None and world.training.save_done is not None)
    world.evict()
    world.run(lambda: over(world))
    assert len(world.committed) == 1
    record = attempt_records.history(world.job())[0]
    assert (record.ended_by, record.checkpoint) == ("Preempted", world.committed[0].id)
    world.run(lambda: answer(world)[0] == "done")
    assert len(world.started) == 1, "paused before the next attempt"


def test_an_eviction_of_ranks_that_stay_stopped_ends_them_as_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training(monkeypatch)
    world.replicas[0].down_until = world.now + 1
    pause(world)
    world.run(lambda: state(world) == "saved")
    world.replicas[0].down_until = world.now + 3
    world.evict()
    world.run(lambda: over(world))
    assert len(world.committed) == 1
    assert attempt_records.history(world.job())[0].checkpoint == world.committed[0].id


def test_a_request_that_is_taken_back_lets_the_job_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training(monkeypatch)
    world.save_s = 6.0
    pause(world)
    world.run(lambda: world.training is not None and world.training.save_done is not None)
    verbs.resume(world.kube, NS, "train", by="ann")
    world.run(lambda: bool(world.committed))
    assert state(world) == "off"
    goes_on(world)
    assert answer(world)[0] == "done" and world.longest_hold == 0.0


def test_a_request_replaced_while_ranks_stay_stopped_uses_what_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training(monkeypatch)
    regrow(world)
    world.run(lambda: state(world) == "saving")
    pause(world)
    world.run(lambda: over(world))
    assert len(world.committed) == 1
    world.run(lambda: answer(world)[0] == "done")
    assert restarted(world) == world.committed[0].step


def test_a_job_that_ends_meanwhile_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training(monkeypatch)
    world.save_s = 30.0
    pause(world)
    world.run(lambda: state(world) == "saving")
    done = {"type": "Complete", "status": "True", "lastTransitionTime": server_time.to_whole(world.now)}
    world.kube.patch(JOB, NS, "train", {"status": {"conditions": [done]}}, subresource="status")
    world.run(lambda: answer(world)[0] == "failed")
    assert "the job has ended (Finished)" in answer(world)[1]


def test_whoever_does_not_mind_the_loss_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training(monkeypatch)
    world.save_fails = True
    verbs.pause(world.kube, NS, "train", by="ann", lose_work=True)
    world.run(lambda: over(world))
    assert state(world) == "" and not world.committed
    world.run(lambda: answer(world)[0] == "done")


def test_lose_work_replaces_a_pause_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training(monkeypatch)
    world.save_s = 10_000.0
    pause(world)
    world.run(lambda: state(world) == "saving")
    began = world.now
    verbs.pause(world.kube, NS, "train", by="ann", lose_work=True)
    world.run(lambda: world.evicted_at is not None)
    assert world.now - began < 5
