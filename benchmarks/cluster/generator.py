"""Workloads from a seed, with parameters derived from real traces (`parameters.json`, made by `derive`).

What no trace tells is an assumption, and is a field of `Mix`. That is which jobs are elastic, which need one node, who
has which tier, and how wrong a policy's estimates are.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from . import distribution
from .derive import Family, Parameters, class_of, loaded
from .model import DEVICES_PER_NODE, Job, Tier

T = TypeVar("T")
PARAMETERS = Path(__file__).parent / "parameters.json"
WORKER_GB: Mapping[str, float] = {
    "A3C": 0.5, "CycleGAN": 1.1, "LM": 0.5, "Recommendation": 1.0, "ResNet-18": 1.0, "ResNet-50": 1.0,
    "Transformer": 0.5,
}  # fmt: skip
"""GB of one worker: first dump of Singularity's Table 4, divided by 8 (ResNet50 8.01, BERT 4.19, DenseNet169 8.73).

A rank with torch on the CPU takes 0.4 to 0.5 GB here. Recommendation and A3C are guesses between these."""


@dataclass(frozen=True)
class Mix:
    """What no trace tells. All are shares of jobs that can have the property.

    :param elastic: of the jobs whose family was measured at several workers
    :param growth: an elastic job runs on a quarter of its workers to this many times of them
    :param one_node: of the jobs with 2 to 8 workers
    :param tiers: Basic, Standard, Premium
    :param misjudged: sigma of the logarithm of a policy's error about what is left of a job
    :param longest_s: longer jobs are cut to this
    """

    elastic: float = 0.5
    growth: int = 4
    one_node: float = 0.5
    tiers: tuple[float, float, float] = (0.0, 1.0, 0.0)
    misjudged: float = 0.3
    longest_s: float = 48 * 3600.0


@cache
def shipped() -> Parameters:
    """The parameters that were derived from Philly's jobs and Gavel's speeds. Raises ValueError, OSError."""
    return loaded(PARAMETERS.read_text())


def workload(
    seed: int,
    device_s: float,
    window_s: float,
    flavors: Sequence[str],
    mix: Mix | None = None,
    given: Parameters | None = None,
) -> list[Job]:
    """Jobs in the order of arrival.

    :param device_s: their demand together, in device seconds of the reference; the last burst is cut at it
    :param window_s: they arrive within it
    :param flavors: models that `speeds` has
    :raises ValueError: no demand, no window, or a flavor that was not measured
    """
    made, mix = given or shipped(), mix or Mix()
    unknown = [name for name in flavors if name not in made.families[0].speeds]
    if unknown or device_s <= 0 or window_s <= 0:
        raise ValueError(
            f"workload(device_s={device_s:g}, window_s={window_s:g}, flavors={list(flavors)}): give positive times "
            f"and flavors of {', '.join(made.families[0].speeds)}"
        )
    dice = random.Random(f"workload {seed}")
    bursts = _bursts(dice, made, mix, device_s)
    times = _times(dice, made, [tenant for tenant, _ in bursts], window_s)
    arrivals = []
    for (tenant, burst), at in zip(bursts, times, strict=True):
        for drawn in burst:
            arrivals.append((min(at, window_s), tenant, drawn))
            at += dice.expovariate(1 / made.gap_s) if made.gap_s else 0.0
    arrivals.sort(key=lambda one: one[0])
    return [_job(dice, number, *one, flavors, mix) for number, one in enumerate(arrivals)]


@dataclass(frozen=True)
class _Drawn:
    family: Family
    workers: int
    work_s: float


def _bursts(dice: random.Random, made: Parameters, mix: Mix, device_s: float) -> list[tuple[int, list[_Drawn]]]:
    """(tenant, jobs) until the demand is reached."""
    found: list[tuple[int, list[_Drawn]]] = []
    demand = 0.0
    tenants = list(range(len(made.tenants)))
    while demand < device_s:
        workers = _pick(dice, list(made.workers), list(made.workers.values()))
        name = class_of(workers)
        size = max(1, round(distribution.quantile(made.burst_size[name], dice.random())))
        shares = [family.single if workers == 1 else family.several for family in made.families]
        family = _pick(dice, made.families, shares)
        tenant = _pick(dice, tenants, made.tenants)
        burst: list[_Drawn] = []
        while len(burst) < size and demand < device_s:
            work_s = min(distribution.quantile(made.durations[name], dice.random()), mix.longest_s)
            burst.append(_Drawn(family, workers, work_s))
            demand += workers * work_s
        found.append((tenant, burst))
    return found


def _times(dice: random.Random, made: Parameters, tenants: Sequence[int], window_s: float) -> list[float]:
    """When each burst begins: gaps of its tenant as in the trace, stretched so that they fill the window."""
    times = [0.0] * len(tenants)
    for tenant in sorted(set(tenants)):
        mine = [place for place, one in enumerate(tenants) if one == tenant]
        gaps = [distribution.quantile(made.burst_gap, dice.random()) for _ in range(len(mine) + 1)]
        stretch = window_s / (sum(gaps) or 1.0)
        for place, at in zip(mine, accumulate(gaps), strict=False):
            times[place] = at * stretch
    return times


def _job(
    dice: random.Random, number: int, at: float, tenant: int, drawn: _Drawn, flavors: Sequence[str], mix: Mix
) -> Job:
    workers, family = drawn.workers, drawn.family
    elastic = family.alpha > 0 and dice.random() < mix.elastic
    one_node = 1 < workers <= DEVICES_PER_NODE and dice.random() < mix.one_node
    most = workers * mix.growth if elastic else workers
    return Job(
        id=number,
        tenant=tenant,
        arrival_s=at,
        workers=workers,
        least=max(1, workers // 4) if elastic else workers,
        most=min(most, DEVICES_PER_NODE) if one_node else most,
        family=family.name,
        work_s=drawn.work_s,
        alpha=family.alpha or 1.0,
        spread=family.spread,
        speeds={flavor: family.speeds[flavor] for flavor in flavors},
        gb=WORKER_GB.get(family.name, 1.0),
        one_node=one_node,
        tier=_pick(dice, list(Tier), mix.tiers),
        misjudged=math.exp(dice.gauss(0.0, mix.misjudged)),
    )


def _pick(dice: random.Random, values: Sequence[T], shares: Sequence[float]) -> T:
    edges = list(accumulate(shares))
    return values[min(bisect_right(edges, dice.random() * edges[-1]), len(values) - 1)]
