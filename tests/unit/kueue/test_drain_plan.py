"""The rules of a drain, without a cluster: whose turn it is, what is asked next, and what was lost."""

from __future__ import annotations

import random
from dataclasses import replace

import kueue_samples as samples
import pytest
from drain_world import ADMITTED, pod

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.drain import plan
from kueue_integration.drain.look import Look, Refusal, look, steps_lost
from kueue_integration.drain.plan import Ask, Move, Stage
from kueue_integration.jobs.status import summarise
from kueue_integration.requests.verbs import Result

KEY = ("default", "digits")
TURN = Move(KEY, Stage.TURN, since=0.0, attempt=1)
TRAINED = samples.attempt(running_at=110.0, first_step=0, first_step_at=120.0)
STARTED = samples.attempt(running_at=110.0)
"""It has not made a step yet: there is nothing to save."""


def seen(*pods: object, record: AttemptRecord = TRAINED, **job: object) -> Look:
    made = samples.job(history=[record], **job)  # type: ignore[arg-type]
    return look(made, samples.workload(*ADMITTED), pods or [pod("digits", "n1")], ["n1"], "ann")  # type: ignore


def result(op: str, state: str, number: str = "r1") -> Result:
    return Result(*KEY, op, number, state, "words")  # type: ignore[arg-type]


def test_turns_go_to_high_priority_and_to_no_more_than_so_many() -> None:
    moves = [Move(("a", name), priority=p) for name, p in (("x", 1), ("y", 5), ("z", 5))]
    assert plan.due(moves, 2) == [("a", "y"), ("a", "z")]
    assert plan.due([*moves, TURN], 2) == [("a", "y")]
    assert plan.due([*moves, replace(TURN, stage=Stage.OVERDUE)], 1) == []
    assert plan.due([*moves, replace(TURN, stage=Stage.STAYS)], 1) == [("a", "y")]


def test_any_order_of_turns_keeps_the_limit() -> None:
    """Random ends of random moves: never more under way than allowed, and everybody gets a turn or a reason."""
    chance = random.Random(7)
    for _ in range(200):
        at_once = chance.randint(1, 4)
        moves = {("a", str(n)): Move(("a", str(n)), priority=chance.randint(0, 2)) for n in range(chance.randint(0, 9))}
        while any(not m.stage.final for m in moves.values()):
            for key in plan.due(moves.values(), at_once):
                moves[key] = plan.begin(moves[key], 0.0)
            under_way = [m for m in moves.values() if m.stage is Stage.TURN]
            stuck = [m for m in moves.values() if m.stage is Stage.OVERDUE]
            assert len(under_way) + len(stuck) <= at_once
            if under_way:
                ends = chance.choice(under_way)
                moves[ends.key] = replace(ends, stage=chance.choice([Stage.AWAY, Stage.STAYS, Stage.OVERDUE]))
            moves = plan.over(moves, at_once)
        assert all(m.stage is not Stage.STAYS or m.refusal is not None or m.since == 0.0 for m in moves.values())


@pytest.mark.parametrize(
    ("move", "look_", "ask"),
    [
        (TURN, seen(), Ask.SAVE),
        (replace(TURN, saved=True), seen(), Ask.LEAVE),
        (TURN, seen(record=STARTED), Ask.LEAVE),
        (TURN, seen(suspend=True), None),
        (TURN, seen(pod("digits", "n2")), None),
        (replace(TURN, stage=Stage.SAVING), seen(), None),
        (replace(TURN, stage=Stage.LEAVING), seen(), None),
        (replace(TURN, stage=Stage.OVERDUE), seen(), None),
        (Move(KEY), seen(), None),
        (TURN, Look(None, ("n1",)), None),
    ],
)
def test_what_is_asked_next(move: Move, look_: Look, ask: Ask | None) -> None:
    assert plan.wanted(move, look_) is ask


def test_a_save_of_somebody_else_serves_as_well() -> None:
    periodic = replace(seen(), save=result("checkpoint", "running", "other"))
    move = plan.advance(TURN, periodic, 1.0, 60.0)
    assert (move.stage, move.asked) == (Stage.SAVING, periodic.save)
    done = plan.advance(move, replace(periodic, save=result("checkpoint", "done", "other")), 2.0, 60.0)
    assert done.saved and plan.wanted(done, periodic) is Ask.LEAVE


