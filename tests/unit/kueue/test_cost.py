"""What a job has cost: prices of its attempts, pods and hours with quota; only steps that count are paid for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_scene import record

from kueue_integration.jobs import cost
from kueue_integration.overview import goodput

HOUR = 3600.0
FIRST = record(
    1, admitted_at=0.0, first_step=0, first_step_at=60.0, last_step=99, evicted_at=HOUR - 10, released_at=HOUR,
    ended_by="Preempted", price=3.0, pods=2,
)  # fmt: skip
SECOND = record(2, admitted_at=2 * HOUR, first_step=100, first_step_at=2 * HOUR + 60, last_step=299, price=0.5, pods=4)


def test_each_attempt_costs_its_own_price_for_the_time_with_quota():
    spent = cost.of_history([FIRST, SECOND], 3 * HOUR, True)
    assert (spent.amount, spent.steps, spent.attempts) == (2 * 3.0 + 4 * 0.5, 300, 2)
    assert spent.per_step == pytest.approx(8.0 / 300)


def test_steps_that_were_run_again_are_paid_for_and_not_counted():
    again = replace(SECOND, first_step=40)
    assert cost.of_history([FIRST, again], 3 * HOUR, True).steps == 40 + 260


def test_attempts_without_a_price_are_left_out():
    free = replace(FIRST, price=None)
    spent = cost.of_history([free, SECOND], 3 * HOUR, True)
    assert (spent.amount, spent.steps, spent.attempts) == (2.0, 200, 1)
    assert cost.of_history([free], HOUR, False) == cost.Cost()
    assert cost.Cost().per_step is None


def test_an_attempt_whose_end_was_not_seen_counts_until_its_last_known_time():
    lost = replace(FIRST, released_at=None)
    assert cost.of_history([lost], 9 * HOUR, False).amount == pytest.approx(6.0 * (HOUR - 10) / HOUR)


def test_a_clock_that_went_back_gives_nothing_back():
    assert cost.of_history([SECOND], 0.0, True).amount == 0.0


def test_goodput_adds_the_costs_of_jobs():
    one = goodput.of_history([FIRST], 9 * HOUR, False)
    two = goodput.of_history([SECOND], 3 * HOUR, True)
    assert (one.cost, two.cost) == (6.0, 2.0)
    assert (one + two).cost_per_step == pytest.approx(8.0 / 300)
    assert goodput.Goodput().cost_per_step is None
