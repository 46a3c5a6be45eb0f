"""What the policies are for, played out on one queue with moves that cost."""

from __future__ import annotations

from functools import cache, partial
from statistics import fmean

import pytest
from planner_play import Outcome, Sim, play, workload

from kueue_integration.planner.arbiter import Limits
from kueue_integration.planner.policies import Policy, attained_service, sla_tiers, time_sharing

LIMITS = Limits(300.0, 4, 100)
SEEDS = range(3)
LEAST: Policy = partial(attained_service.propose, thresholds=[3600.0, 36_000.0], promote_after=8.0, min_run_s=300.0)
TURNS: Policy = partial(time_sharing.propose, quantum_s=900.0)


def both(name: str, policy: Policy, **how: float) -> tuple[list[Outcome], list[Outcome]]:
    """Without and with the policy, for each seed."""
    plain = without(tuple(how.items()))
    return plain, [play(workload(seed, **how), (name, policy), LIMITS) for seed in SEEDS]  # type: ignore[arg-type]


@cache
def without(how: tuple[tuple[str, float], ...]) -> list[Outcome]:
    return [play(workload(seed, **dict(how)), None, LIMITS) for seed in SEEDS]  # type: ignore[arg-type]


def first_start(outcomes: list[Outcome]) -> float:
    return fmean(o.first_start_s for o in outcomes)


def completion(outcomes: list[Outcome]) -> float:
    return fmean(o.completion_s for o in outcomes)


def test_least_attained_service_shortens_the_completion_of_heavy_tailed_jobs() -> None:
    plain, with_it = both("attainedService", LEAST)
    assert completion(with_it) < 0.9 * completion(plain)
    assert first_start(with_it) < 0.5 * first_start(plain)
    assert fmean(o.moves for o in with_it) < 2 * 60  # two moves for each job


def test_time_sharing_starts_jobs_earlier() -> None:
    plain, with_it = both("timeSharing", TURNS)
    assert first_start(with_it) < 0.3 * first_start(plain)
    assert completion(with_it) < completion(plain)
    assert fmean(o.moves for o in with_it) < 60


@pytest.mark.parametrize(("name", "policy"), [("attainedService", LEAST), ("timeSharing", TURNS)])
def test_where_all_jobs_are_alike_completion_is_later_as_their_pages_say(name: str, policy: Policy) -> None:
    plain, with_it = both(name, policy, spread=0.05, median_s=1200.0)
    assert completion(with_it) > completion(plain)
    assert first_start(with_it) < first_start(plain)


def test_tiers_bring_who_was_promised_more_nearer_to_it() -> None:
    def jobs(seed: int) -> list[Sim]:
        made = workload(seed)
        for number, job in enumerate(made):
            job.kind = "premium" if number % 4 == 0 else "basic"
        return made

    policy = partial(sla_tiers.propose, tiers={"premium": 0.9, "basic": 0.1}, window_s=3600.0, min_run_s=300.0)
    plain = [play(jobs(seed), None, LIMITS) for seed in SEEDS]
    with_it = [play(jobs(seed), ("slaTiers", policy), LIMITS) for seed in SEEDS]
    before, after = (fmean(o.delivered["premium"] for o in outcomes) for outcomes in (plain, with_it))
    assert after > before + 0.15


@pytest.mark.parametrize("policy", [("attainedService", LEAST), ("timeSharing", TURNS)], ids=["service", "turns"])
def test_an_idle_cluster_moves_nobody(policy: tuple[str, Policy]) -> None:
    quiet = play(workload(1, jobs=10, gap_s=5000.0), policy, LIMITS)
    assert quiet.moves == 0
