"""The generator draws what the parameters say, from a seed; the parameters are derived as they say."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from statistics import fmean

import pytest

from benchmarks.cluster import derive, distribution, generator, traces
from benchmarks.cluster.model import Cluster, Flavor, Job, Tier

WINDOW_S = 30 * 86400.0
UNCUT = generator.Mix(longest_s=1e12)


@pytest.fixture(scope="module")
def drawn() -> list[Job]:
    """A month of jobs, none of them cut."""
    return generator.workload(7, 2e9, WINDOW_S, ["v100"], UNCUT)


def below(table: distribution.Table):
    """A table's distribution function, from a fine grid."""
    grid = [distribution.quantile(table, n / 2000) for n in range(2001)]
    return lambda value: sum(one <= value for one in grid) / len(grid)


def test_the_same_seed_gives_the_same_jobs_and_another_gives_others() -> None:
    first, again, other = (generator.workload(seed, 1e7, 1e5, ["v100"]) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", list(derive.CLASSES))
def test_durations_are_those_of_the_trace(drawn: list[Job], name: str) -> None:
    # A burst has one length of its own in no trace either: jobs of a burst are drawn one by one.
    mine = [job.work_s for job in drawn if derive.class_of(job.workers) == name]
    assert len(mine) > 500
    critical = 1.63 / len(mine) ** 0.5  # of Kolmogorov and Smirnov at 1 %
    assert distribution.distance_to(mine, below(generator.shipped().durations[name])) < critical


def test_bursts_have_the_sizes_in_workers_of_the_trace() -> None:
    dice = random.Random(3)
    bursts = generator._bursts(dice, generator.shipped(), UNCUT, 5e9)
    counts = Counter(burst[0].workers for _, burst in bursts)
    for workers, share in generator.shipped().workers.items():
        sigma = (share * (1 - share) / len(bursts)) ** 0.5
        assert abs(counts[workers] / len(bursts) - share) < 4 * sigma, workers


def test_tenants_have_the_shares_of_the_trace() -> None:
    bursts = generator._bursts(random.Random(4), generator.shipped(), UNCUT, 5e9)
    counts = Counter(tenant for tenant, _ in bursts)
    for tenant, share in enumerate(generator.shipped().tenants):
        assert abs(counts[tenant] / len(bursts) - share) < 4 * (share / len(bursts)) ** 0.5


def test_gaps_between_bursts_vary_as_in_the_trace() -> None:
    made = generator.shipped()
    times = generator._times(random.Random(5), made, [0] * 3000, WINDOW_S)
    gaps = [b - a for a, b in pairwise(times)]
    mean = fmean(gaps)
    # The stretch divides by the mean of the sample, and the table's own mean is 1 up to its interpolation.
    scale = fmean(distribution.quantile(made.burst_gap, (n + 0.5) / 4000) for n in range(4000))
    assert distribution.distance_to([gap / mean * scale for gap in gaps], below(made.burst_gap)) < 0.1
    assert times[0] >= 0 and times[-1] <= WINDOW_S


def test_demand_and_window_are_those_that_were_asked_for() -> None:
    jobs = generator.workload(5, 3e7, 1e5, ["v100"])
    demand = sum(job.workers * job.work_s for job in jobs)
    assert 3e7 <= demand <= 3e7 + 32 * generator.Mix().longest_s
    assert all(0 <= job.arrival_s <= 1e5 for job in jobs)
    assert [job.id for job in jobs] == list(range(len(jobs)))
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(jobs))


def test_each_job_is_one_that_can_run(drawn: list[Job]) -> None:
    for job in drawn:
        assert 1 <= job.least <= job.workers <= job.most
        assert not job.one_node or 1 < job.workers <= job.most <= 8
        assert job.work_s > 0 and job.gb > 0 and job.misjudged > 0 and 0 < job.alpha <= 1 and 0 < job.spread <= 1


def test_tiers_are_drawn_as_asked() -> None:
    jobs = generator.workload(1, 2e8, 1e5, ["v100"], generator.Mix(tiers=(0.3, 0.5, 0.2)))
    counts = Counter(job.tier for job in jobs)
    assert [round(counts[tier] / len(jobs), 1) for tier in Tier] == [0.3, 0.5, 0.2]


@pytest.mark.parametrize(("device_s", "window_s", "flavor"), [(0, 1, "v100"), (1, 0, "v100"), (1, 1, "h900")])
def test_a_workload_that_cannot_be(device_s: float, window_s: float, flavor: str) -> None:
    with pytest.raises(ValueError, match=r"give positive times and flavors of k80, p100, v100"):
        generator.workload(1, device_s, window_s, [flavor])


def test_what_is_derived_from_a_small_trace() -> None:
    jobs = [
        traces.TraceJob("a", "X (batch size 1)", 100, 0, 1),
        traces.TraceJob("a", "X (batch size 1)", 200, 30, 1),
        traces.TraceJob("a", "X (batch size 1)", 800, 200, 8),
        traces.TraceJob("b", "X (batch size 1)", 100, 5, 4),
        traces.TraceJob("b", "Unknown", 100, 9, 2),
    ]
    measured = {
        ("v100", "consolidated"): {1: 2.0, 2: 4.0, 4: 6.0, 8: 8.0},
        ("v100", "unconsolidated"): {2: 2.0, 4: 3.0, 8: 4.0},
    }
    speeds = [
        traces.Throughput(gpu, place, "X (batch size 1)", n, speed)
        for (gpu, place), row in measured.items()
        for n, speed in row.items()
    ] + [traces.Throughput("k80", "consolidated", "X (batch size 1)", 1, 0.5)]
    made = derive.parameters(jobs, speeds)
    assert made.workers == {1: 0.25, 2: 0.25, 4: 0.25, 8: 0.25, 16: 0.0, 32: 0.0}
    assert made.burst_size["1"][-1] == (1.0, 2.0)
    assert (made.durations["1"][0], made.durations["1"][-1]) == ((0.0, 50.0), (1.0, 100.0))
    assert made.durations["8+"][0] == (0.0, 100.0)
    (family,) = made.families
    assert (family.name, family.alpha, family.spread) == ("X", round(2 / 3, 3), 0.5)
    assert family.speeds == {"k80": 0.25, "v100": 1.0}
    assert derive.loaded(derive.dumped(made)) == made


def test_nothing_is_derived_from_nothing() -> None:
    with pytest.raises(ValueError, match="give a trace with jobs"):
        derive.parameters([], [])
    with pytest.raises(ValueError, match="parameters: 'workers'"):
        derive.loaded("{}")


@pytest.mark.parametrize("table", [generator.shipped().durations["1"], generator.shipped().burst_gap])
def test_share_and_quantile_are_inverse(table: distribution.Table) -> None:
    for share in (0.05, 0.33, 0.5, 0.77, 0.95):
        assert distribution.share_up_to(table, distribution.quantile(table, share)) == pytest.approx(share, abs=1e-6)


def test_distances() -> None:
    assert distribution.distance([1, 2, 3], [1, 2, 3]) == 0
    assert distribution.distance([1, 2], [3, 4]) == 1
    assert distribution.distance([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert distribution.distance_to([0.5], lambda value: value) == 0.5


def test_nominal_quota_sums_to_the_devices() -> None:
    cluster = Cluster([Flavor("v100", 4, 1.0)], [0.5, 0.25, 0.15, 0.1])
    assert cluster.nominal(cluster.flavors[0]) == [16, 8, 5, 3]