def test_a_save_that_an_eviction_overtakes_is_no_failure() -> None:
    saving = replace(TURN, stage=Stage.SAVING, asked=result("checkpoint", "running"))
    overtaken = replace(seen(), stopping=True, save=result("checkpoint", "failed"))
    assert plan.advance(saving, overtaken, 1.0, 60.0).stage is Stage.TURN


def test_a_failed_move_says_so() -> None:
    leaving = replace(TURN, stage=Stage.LEAVING, asked=result("migrate", "running"))
    move = plan.advance(leaving, replace(seen(), change=result("migrate", "failed")), 1.0, 60.0)
    assert move.stage is Stage.STAYS and move.refusal is not None and "its move failed: words" in move.refusal.why


def test_waiting_counts_only_after_a_while() -> None:
    waits = replace(seen(pod("digits", "n2")), stopping=True)
    assert waits.status is not None
    waits = replace(waits, on=(), status=replace(waits.status, phase="Preempted", queue="training"))
    move = plan.advance(replace(TURN, stage=Stage.LEAVING), waits, 1.0, 60.0)
    assert (move.stage, move.waits_since) == (Stage.LEAVING, 1.0)
    admitted = replace(waits, status=replace(waits.status, phase="Admitted"))  # type: ignore[type-var]
    assert plan.advance(move, admitted, 5.0, 60.0).waits_since is None
    assert plan.advance(move, waits, 1.0 + plan.WAITS_S, 60.0).stage is Stage.AWAY


@pytest.mark.parametrize("stage", [Stage.TURN, Stage.SAVING, Stage.LEAVING])
def test_every_stage_has_a_time_limit(stage: Stage) -> None:
    asked = result("checkpoint" if stage is Stage.SAVING else "migrate", "running")
    slow = replace(seen(), save=asked, change=asked, stopping=stage is Stage.TURN)
    move = replace(TURN, stage=stage, asked=asked)
    assert not plan.advance(move, slow, 59.0, 60.0).stage.final
    assert plan.advance(move, slow, 60.0, 60.0).stage is Stage.OVERDUE


def test_a_refusal_waits_until_an_eviction_is_over() -> None:
    barred = replace(seen(), refusal=Refusal("its hold is off", "fix"))
    assert plan.advance(TURN, barred, 1.0, 60.0).stage is Stage.STAYS
    assert plan.advance(TURN, replace(barred, stopping=True), 1.0, 60.0).stage is Stage.TURN


def test_a_job_without_the_annotation_is_plain_kueue() -> None:
    plain = samples.job(history=[TRAINED])
    del plain["metadata"]["annotations"][job_names.ANN_HOLD]
    found = look(plain, samples.workload(*ADMITTED), [pod("digits", "n1")], ["n1"], "ann").refusal
    assert found is not None and "its hold is off" in found.why


@pytest.mark.parametrize(
    ("left", "after", "saved", "lost"),
    [
        ({"ended_by": "Migrated", "last_step": 60}, {"first_step": 61}, None, 0),
        ({"ended_by": "Deleted", "last_step": 60}, {"first_step": 41}, None, 20),
        ({"ended_by": "Migrated", "last_step": 60}, None, samples.saved(1, 61), 0),
        ({"ended_by": "Deleted", "last_step": 60}, None, samples.saved(1, 50), 11),
        ({"ended_by": "Deleted", "last_step": 60}, {"first_step": None}, None, 61),
        ({"ended_by": "Finished", "last_step": 60}, None, None, 0),
        ({"last_step": 60}, None, None, 0),
    ],
)
def test_steps_that_were_lost(left: dict, after: dict | None, saved: object, lost: int) -> None:  # type: ignore
    history = [samples.attempt(1, **left), *([samples.attempt(2, **after)] if after is not None else [])]
    status = summarise(samples.job(history=history, checkpoint=saved), samples.workload(), [])  # type: ignore
    assert steps_lost(status, 1) == lost
    assert steps_lost(status, 3) == 0


def test_steps_that_were_lost_with_checkpoints_that_were_not_restored() -> None:
    tries = [samples.attempt(2 + n, ended_by="Deleted", first_step=step) for n, step in enumerate((61, 61, 61, 41))]
    history = [
        samples.attempt(1, ended_by="Migrated", last_step=60), *tries,
        samples.attempt(6, ended_by="Preempted", first_step=21, last_step=30), samples.attempt(7, first_step=1),
    ]  # fmt: skip
    status = summarise(samples.job(history=history), samples.workload(), [])
    assert (steps_lost(status, 1), steps_lost(status, 6)) == (40 + 30, 30)
