"""What an outcome is worth, and how contenders compare. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from .active import Active
from .model import Tier
from .outcome import Outcome

HOUR_S = 3600.0
SHORT_S = 600.0
"""Slowdowns of shorter jobs are counted as of this length: a minute of waiting is no slowdown of 60."""
MEASURES: Mapping[str, tuple[str, bool]] = {
    "completion_mean_h": ("average hours from arrival to completion", False),
    "completion_median_h": ("median of the same", False),
    "completion_p95_h": ("95th percentile of the same", False),
    "makespan_h": ("hours from the first arrival to the last completion", False),
    "held_share": ("device time held while jobs arrive, of all device time", True),
    "goodput": ("work done in that time, in device time of the reference", True),
    "queueing_mean_h": ("average hours from arrival to the first admission", False),
    "queueing_p95_h": ("95th percentile of the same", False),
    "waiting_mean_h": ("average hours without devices, from arrival to completion: queued, parked, put back", False),
    "fairness": ("Jain's index of the tenants' average work per hour of completion, 0 to 1", True),
    "slowdown_p95": ("95th percentile of completion / duration alone", False),
    "moves_per_job": ("evictions of any kind", False),
    "lost_device_h": ("device hours spent coming, leaving and making work again", False),
    "dollars_per_h": ("dollars per device hour of work", False),
    "promises_kept": ("jobs that were given the promised fraction of device time", True),
    "premium_kept": ("of the premium jobs", True),
}
"""What each measure says, and whether more is better."""


def measures(outcome: Outcome) -> dict[str, float]:
    """Of `MEASURES`. Raises ValueError: no jobs."""
    jobs, room = outcome.jobs, outcome.cluster.devices * max(outcome.window_s, 1.0)
    if not jobs:
        raise ValueError("measures of no jobs")
    completion = [_completion_s(active) / HOUR_S for active in jobs]
    queueing = [((active.first_admitted or 0.0) - active.job.arrival_s) / HOUR_S for active in jobs]
    work_h = sum(active.job.workers * active.job.work_s for active in jobs) / HOUR_S
    premium = [active for active in jobs if active.job.tier is Tier.PREMIUM]
    found = {
        "completion_mean_h": fmean(completion),
        "completion_median_h": percentile(completion, 0.5),
        "completion_p95_h": percentile(completion, 0.95),
        "makespan_h": (max(a.finished_at or 0.0 for a in jobs) - jobs[0].job.arrival_s) / HOUR_S,
        "held_share": outcome.held_device_s / room,
        "goodput": outcome.worked_device_s / room,
        "queueing_mean_h": fmean(queueing),
        "queueing_p95_h": percentile(queueing, 0.95),
        "waiting_mean_h": fmean((_completion_s(active) - active.held_s) / HOUR_S for active in jobs),
        "fairness": fairness(jobs),
        "slowdown_p95": percentile([_completion_s(a) / max(a.job.work_s, SHORT_S) for a in jobs], 0.95),
        "moves_per_job": fmean(active.preempted + len(active.moves) for active in jobs),
        "lost_device_h": sum(active.redone_device_s + active.over_device_s for active in jobs) / HOUR_S,
        "dollars_per_h": sum(active.dollars for active in jobs) / work_h,
        "promises_kept": fmean(map(_kept, jobs)),
        "premium_kept": fmean(map(_kept, premium)) if premium else 1.0,
    }
    return {key: float(f"{value:.5g}") for key, value in found.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def fairness(jobs: Sequence[Active]) -> float:
    """Jain's index (1984) over tenants: `(sum x)^2 / (n sum x^2)` of `x`, the average of work / completion."""
    by_tenant: dict[int, list[float]] = defaultdict(list)
    for active in jobs:
        by_tenant[active.job.tenant].append(active.job.work_s / _completion_s(active))
    given = [fmean(one) for one in by_tenant.values()]
    return sum(given) ** 2 / (len(given) * sum(one * one for one in given))


def _completion_s(active: Active) -> float:
    return (active.finished_at or 0.0) - active.job.arrival_s


def _kept(active: Active) -> bool:
    delivered = (active.run_device_s - active.redone_device_s) / (active.job.workers * _completion_s(active))
    return delivered >= active.job.tier.value


def change(mine: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Mean, least and largest change in per cent over seeds that are paired.

    :raises ValueError: not as many of one as of the other, or none
    """
    if not mine or len(mine) != len(base):
        raise ValueError(f"change of {len(mine)} runs against {len(base)}: give the same seeds of both")
    changes = [100 * (one / other - 1) if other else 0.0 for one, other in zip(mine, base, strict=True)]
    return fmean(changes), min(changes), max(changes)
