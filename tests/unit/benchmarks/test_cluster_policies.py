"""Each policy on a scene that it is for: what it proposes, and that it proposes nothing where it should not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.cluster import policies
from benchmarks.cluster.model import HELD, Cluster, Flavor, Job, Setting, Tier
from benchmarks.cluster.policies import HOUR_S, POLICIES
from benchmarks.cluster.seam import Action, Policy, Priority, Resize, Seen, View, nobody
from benchmarks.cluster.simulator import Simulation

SPEEDS = {"v100": 1.0, "p100": 0.5}


def seen(number: int, devices: int, placement: dict[int, int] | None = None, **more: Any) -> Seen:
    """A job that runs on `devices`, or waits for 8 where that is 0."""
    runs = devices > 0
    values: dict[str, Any] = {
        "tenant": 0, "tier": Tier.STANDARD, "arrival_s": float(number), "workers": devices or 8, "least": devices or 8,
        "most": devices or 8, "one_node": False, "priority": 0, "goal": devices or 8, "flavor": "v100" if runs else "",
        "placement": placement or ({0: devices} if runs else {}), "packed": True, "left_s": 10 * HOUR_S,
        "attained_device_s": 0.0, "attained_s": 0.0, "since_s": 2 * HOUR_S, "delivered": 1.0, "alpha": 1.0,
        "speeds": SPEEDS, "leaving_s": 20.0, "coming_s": 30.0,
    }  # fmt: skip
    return Seen(id=number, running=runs, devices=devices, **{**values, **more})


def view(*jobs: Seen, free: tuple[int, ...] = (0, 0), p100: tuple[int, ...] | None = None) -> View:
    rooms = {"v100": free} | ({"p100": p100} if p100 is not None else {})
    devices = {flavor: 8 * len(nodes) for flavor, nodes in rooms.items()}
    return View(9e5, jobs, rooms, {"v100": 2.48, "p100": 1.46}, devices, [16])


def done(actions: list[Action] | tuple[Action, ...]) -> list[tuple]:
    return [
        (a.id, a.value) if isinstance(a, Priority)
        else (a.id, a.devices) if isinstance(a, Resize)
        else (a.id, a.flavor, a.node)
        for a in actions
    ]  # fmt: skip


SMALL = seen(1, 4, {0: 4}, workers=8, least=2, most=8)


@pytest.mark.parametrize(
    ("scene", "wanted"),
    [
        (view(SMALL, free=(4, 0)), [(1, 8)]),
        (view(SMALL, free=(3, 0)), []),
        (view(SMALL, seen(2, 0, least=4), free=(4, 0)), []),
        (view(SMALL._replace(left_s=100.0), free=(4, 0)), []),
        (view(SMALL, free=(2, 2)), []),
    ],
    ids=["quota is free", "not enough", "another one waits", "nearly done", "it would be spread"],
)
def test_regrowth(scene: View, wanted: list[tuple]) -> None:
    assert done(list(policies.regrow(scene))) == wanted


def test_regrowth_by_quota_spreads() -> None:
    assert done(list(policies.regrow_by_quota(view(SMALL, free=(2, 2))))) == [(1, 8)]


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        (seen(1, 8, attained_device_s=2 * HOUR_S), [(1, -1)]),
        (seen(1, 8, attained_device_s=50 * HOUR_S, priority=-1), [(1, -2)]),
        (seen(1, 8, attained_device_s=0.5 * HOUR_S), []),
        (seen(1, 8, attained_device_s=2 * HOUR_S, since_s=60.0), []),
        (seen(1, 0, attained_device_s=2 * HOUR_S, attained_s=900.0, priority=-1), []),
        (seen(1, 0, attained_device_s=2 * HOUR_S, attained_s=600.0, priority=-1), [(1, 0)]),
    ],
    ids=["sinks", "sinks further", "has had little", "has just come", "waits not long", "starves"],
)
def test_least_attained_service(job: Seen, wanted: list[tuple]) -> None:
    assert done(list(policies.least_attained(view(job)))) == wanted


@pytest.mark.parametrize(
    ("jobs", "wanted"),
    [
        ([seen(1, 8), seen(2, 0)], [(1, -1)]),
        ([seen(1, 8), seen(2, 0, tenant=1)], []),
        ([seen(1, 8, since_s=60.0), seen(2, 0)], []),
        ([seen(1, 8, since_s=60.0), seen(2, 0, priority=-1)], [(2, 0)]),
        ([seen(1, 8, since_s=60.0), seen(2, 0, priority=-1, since_s=60.0)], []),
    ],
    ids=["its turn is over", "nobody of its queue waits", "has just come", "its turn comes", "has just left"],
)
def test_time_sharing(jobs: list[Seen], wanted: list[tuple]) -> None:
    assert done(list(policies.time_sharing(view(*jobs)))) == wanted


def test_marginal_gain_gives_devices_to_whom_they_help_most() -> None:
    elastic = {"workers": 4, "least": 1, "most": 8, "leaving_s": 5.0}
    long, short = seen(1, 4, {0: 4}, left_s=40 * HOUR_S, **elastic), seen(2, 4, {0: 4}, left_s=HOUR_S, **elastic)
    assert done(list(policies.marginal_gain(view(long, short, free=(0, 8))))) == [(1, 8), (2, 8)]
    # With one node only the long one gets more, and the short one gives only where somebody waits for it.
    assert done(list(policies.marginal_gain(view(long, short, free=(0,))))) == []
    # Of two alike the one that does not scale gets its least.
    poor, good = (seen(n, 4, {0: 4}, left_s=40 * HOUR_S, **elastic, alpha=a) for n, a in ((1, 0.1), (2, 1.0)))
    assert (
        done(list(policies.marginal_gain(view(poor, good, seen(3, 0, workers=1, least=1, most=1), free=(0,)))))[0][0]
        == 1
    )


def test_marginal_gain_shrinks_for_those_who_wait() -> None:
    elastic = {"workers": 8, "least": 2, "most": 8}
    actions = policies.marginal_gain(view(seen(1, 8, **elastic), seen(2, 0, **elastic), free=(0,)))
    assert done(list(actions)) == [(1, 4), (2, 4)]


def test_defragmentation_empties_the_cheapest_node() -> None:
    small, dear = seen(1, 2, {0: 2}), seen(2, 2, {1: 2}, coming_s=300.0)
    waiting = seen(3, 0, one_node=True)
    scene = view(small, dear, seen(4, 6, {2: 6}), waiting, free=(6, 6, 2))
    assert done(list(policies.defragmentation(scene))) == [(1, "v100", 2)]
    fits = view(small, waiting._replace(goal=6, workers=6), free=(6, 6, 2))
    assert done(list(policies.defragmentation(fits))) == []
    short_wait = view(small._replace(coming_s=9e4), dear._replace(coming_s=9e4), waiting, free=(6, 6, 2))
    assert done(list(policies.defragmentation(short_wait))) == [], "the moves cost more than they gain"


def test_defragmentation_brings_a_spread_job_together() -> None:
    spread = seen(1, 8, {0: 4, 1: 4}, packed=False)
    assert done(list(policies.defragmentation(view(spread, free=(0, 0, 8))))) == [(1, "v100", None)]
    assert done(list(policies.defragmentation(view(spread, free=(0, 0, 7))))) == []


@pytest.mark.parametrize(
    ("tier", "delivered", "wanted"),
    [
        (Tier.PREMIUM, 0.5, 3), (Tier.STANDARD, 0.5, 2), (Tier.BASIC, 0.1, 1), (Tier.BASIC, 0.5, -1),
        (Tier.STANDARD, 0.75, None), (Tier.PREMIUM, 1.0, None),
    ],
)  # fmt: skip
def test_tiers(tier: Tier, delivered: float, wanted: int | None) -> None:
    actions = done(list(policies.tiers(view(seen(1, 8, tier=tier, delivered=delivered)))))
    assert actions == ([] if wanted is None else [(1, wanted)])


@pytest.mark.parametrize(
    ("speeds", "room", "wanted"),
    [
        ({"v100": 1.0, "p100": 2.2}, (8,), [(1, "p100", None)]),
        ({"v100": 1.0, "p100": 0.95}, (8,), [(1, "p100", None)]),
        ({"v100": 1.0, "p100": 0.7}, (8,), []),
        ({"v100": 1.0, "p100": 2.2}, (7,), []),
    ],
    ids=["faster and cheaper", "as fast and cheaper", "cheaper and slower", "no room"],
)
def test_introspection(speeds: dict[str, float], room: tuple[int, ...], wanted: list[tuple]) -> None:
    assert done(list(policies.introspection(view(seen(1, 8, speeds=speeds), p100=room)))) == wanted


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_pure_and_proposes_nothing_for_nobody(name: str) -> None:
    scene = view(SMALL, seen(2, 0, one_node=True), seen(3, 8, {1: 8}, packed=False), free=(4, 0), p100=(8, 8))
    assert list(POLICIES[name](scene)) == list(POLICIES[name](scene))
    assert list(POLICIES[name](view())) == []
    assert all(action.reason for action in POLICIES[name](scene))


def completion(policy: Policy, jobs: list[Job], nodes: int = 2) -> float:
    cluster = Cluster([Flavor("v100", nodes, 2.0)], [1.0])
    outcome = Simulation(cluster, jobs, Setting(replace(HELD, fails=0.0)), policy).run()
    return sum((a.finished_at or 0) - a.job.arrival_s for a in outcome.jobs) / len(jobs)


def a_job(number: int, workers: int, at: float, hours: float, **more: Any) -> Job:
    values = {"least": workers, "most": workers, "alpha": 0.9, "spread": 0.5, "speeds": {"v100": 1.0}, **more}
    return Job(number, 0, at, workers, family="X", work_s=hours * HOUR_S, gb=1.0, **values)


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("least attained service", [a_job(0, 16, 0, 40), a_job(1, 16, 60, 0.5)]),
        ("time sharing", [a_job(0, 16, 0, 40), a_job(1, 16, 60, 0.5)]),
        ("regrowth", [a_job(0, 12, 0, 1), a_job(1, 16, 60, 20, least=4)]),
        ("marginal gain", [a_job(0, 4, 0, 40, least=1, most=16)]),
        ("defragmentation", [*(a_job(n, 5, 0, 0.2 + 20 * (n < 2)) for n in range(3)), a_job(3, 8, 60, 10)]),
    ],
)
def test_a_policy_helps_the_workload_that_it_is_for(name: str, jobs: list[Job]) -> None:
    nodes = 3 if name == "defragmentation" else 2
    assert completion(POLICIES[name], jobs, nodes) < 0.95 * completion(nobody, jobs, nodes)


def test_taking_turns_costs_where_all_jobs_are_alike() -> None:
    jobs = [a_job(n, 16, n, 10) for n in range(3)]
    assert completion(POLICIES["time sharing"], jobs) > 1.15 * completion(nobody, jobs)
