"""Periodic checkpoints in virtual time: asked for, taken, followed by the next one at the right time, and not else.

The controller looks only when an object has changed or at the time that it asked to be woken at: no polling.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from eviction_world import TASK, TICK_S, Replica, World

from kueue_integration.contract import attempt_records, job_names
from kueue_integration.kube.resources import JOB, POD, WORKLOAD
from kueue_integration.requests import periodic_checkpoints, user_requests

SLACK_S = 3.0
"""A wish reaches the pods within some ticks."""


class Sleeper(Replica):
    """Handles the job when something has changed, or when it wanted to."""

    def boot(self) -> None:
        super().boot()
        self.seen: Any = None
        self.wake = float("inf")
        self.reconciler.queue.add = self._later  # type: ignore[method-assign]

    def _later(self, task: Any, delay_s: float = 0.0) -> None:
        self.wake = min(self.wake, self.world.now + delay_s)

    def tick(self) -> None:
        if self.world.ticks % 4 == 0:
            self.act(self.keeper.tick)
        kube = self.world.kube
        versions = [o["metadata"]["resourceVersion"] for kind in (JOB, WORKLOAD, POD) for o in kube.list(kind)]
        if versions == self.seen and self.world.now < self.wake:
            return
        self.seen, self.wake = versions, float("inf")
        self.act(lambda: self.reconciler.handle(TASK))


def world_of(monkeypatch, wish, report_s=10.0) -> World:
    world = World(monkeypatch)
    world.replicas = [Sleeper(world, "replica-0")]
    world.report_s = report_s
    annotate(world, {job_names.ANN_CHECKPOINT_EVERY: wish})
    world.run(lambda: world.training is not None and world.training.told)
    return world


def annotate(world: World, notes: dict[str, str | None]) -> None:
    world.kube.patch_job("team", "train", {"metadata": {"annotations": notes}})


def policy_times(world: World) -> list[float]:
    return [at for at, _, goes_on in world.asked if goes_on]


def test_one_after_the_other_in_the_same_attempt(monkeypatch):
    world = world_of(monkeypatch, "60s")
    began = attempt_records.history(world.job())[0].first_step_at
    world.run(lambda: len(world.committed) == 3)
    times = policy_times(world)
    assert 60 <= times[0] - began <= 60 + SLACK_S
    for taken, asked in zip(world.committed, times[1:], strict=False):
        assert 60 <= asked - taken.created_at <= 60 + SLACK_S
    assert [attempt for attempt, _ in world.started] == [1]
    assert [ref.id for ref in attempt_records.checkpoints(world.job())] == [f"train-a1-g{n}" for n in (1, 2, 3)]
    assert user_requests.answer(world.job(), user_requests.CHECKPOINT).state == "done"
    assert attempt_records.history(world.job())[0].checkpoint is None


def test_by_steps(monkeypatch):
    world = world_of(monkeypatch, "100 steps", report_s=1.0)
    world.run(lambda: len(world.committed) == 3)
    steps = [0, *(ref.step for ref in world.committed)]
    assert all(100 <= after - before <= 100 + 10 / TICK_S for before, after in itertools.pairwise(steps))


def test_auto_takes_a_first_one_and_then_knows(monkeypatch):
    world = world_of(monkeypatch, "auto")
    began = attempt_records.history(world.job())[0].first_step_at
    world.run(lambda: len(world.committed) == 1, limit_s=400)
    assert 300 <= policy_times(world)[0] - began <= 300 + SLACK_S
    # Two pods: MTBF 12 h; a checkpoint of some 4 s pays off every 10 minutes.
    world.run(lambda: len(world.committed) == 2, limit_s=900)
    cost = periodic_checkpoints.memory(world.job()).cost_s
    waited = policy_times(world)[1] - world.committed[0].created_at
    assert periodic_checkpoints.optimum(cost, 12 * 3600) == pytest.approx(waited, abs=SLACK_S + 10)


def test_failures_back_off_and_leave_the_job_alone(monkeypatch):
    world = world_of(monkeypatch, "60s")
    world.save_fails = True
    world.run(lambda: len(policy_times(world)) == 4, limit_s=2000)
    times = policy_times(world)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps == pytest.approx([120, 240, 480], abs=SLACK_S + 4)
    assert world.committed == []
    assert [attempt for attempt, _ in world.started] == [1]
    world.save_fails = False
    world.run(lambda: len(world.committed) == 2, limit_s=2000)
    assert periodic_checkpoints.memory(world.job()).failures == 0
    assert policy_times(world)[-1] - world.committed[0].created_at <= 60 + SLACK_S  # at its usual pace again


def test_an_eviction_goes_first_and_the_next_attempt_begins_anew(monkeypatch):
    world = world_of(monkeypatch, "60s")
    world.run(lambda: len(world.committed) == 1)
    world.evict()
    world.run(lambda: len(world.started) == 2)
    assert [goes_on for *_, goes_on in world.asked] == [True, False]
    world.run(lambda: len(policy_times(world)) == 2)
    began = attempt_records.history(world.job())[-1].first_step_at
    assert 60 <= policy_times(world)[-1] - began <= 60 + SLACK_S
    assert len(attempt_records.history(world.job())) == 2


def test_an_eviction_in_the_middle_of_one(monkeypatch):
    world = world_of(monkeypatch, "60s")
    world.save_s = 6.0
    world.run(lambda: len(world.asked) == 1)
    world.evict()
    world.run(lambda: len(world.started) == 2)
    assert world.started[1][1] == world.committed[-1].step
    assert attempt_records.history(world.job())[0].checkpoint == world.committed[-1].id


@pytest.mark.parametrize("how", ["trains", "evicted", "suspended", "finished"])
def test_only_a_job_that_trains_is_asked(monkeypatch, how):
    world = world_of(monkeypatch, "60s")
    replica = world.replicas[0]
    before = attempt_records.history(world.job())[0]
    if how == "evicted":
        world.save_fails = True
        world.evict()
        world.run(lambda: bool(world.job()["spec"]["suspend"]))
    elif how == "suspended":
        world.kube.patch_job("team", "train", {"spec": {"suspend": True}})
    elif how == "finished":
        done = {"type": "Complete", "status": "True", "lastTransitionTime": "2027-01-15T08:02:00Z"}
        world.kube.patch(JOB, "team", "train", {"status": {"conditions": [done]}}, subresource="status")
    world.now = before.first_step_at + 500
    replica.act(lambda: replica.reconciler.handle(TASK))
    replica.act(lambda: replica.reconciler.handle(TASK))
    assert (user_requests.asked(world.job(), user_requests.CHECKPOINT) is not None) is (how == "trains")


def test_the_controller_sleeps_in_between(monkeypatch):
    world = world_of(monkeypatch, "200s", report_s=1e9)
    replica = world.replicas[0]
    looks = []
    handle = replica.reconciler.handle
    monkeypatch.setattr(replica.reconciler, "handle", lambda task: (looks.append(world.now), handle(task)))
    settled = world.now + 10
    world.run(lambda: len(policy_times(world)) == 1)
    assert [at for at in looks if settled < at < policy_times(world)[0] - SLACK_S] == []
