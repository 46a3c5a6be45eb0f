"""What records tell the planner: costs, service and speeds; and the fit of a speed against workers."""

from __future__ import annotations

from dataclasses import replace

import planner_scene as scene
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_scene import NOW

from kueue_integration.planner import measure, speed_model


def test_a_move_costs_what_saves_and_restores_took():
    past = (scene.moved(1, 9000, save=30, restore=10), scene.moved(2, 4000, save=10, restore=20))
    job = scene.job(history=past)
    assert (measure.save_s(job), measure.restore_s(job)) == (pytest.approx(20), pytest.approx(15))
    assert measure.cost(job) == pytest.approx(2 * 35)
    assert measure.save_s(scene.job()) is None  # nothing measured yet
    first = scene.moved(1, 9000, save=30)
    before = replace(first, barrier_at=first.evicted_at - 25, committed_at=first.evicted_at - 1)
    assert measure.save_s(scene.job(history=(before,))) == pytest.approx(55), "it was saved before the eviction"
    assert measure.cost(replace(scene.job(), devices_per_pod=8)) == 16 * 2 * measure.UNKNOWN_S


def test_a_first_move_costs_what_the_size_of_the_checkpoint_tells():
    small, large = (measure.cost(replace(scene.job(), saved_bytes=size)) / 2 for size in (200_000_000, 10**12))
    assert 40 < small < 60 < measure.cost(scene.job()) / 2 < 4000 < large
    measured = replace(scene.job(history=(scene.moved(1, 5000),)), saved_bytes=10**12)
    assert measure.cost(measured) == measure.cost(replace(measured, saved_bytes=None)), "what was measured counts"


def test_service_is_devices_times_time_with_quota():
    job = scene.job(history=(scene.moved(1, 2000),))  # 600 s and 10 s of its save, then 1000 s until now
    assert measure.attained(job, NOW) == pytest.approx(2 * (610 + 1000))
    assert measure.attained(job, NOW, since=NOW - 500) == pytest.approx(2 * 500)
    assert measure.attained(replace(job, given=None), NOW, since=NOW - 500) == 0


def test_a_clock_that_went_back_gives_no_negative_service():
    assert measure.attained(scene.job(), NOW - 50_000) == 0


def test_speeds_by_workers_and_flavor():
    one = scene.record(1, pods=1, first_step_at=NOW - 5000, last_step=100, evicted_at=NOW - 4000, ended_by="Resized")
    job = replace(scene.job(history=(one,)), steps_done=201, steps_seen_at=NOW)
    small, now = measure.speeds(job)
    assert (small.workers, small.flavor, small.steps_per_s) == (1, "a100", pytest.approx(0.1))
    assert (now.workers, now.steps_per_s) == (2, pytest.approx(200 / 980))
    assert measure.speeds(scene.job()) == []  # no step is known yet


def test_steps_left_in_our_counting():
    job = replace(scene.job(), steps_done=400, steps_total=1000, steps_printed=100)
    assert measure.steps_left(job) == 3600  # four boundaries for each step that it prints
    assert measure.steps_left(scene.job()) is None


@given(st.floats(0.01, 100), st.floats(0.0, 10), st.floats(0.0, 1))
def test_the_fit_finds_the_model_that_made_the_times(a, b, c):
    made = speed_model.Model(a, b, c)
    found = speed_model.fit({w: made.step_s(w) for w in (1, 2, 4, 8)})
    assert found is not None
    for workers in (1, 2, 3, 4, 8, 16):
        assert found.step_s(workers) == pytest.approx(made.step_s(workers), rel=1e-3, abs=1e-6)


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1e3), min_size=2, max_size=8))
def test_no_fit_has_a_negative_part(times):
    found = speed_model.fit(times)
    assert found is not None and min(found.a, found.b, found.c) >= 0
    assert all(found.step_s(w) >= 0 for w in range(1, 100))


def test_one_size_says_nothing_about_another():
    assert speed_model.fit({4: 1.0}) is None
    assert speed_model.fit({}) is None
