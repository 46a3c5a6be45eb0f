"""Jobs leave nodes that are cordoned, tainted or reported unhealthy, before these go away. Pure.

Source: Singularity (Shukla et al., arXiv:2202.07848): a node that has to go is emptied by transparent checkpoints, and
no job loses work. It does by itself what `singularityctl drain` does when somebody asks for it. Each job is saved once
while it goes on, then it is asked to leave. The first save tells whether the job can be saved at all, and stores nearly
all of the second one ahead of time.
"""

from __future__ import annotations

from dataclasses import replace

from .. import measure
from ..model import ClusterSnapshot, Job
from ..proposals import Proposal

NAME = "cordon"
FRESH_S = 600.0
"""A save that is older has to be made again before the job is asked to leave."""


def propose(snapshot: ClusterSnapshot) -> list[Proposal]:
    """High priority first: it chooses first where to go. One save of a cohort waits for its move: the others would be
    old by then."""
    found, pools = list[Proposal](), set[str]()
    leaving = [job for job in snapshot.jobs.values() if job.given is not None and _leave(snapshot, job)]
    for job in sorted(leaving, key=lambda j: (not _saved(j, snapshot.now), _last_save(j), -_priority(j), j.key)):
        queue = snapshot.queue_of(job)
        pool = queue.pool if queue is not None else ""
        if _saved(job, snapshot.now) or not job.held:
            found.append(_migrate(snapshot, job))
        elif pool not in pools:
            found.append(replace(_migrate(snapshot, job), action="checkpoint", nodes=()))
        if job.held:
            pools.add(pool)
    return found


def _leave(snapshot: ClusterSnapshot, job: Job) -> list[str]:
    return sorted(name for name in job.nodes if name in snapshot.nodes and snapshot.nodes[name].leaving)


def _migrate(snapshot: ClusterSnapshot, job: Job) -> Proposal:
    leave = _leave(snapshot, job)
    reason = "; ".join(f"node {name} {snapshot.nodes[name].leaving}" for name in leave)[:290]
    return Proposal("migrate", job.key, reason, at_risk(job, snapshot.now), NAME, nodes=tuple(leave))


def _last_save(job: Job) -> float:
    """When it was last saved for this policy: who has not been comes first, so that nobody keeps the others waiting."""
    return job.save.at if job.save is not None and job.save.policy == NAME else 0.0


def _saved(job: Job, now: float) -> bool:
    """Whether its current attempt was saved a moment ago, because this policy has asked for it."""
    save = job.save
    if save is None or save.policy != NAME or save.state != "done" or save.attempt != job.attempt:
        return False
    return now - save.at < FRESH_S


def at_risk(job: Job, now: float) -> float:
    """Device-seconds of work that go with a node that dies now: all since the newest checkpoint of this attempt."""
    since = job.runs_since
    if since is None:
        return 0.0
    if job.saved_at is not None:
        since = max(since, job.saved_at)
    return max(0.0, now - since) * job.devices + measure.cost(job)


def _priority(job: Job) -> int:
    return job.workload.priority if job.workload is not None else 0
