"""Service tiers: a promised share of device time for each job; who has had more gives way to who has had less. Pure.

Source: Singularity (Shukla et al., arXiv:2202.07848): tiers Premium, Standard and Basic. Each promises a share of
device time, and jobs that have had more than theirs are preempted first.

The tier of a job is its WorkloadPriorityClass. The delivered share is measured from the attempts within a window. While
a job with a promise waits and is behind, those that are ahead get a priority below it. Kueue's preemption then moves
the quota. Who gave way stays below until the others have had what was promised to them. Otherwise it would take the
quota back as soon as they have it, and nobody would train. What is at its promise, and every class that is not listed,
keeps its priority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from .. import shares
from ..job import Job
from ..model import ClusterSnapshot, Queue
from ..proposals import Proposal
from . import levels

NAME = "slaTiers"
MARGIN = 0.05
"""Ahead begins so far above the promise, and who was behind has recovered so far above it: else jobs would go back and
forth."""


@dataclass(frozen=True)
class Share:
    """`delivered` and `promised` device time of what the job asks for, from 0 to 1."""

    job: Job
    promised: float
    delivered: float
    asked: float
    """Device-seconds that the job would have had in the window with all its workers."""

    @property
    def behind(self) -> bool:
        return levels.waits(self.job) and self.delivered < self.promised

    @property
    def ahead(self) -> bool:
        return self.delivered > self.promised + MARGIN

    @property
    def recovering(self) -> bool:
        """It waits or trains, and has not yet had what was promised to it."""
        return self.delivered < min(1.0, self.promised + MARGIN)

    @property
    def owed(self) -> float:
        """Device-seconds; negative for what it has had beyond its promise."""
        return (self.promised - self.delivered) * self.asked


def share(job: Job, now: float, tiers: Mapping[str, float], window_s: float) -> Share | None:
    """None: its class promises nothing, or it is too young to tell."""
    promised = tiers.get(job.priority_class)
    found = shares.service(
        job.attempts, wanted=job.wanted, devices_per_pod=job.devices_per_pod, created=job.created, now=now,
        since=now - window_s, holds=job.given is not None, paused=job.paused,
    )  # fmt: skip
    if promised is None or found.share is None:
        return None
    return Share(job, promised, found.share, found.asked)


def propose(
    snapshot: ClusterSnapshot, tiers: Mapping[str, float], window_s: float, min_run_s: float
) -> list[Proposal]:
    """:param tiers: WorkloadPriorityClass -> promised share, 0 to 1
    :param window_s: seconds over which shares are measured
    :param min_run_s: seconds after a start in which a job keeps its own priority
    """
    found, between = list[Proposal](), levels.between(snapshot)

    def known_of(jobs: Sequence[Job]) -> list[Share]:
        return [s for job in jobs if (s := share(job, snapshot.now, tiers, window_s)) is not None]

    for pool, jobs in sorted(levels.pools(snapshot).items()):
        shares = known_of(jobs)
        recovering = {s.job.key for s in (*shares, *known_of(between.get(pool, ()))) if s.recovering}
        rivals = _rivals(snapshot, [s for s in shares if s.behind])
        for each in shares:
            job, told = each.job, f"had {each.delivered:.0%} of its device time, promised {each.promised:.0%}"
            gives_way = each.ahead and not levels.just_started(job, snapshot.now, min_run_s)
            behind = rivals(job) if gives_way else ()
            if behind:
                reason = f"{told}: gives way to {len(behind)} that are behind"
                below, owed = min(s.job.own_priority for s in behind) - 1, sum(s.owed for s in behind)
                found += levels.to(job, min(below, job.own_priority), reason, min(owed, -each.owed), NAME)
            elif job.boosted_by == NAME and not (gives_way and recovering - {job.key}):
                found += levels.to(job, job.own_priority, told, 0.0, NAME)
        known = {each.job.key for each in shares}
        for job in jobs:
            if job.boosted_by == NAME and job.key not in known:
                found += levels.to(job, job.own_priority, "its class promises nothing any more", 0.0, NAME)
    return found


def _rivals(snapshot: ClusterSnapshot, behind: Sequence[Share]) -> Callable[[Job], Sequence[Share]]:
    """Of a job: those of `behind` who may preempt it."""
    by_queue: dict[str, list[Share]] = {}
    for each in behind:
        assert each.job.workload is not None
        by_queue.setdefault(each.job.workload.queue, []).append(each)

    @cache
    def of_queue(name: str) -> Sequence[Share]:
        rivals = _preemptors(snapshot, snapshot.queues[name])
        return [each for rival in rivals for each in by_queue.get(rival, ())]

    return lambda job: of_queue(job.workload.queue) if job.workload is not None else ()


def _preemptors(snapshot: ClusterSnapshot, queue: Queue) -> list[str]:
    """Names of the queues whose waiting jobs Kueue may let preempt a job of `queue`: a lower priority helps no others.

    https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/#preemption
    """
    own = [queue.name] if queue.preempts != "Never" else []
    if queue.name not in snapshot.borrows:
        return own
    return own + [q.name for q in snapshot.around(queue) if q.reclaims != "Never" and q.name != queue.name]
