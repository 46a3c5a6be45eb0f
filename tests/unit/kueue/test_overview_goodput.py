"""Goodput from attempt records, against cases that were worked out by hand."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overview_scene import record

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.overview.goodput import Goodput, of_history
from singularity_proxy.protocol.messages import Gpus

# 0 s admitted, 10 s runs, 20 s first step; barrier at 100, committed at 130, released at 150: steps 0 to 79 in 80 s.
SAVED = record(
    admitted_at=0.0, queued_at=-5.0, running_at=10.0, first_step_at=20.0, first_step=0, last_step=79, evicted_at=98.0,
    barrier_at=100.0, committed_at=130.0, released_at=150.0, ended_by="Preempted", checkpoint="a1",
)  # fmt: skip
# Goes on at step 80 after 50 s in the queue, is up 25 s later, and ends at 300 s after 25 steps.
AFTER = record(
    2, admitted_at=200.0, queued_at=150.0, running_at=220.0, first_step_at=225.0, first_step=80, last_step=104,
    finished_at=300.0, ended_by="Finished", restored_from="a1",
)  # fmt: skip


def times(found: Goodput) -> dict[str, float]:
    """What is not 0."""
    return {f.name: getattr(found, f.name) for f in fields(found) if getattr(found, f.name)}


def test_a_move_without_loss() -> None:
    found = of_history([SAVED, AFTER], 999.0, holds=False)
    assert times(found) == {
        "attempts": 2, "held_s": 250.0, "starting_s": 20.0, "restoring_s": 25.0, "training_s": 155.0, "saving_s": 30.0,
        "releasing_s": 20.0, "waited_s": 55.0, "steps": 105,
    }  # fmt: skip
    assert found.share == 155 / 250 and found.useful_s == 155 and found.gpu_utilisation is None


def test_times_are_those_of_all_pods() -> None:
    one, four = of_history([SAVED], 0.0, False), of_history([replace(SAVED, pods=4)], 0.0, False)
    for name in ("held_s", "starting_s", "training_s", "saving_s", "releasing_s", "waited_s"):
        assert getattr(four, name) == 4 * getattr(one, name) > 0
    assert four.steps == one.steps and four.share == one.share


def test_a_large_job_weighs_more_than_a_small_one() -> None:
    idle = record(admitted_at=0.0, pods=9, released_at=150.0, evicted_at=150.0, ended_by="Preempted")
    both = of_history([SAVED], 0.0, False) + of_history([idle], 0.0, False)
    assert both.share == 80 / (150 + 9 * 150)


def test_steps_that_are_run_again_do_not_count() -> None:
    """80 steps in 80 s, of which 20 were run again: 60 s of 150 s were of use."""
    again = replace(AFTER, first_step=60, last_step=60)
    found = of_history([SAVED, again], 0.0, False)
    assert found.steps_lost == 20 and found.lost_s == 20.0
    assert found.useful_s == (80 - 20) + 75


def test_steps_of_two_attempts_are_lost_to_a_third_one_that_begins_before_both() -> None:
    """The second did steps 80 to 104 in 75 s: all lost. Of the first, 30 of 80 are. An attempt without a step between
    them hides nothing."""
    stillborn = record(3, admitted_at=310.0, released_at=320.0, evicted_at=320.0, ended_by="Preempted")
    third = record(4, admitted_at=400.0, first_step_at=400.0, first_step=50, last_step=50, finished_at=410.0)
    found = of_history([SAVED, AFTER, stillborn, third], 0.0, False)
    assert found.steps_lost == 30 + 25 and found.lost_s == 30.0 + 75.0
    assert found.useful_s == 50 + 0 + 10
    assert found.steps == 80 + 25 + 1


def test_an_attempt_that_runs_counts_until_now() -> None:
    runs = record(admitted_at=0.0, running_at=30.0, first_step_at=40.0, first_step=0, last_step=9)
    assert times(of_history([runs], 140.0, holds=True)) == {
        "attempts": 1, "held_s": 140.0, "starting_s": 40.0, "training_s": 100.0, "steps": 10,
    }  # fmt: skip


def test_an_attempt_that_starts_has_trained_nothing_yet() -> None:
    starts = record(admitted_at=0.0, restored_from="a1")
    found = of_history([starts], 60.0, holds=True)
    assert times(found) == {"attempts": 1, "held_s": 60.0, "restoring_s": 60.0} and found.share == 0.0


def test_an_eviction_without_a_checkpoint_ends_the_training() -> None:
    killed = replace(SAVED, barrier_at=None, committed_at=None, checkpoint=None)
    found = of_history([killed], 0.0, False)
    assert (found.training_s, found.saving_s, found.releasing_s) == (78.0, 0.0, 52.0)


def test_a_checkpoint_in_vain_is_time_of_saving() -> None:
    found = of_history([replace(SAVED, committed_at=None, checkpoint=None)], 0.0, False)
    assert (found.training_s, found.saving_s, found.releasing_s) == (80.0, 50.0, 0.0)


def test_an_end_that_nobody_saw_is_told_and_counts_until_the_last_known_moment() -> None:
    found = of_history([replace(SAVED, released_at=None)], 9999.0, holds=False)
    assert found.unseen_ends == 1 and found.held_s == 130.0
    assert of_history([replace(SAVED, released_at=None)], 9999.0, holds=True).held_s == 9999.0


@pytest.mark.parametrize(("ranks", "useful"), [(1, 90.0), (4, 70.0)])
def test_a_program_without_steps_trains_as_soon_as_it_may_be_thought_to(ranks: int, useful: float) -> None:
    silent = record(admitted_at=0.0, running_at=10.0, finished_at=100.0, ranks=ranks)
    assert of_history([silent], 0.0, False, stepless=True).useful_s == useful
    assert of_history([silent], 0.0, False).useful_s == 0.0


def test_utilisation_is_the_mean_over_gpu_seconds() -> None:
    """90 % of 8 GPUs for 100 s, and 30 % of 2 GPUs for 200 s: 840 of 1200 GPU-seconds."""
    first = record(admitted_at=0.0, running_at=50.0, released_at=150.0, gpus=Gpus(8, 90.0))
    second = record(2, admitted_at=200.0, running_at=200.0, finished_at=400.0, gpus=Gpus(2, 30.0))
    untold = record(3, admitted_at=500.0, running_at=500.0, finished_at=900.0, gpus=Gpus(64, None))
    found = of_history([first, second, untold], 0.0, False)
    assert found.gpu_s == 1200.0 and found.gpu_utilisation == pytest.approx(70.0)


def test_nothing_held_has_no_share() -> None:
    assert Goodput().share is None and of_history([], 0.0, False) == Goodput()


MOMENTS = ("queued_at", "running_at", "first_step_at", "evicted_at", "barrier_at", "committed_at", "released_at",
           "finished_at")  # fmt: skip
moment = st.none() | st.floats(0, 1e6)
attempt = st.builds(
    lambda moments, **rest: record(**dict(zip(MOMENTS, moments, strict=True)), **rest),
    st.tuples(*[moment] * len(MOMENTS)), admitted_at=st.floats(0, 1e6), pods=st.integers(0, 64),
    first_step=st.none() | st.integers(0, 100), last_step=st.none() | st.integers(0, 100),
    restored_from=st.none() | st.just("a"),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(attempt, max_size=4), st.floats(0, 1e6), st.booleans(), st.booleans())
def test_whatever_the_records_say_every_second_is_counted_once(
    history: list[AttemptRecord], now: float, holds: bool, stepless: bool
) -> None:
    found = of_history(history, now, holds, stepless)
    parts: list[Any] = [found.starting_s, found.restoring_s, found.training_s, found.saving_s, found.releasing_s]
    assert math.isclose(sum(parts), found.held_s, rel_tol=1e-9, abs_tol=1e-3) and min(parts) >= 0
    assert 0 <= found.lost_s <= found.training_s * (1 + 1e-9) and 0 <= found.steps_lost <= found.steps
    assert found.share is None or 0 <= found.share <= 1 + 1e-9
    assert found.attempts == len(history)
