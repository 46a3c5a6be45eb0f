"""Least attained service: the less device time a job has had, the sooner it is served. Pure.

Source: Tiresias (Gu et al., NSDI 2019): discretised 2D-LAS. A job's service is its devices times its time.
At each threshold it falls into the next queue, where it comes after all jobs above, and first come, first served counts
within a queue. Who has waited so many times as long as it has run starts again in the first queue (PROMOTEKNOB), so
nobody starves.

With a history of what earlier jobs needed, the queues are ordered by the Gittins index instead (`gittins.py`). So the
queue of jobs that are likely to end soon comes first, however much they have had.

The queue number is taken off the priority of the Workload. Priority classes further apart than the number of queues
keep their order. Kueue does the rest: it admits by priority, and preempts where the ClusterQueue allows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import gittins, measure
from ..job import Job
from ..model import ClusterSnapshot
from ..proposals import Proposal
from . import levels

NAME = "attainedService"


def propose(
    snapshot: ClusterSnapshot,
    thresholds: Sequence[float],
    promote_after: float,
    min_run_s: float,
    history: Sequence[float] = (),
) -> list[Proposal]:
    """:param thresholds: device-seconds, growing
    :param promote_after: waiting time over run time
    :param min_run_s: seconds after a start in which a job keeps its own priority
    :param history: device-seconds that earlier jobs needed, as quantiles; empty: unknown
    """
    ranks = gittins.ranks(thresholds, history) if history else range(len(thresholds) + 1)
    found: list[Proposal] = []
    for _, jobs in sorted(levels.pools(snapshot).items()):
        had = {job.key: served(job, snapshot.now, promote_after) for job in jobs}
        needs = {key: _needs(service, history) for key, service in had.items()}
        least = min((needs[job.key] for job in jobs if levels.waits(job)), default=None)
        for job in jobs:
            queue = sum(had[job.key] >= step for step in thresholds)
            promoted = levels.waits(job) and bool(job.attempts) and not had[job.key]
            number = 0 if promoted or levels.just_started(job, snapshot.now, min_run_s) else ranks[queue]
            reason = f"queue {number} of {len(thresholds)} after {had[job.key]:.0f} device-seconds"
            gain = max(0.0, needs[job.key] - least) if least is not None else 0.0
            found += levels.to(job, job.own_priority - number, reason, gain, NAME)
    return found


def _needs(service: float, history: Sequence[float]) -> float:
    """Device-seconds until an end, on average: so long the one that needs least would wait for it.

    Without a history, who has had much needs much.
    """
    likely = gittins.index(service, history) if history else 0.0
    return 1 / likely if likely else service


def served(job: Job, now: float, promote_after: float) -> float:
    """Device-seconds since the start, or since its waiting has last put it back into the first queue."""
    total = ran_s = 0.0
    left_at = job.created
    for record in job.attempts:
        queued = record.queued_at if record.queued_at is not None else left_at
        if _starves(record.admitted_at - queued, ran_s, promote_after):
            total = ran_s = 0.0
        holds = record is job.attempts[-1] and job.given is not None
        held = measure.held_s(record, now if holds else None)
        total += held * max(1, record.pods) * job.devices_per_pod
        ran_s, left_at = ran_s + held, record.admitted_at + held
    if levels.waits(job) and _starves(now - measure.idle_since(job), ran_s, promote_after):
        return 0.0
    return total


def _starves(waited_s: float, ran_s: float, promote_after: float) -> bool:
    return ran_s > 0 and waited_s >= promote_after * ran_s
