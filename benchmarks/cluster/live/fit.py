"""What Kubernetes itself took in a replay, and the same workload simulated with it. Pure.

The laws give a start and a leaving their times. What was measured beyond them is Kubernetes' own: the fence, the Job
controller, the scheduler, pods and tokens. After a hold it is Kueue's next try, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ..active import Active, State
from ..measures import percentile
from ..model import Cluster, Costs, Job, Setting
from ..outcome import Outcome
from ..simulator import Simulation
from .leader import REPORT_S, Told
from .scale import Planned
from .stays import PREEMPTED, Stays

HOUR_S = 3600.0


@dataclass(frozen=True)
class Spent:
    """Seconds as they were played, of so many cases."""

    median: float
    mean: float
    p95: float
    cases: int


@dataclass(frozen=True)
class Measured:
    """What was spent beyond the laws.

    :param submit: from the time at which a job should arrive until Kueue has its Workload
    :param come: from reserved quota until the ranks train
    :param leave: from the eviction until the quota is free, with a save
    :param evict: the same of attempts that had not begun to train
    :param end: from the last step until the quota is free
    """

    submit: Spent
    come: Spent
    leave: Spent
    evict: Spent
    end: Spent


GUESS = Measured(*[Spent(seconds, seconds, seconds, 0) for seconds in (0.0, 4.0, 3.0, 3.0, 2.0)])
"""Before anything is measured: about what an idle machine takes."""


def arrivals(jobs: Sequence[Job], stays: Stays) -> list[Job]:
    """As they have arrived: a submit takes a while, and on a busy machine not always the same."""
    return [replace(job, arrival_s=stays.arrived_at.get(job.id, job.arrival_s)) for job in jobs]


def measured(jobs: Sequence[Job], told: Sequence[Told], stays: Stays) -> Measured:
    come, leave, evict, end = list[float](), list[float](), list[float](), list[float]()
    for one in told:
        stay = stays.at(one.job, one.hello_at)
        if one.finished_at is not None and one.job in stays.finished_at:
            end.append(stays.finished_at[one.job] - one.finished_at)
        if stay is None:
            continue
        if one.trains_at is not None:
            come.append(one.trains_at - stay.reserved_at - one.coming_s)
        if stay.evicted_at is None or stay.released_at is None:
            continue
        if one.saved_at is not None:
            leave.append(stay.released_at - stay.evicted_at - one.leaving_s)
        elif one.trains_at is None:
            evict.append(stay.released_at - stay.evicted_at - one.leaving_s)
    submit = [stays.arrived_at[job.id] - job.arrival_s for job in jobs if job.id in stays.arrived_at]
    return Measured(spent(submit), spent(come), spent(leave), spent(evict), spent(end))


def spent(seconds: Sequence[float]) -> Spent:
    if not seconds:
        return Spent(0.0, 0.0, 0.0, 0)
    median, mean, p95 = percentile(seconds, 0.5), fmean(seconds), percentile(seconds, 0.95)
    return Spent(round(median, 3), round(mean, 3), round(p95, 3), len(seconds))


def with_kubernetes(costs: Costs, found: Measured) -> Costs:
    """The laws of the replay, and what was spent beyond them. Where nothing left, a leaving costs what the law says."""
    return replace(
        costs,
        come_s=costs.come_s + found.come.median,
        start_s=costs.start_s + found.come.median,
        leave_s=costs.leave_s + found.leave.median,
        evict_s=costs.evict_s + found.evict.median,
    )


def simulated(cluster: Cluster, jobs: Sequence[Job], costs: Costs, found: Measured, made: Planned) -> Outcome:
    """The same jobs with the same policies. `jobs` and `costs` are in seconds as they are played.

    :raises EndlessError: they preempt each other for ever
    """
    longer = [replace(job, work_s=job.work_s + found.end.median * _rate(job)) for job in jobs]
    setting = Setting(with_kubernetes(costs, found), classes=True, report_s=REPORT_S)
    return Simulation(cluster, longer, setting, made.planner()).run()


def _rate(job: Job) -> float:
    return job.rate(job.workers, next(iter(job.speeds)), True)


def books(jobs: Sequence[Job], told: Sequence[Told], stays: Stays) -> list[Active]:
    """The replay as the simulator keeps its own, as far as the two are compared."""
    found = []
    for job in jobs:
        active, mine = Active(job, job.workers), stays.of.get(job.id, [])
        active.finished_at = stays.finished_at.get(job.id)
        active.state = State.WAITING if active.finished_at is None else State.DONE
        active.first_admitted = mine[0].reserved_at if mine else None
        active.preempted = sum(stay.why == PREEMPTED for stay in mine)
        active.moves = [stay.evicted_at for stay in mine if stay.evicted_at is not None and stay.why != PREEMPTED]
        active.attempts = sum(one.job == job.id for one in told)
        found.append(active)
    return found


def repeated_s(told: Sequence[Told]) -> float:
    """Seconds of work that were done again, because an attempt began before the one before it had ended."""
    lost, reached = 0.0, dict[int, float]()
    for one in sorted(told, key=lambda each: each.hello_at):
        lost += max(0.0, reached.get(one.job, 0.0) - one.began_s)
        reached[one.job] = one.done_s
    return lost


def figures(some: Sequence[Active], compress: float) -> Mapping[str, float]:
    """Hours of the simulation, and numbers of evictions.

    :raises ValueError: no jobs, or one is not done
    """
    if not some or any(one.finished_at is None for one in some):
        raise ValueError("figures: give jobs that are all done")
    hours = compress / HOUR_S
    took = [((one.finished_at or 0.0) - one.job.arrival_s) * hours for one in some]
    end, start = max(one.finished_at or 0.0 for one in some), min(one.job.arrival_s for one in some)
    return {
        "completion_mean_h": round(fmean(took), 4),
        "completion_median_h": round(percentile(took, 0.5), 4),
        "completion_p95_h": round(percentile(took, 0.95), 4),
        "makespan_h": round((end - start) * hours, 4),
        "preemptions": sum(one.preempted for one in some),
        "moves": sum(len(one.moves) for one in some),
    }
