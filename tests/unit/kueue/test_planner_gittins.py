"""The Gittins index, and least attained service with a history of what jobs needed."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import planner_scene as scene
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_scene import NOW

from kueue_integration.planner import gittins
from kueue_integration.planner.policies import attained_service
from kueue_integration.planner.settings import AttainedService, PlannerSettings, problem

STEPS = [1000.0, 10_000.0]
SHARES = [place / 200 for place in range(200)]
MEMORYLESS = [-1000 * math.log(1 - share) for share in SHARES]
HEAVY = [100 * (1 - share) ** -1.2 - 100 for share in SHARES]
ALIKE = [9000.0 + place for place in range(101)]


def test_what_an_exponential_job_has_had_tells_nothing() -> None:
    found = [gittins.index(had, MEMORYLESS) for had in (0.0, 200.0, 700.0, 1400.0)]
    assert found == pytest.approx([1 / 1000] * 4, rel=0.1)


def test_with_heavy_tails_the_index_falls_and_where_jobs_are_alike_it_grows() -> None:
    falls = [gittins.index(had, HEAVY) for had in (0.0, 100.0, 1000.0, 10_000.0)]
    assert all(first > 1.8 * second for first, second in pairwise(falls))
    grows = [gittins.index(had, ALIKE) for had in (0.0, 5000.0, 8000.0, 9050.0)]
    assert all(2 * first < second * 1.2 for first, second in pairwise(grows))
    assert gittins.index(0.0, ALIKE) == pytest.approx(1 / 9050, rel=1e-6), "the mean need, as all end with the last"


def test_of_two_sizes_the_short_one_is_waited_for() -> None:
    """Half need up to 10, half up to 1000: a job that is new ends soon, one that has had 10 does not."""
    both = [0.0, 10.0, 1000.0]
    assert gittins.index(0.0, both) == pytest.approx(0.5 / (10 * 0.75))
    assert gittins.index(10.0, both) == pytest.approx(1 / 495)
    assert gittins.index(1000.0, both) == 0.0, "longer than all of them"


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=30, unique=True), st.floats(0, 2e9))
def test_it_is_never_below_the_rate_until_the_last_one(needs: list[int], had: float) -> None:
    history = [float(need) for need in sorted(needs)]
    found = gittins.index(had, history)
    assert (found == 0.0) == (had >= history[-1])
    assert found == 0.0 or found >= 0.999 / (history[-1] - had)
    assert sorted(gittins.ranks(STEPS, history))[0] == 0


def _served(*history: float) -> dict[str, tuple[int, int]]:
    """Priority and gain of one job that has had 2000 device-seconds, and another one waits."""
    shown = scene.snapshot(scene.job("old"), scene.waiting())
    found = attained_service.propose(shown, STEPS, 8.0, 60.0, history)
    return {p.job[1]: (p.priority, round(p.gain_device_seconds)) for p in found}


def test_queues_come_in_the_order_of_their_indices() -> None:
    assert gittins.ranks(STEPS, HEAVY) == [0, 1, 2]
    assert gittins.ranks(STEPS, ALIKE) == [0, 0, 2], "10,000 is more than any of them needed"
    assert gittins.ranks([5000.0, 8000.0], ALIKE) == [2, 1, 0]
    assert _served() == {"old": (9, 2000)}
    priority, gain = _served(*HEAVY)["old"]
    assert priority == 9 and gain > 2000, "who has had so much needs more than that"


def test_who_is_nearly_done_is_not_sent_away_for_a_new_one() -> None:
    nearly = [2100.0 + place for place in range(101)]
    assert gittins.ranks([1000.0], nearly) == [1, 0]
    shown = scene.snapshot(scene.job("old"), scene.waiting())
    found = attained_service.propose(shown, [1000.0], 8.0, 60.0, nearly)
    assert {p.job[1] for p in found} == {scene.waiting().key[1]}, "the new one is put behind it"


def test_who_starves_is_first_whatever_the_history_says() -> None:
    run = scene.record(1, admitted_at=NOW - 2100, first_step_at=NOW - 2080, released_at=NOW - 2090)
    starves = replace(scene.waiting(), attempts=(run,))
    assert attained_service.served(starves, NOW, 8.0) == 0.0
    assert attained_service.propose(scene.snapshot(starves), [5000.0], 8.0, 60.0, ALIKE) == []
    (new,) = attained_service.propose(scene.snapshot(scene.waiting()), [5000.0], 8.0, 60.0, ALIKE)
    assert new.priority == 9, "who has not run yet is behind those who have had half"


@pytest.mark.parametrize("history", [[5.0], [5.0, 5.0], [7.0, 5.0]])
def test_a_history_that_is_none_is_refused(history: list[float]) -> None:
    wrong = PlannerSettings(attained_service=AttainedService(history=history))
    assert problem(wrong).startswith("attained_service.history = [")
