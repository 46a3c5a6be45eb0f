"""Jobs leave nodes that are cordoned, tainted or reported unhealthy, before these go away. Pure.

Source: Singularity (Shukla et al., arXiv:2202.07848): a node that has to go is emptied by transparent checkpoints, and
no job loses work. It does by itself what `singularityctl drain` does when somebody asks for it. Each job is saved once
while it goes on, then it is asked to leave. The first save tells whether the job can be saved at all, and stores nearly
all of the second one ahead of time.
"""

from __future__ import annotations

from .. import measure
from ..model import ClusterSnapshot, Job
from ..proposals import Proposal

NAME = "cordon"
FRESH_S = 600.0
"""A save that is older has to be made again before the job is asked to leave."""


def propose(snapshot: ClusterSnapshot) -> list[Proposal]:
    """High priority first: it chooses first where to go."""
    found = []
    for job in sorted(snapshot.jobs.values(), key=lambda j: (-_priority(j), j.key)):
        leave = sorted(name for name in job.nodes if name in snapshot.nodes and snapshot.nodes[name].leaving)
        if leave and job.given is not None:
            found.append(_proposal(snapshot, job, leave))
    return found


def _proposal(snapshot: ClusterSnapshot, job: Job, leave: list[str]) -> Proposal:
    reason = "; ".join(f"node {name} {snapshot.nodes[name].leaving}" for name in leave)[:250]
    risk = at_risk(job, snapshot.now)
    if not _saved(job, snapshot.now):
        return Proposal("checkpoint", job.key, f"{reason}: saved first", risk, NAME)
    return Proposal("migrate", job.key, reason, risk, NAME, nodes=tuple(leave))


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
