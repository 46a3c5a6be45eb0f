"""What the policies that set priorities have in common. Pure."""

from __future__ import annotations

from .. import free
from ..job import Job
from ..model import ClusterSnapshot
from ..proposals import Proposal


def pools(snapshot: ClusterSnapshot) -> dict[str, list[Job]]:
    """Jobs that hold quota or wait for it, by the queues that give each other quota.

    Paused ones are left out; likewise those that wait in a stopped queue, or for more than their queue may ever use.
    Others would take what is given up for them.
    """
    found: dict[str, list[Job]] = {}
    for job in snapshot.jobs.values():
        queue = snapshot.queue_of(job)
        if queue is None or job.workload is None or job.paused:
            continue
        if job.given is not None or (waits(job) and free.served_one_day(snapshot, job.workload)):
            found.setdefault(queue.pool, []).append(job)
    return found


def between(snapshot: ClusterSnapshot) -> dict[str, list[Job]]:
    """Jobs with quota that they do not use, by the same queues: they are about to start, or are being evicted."""
    found: dict[str, list[Job]] = {}
    for job in snapshot.jobs.values():
        queue, workload = snapshot.queue_of(job), job.workload
        if queue is not None and workload is not None and workload.holds is not None and job.given is None:
            found.setdefault(queue.pool, []).append(job)
    return found


def waits(job: Job) -> bool:
    """It waits for quota in its queue."""
    return job.workload is not None and job.workload.waits


def just_started(job: Job, now: float, min_run_s: float) -> bool:
    """It holds quota, and has not trained for the useful minimum since its start.

    Kueue preempts whoever has a lower priority, however short it has run. So such a job keeps its own priority. Else
    it would be sent away again and again, and each save and restore would be for nothing.
    """
    return job.given is not None and (job.runs_since is None or now - job.runs_since < min_run_s)


def to(job: Job, priority: int, reason: str, gain: float, policy: str) -> list[Proposal]:
    """The proposal that gives the job this priority, none if it has it."""
    if job.workload is None or job.workload.priority == priority:
        return []
    return [Proposal("priority", job.key, reason, gain, policy, priority=priority)]
