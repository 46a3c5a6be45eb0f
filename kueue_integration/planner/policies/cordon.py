"""Jobs leave nodes that are cordoned, tainted, reported unhealthy or about to be taken away. Pure.

Source: Singularity (Shukla et al., arXiv:2202.07848): a node that has to go is emptied by transparent checkpoints, and
no job loses work. It does by itself what `singularityctl drain` does when somebody asks for it. Each job is saved once
while it goes on, then it is asked to leave. The first save tells whether the job can be saved at all, and stores nearly
all of the second one ahead of time. From a node that is about to go all jobs go at once, without the first save.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .. import measure
from ..job import Job
from ..model import ClusterSnapshot
from ..proposals import Proposal

NAME = "cordon"
FRESH_S = 600.0
"""A save that is older has to be made again before the job is asked to leave."""


def propose(snapshot: ClusterSnapshot) -> list[Proposal]:
    """For all nodes that the snapshot calls leaving."""
    return evacuate(snapshot, {name: node.leaving for name, node in snapshot.nodes.items() if node.leaving}, NAME)


def evacuate(snapshot: ClusterSnapshot, leaving: Mapping[str, str], policy: str) -> list[Proposal]:
    """High priority first: it chooses first where to go. One save of a cohort waits for its move: the others would be
    old by then.

    :param leaving: nodes of the snapshot, and why jobs should leave them
    :param policy: that asks
    """
    found, pools = list[Proposal](), set[str]()
    ending = {name for name in leaving if snapshot.nodes[name].ending}
    going = [job for job in snapshot.jobs.values() if job.given is not None and job.nodes & leaving.keys()]

    def turn(job: Job) -> tuple[object, ...]:
        return not _saved(job, policy, snapshot.now), _last_save(job, policy), -_priority(job), job.key

    for job in sorted(going, key=turn):
        queue = snapshot.queue_of(job)
        pool = queue.pool if queue is not None else ""
        if job.nodes & ending:  # to stop it saves it, and there is no time for two saves
            found.append(replace(_migrate(snapshot, job, leaving, policy), urgent=True))
            continue
        if _saved(job, policy, snapshot.now) or not job.held or _stays(snapshot, job):
            found.append(_migrate(snapshot, job, leaving, policy))
        elif pool not in pools:
            found.append(replace(_migrate(snapshot, job, leaving, policy), action="checkpoint", nodes=()))
        if _could_go(snapshot, job, policy):
            pools.add(pool)
    return found


def would_leave(snapshot: ClusterSnapshot, job: Job) -> bool:
    """Return whether the job would be saved and moved if its node had to go, as far as is known."""
    return job.held and not job.unsaved and not _stays(snapshot, job)


def _could_go(snapshot: ClusterSnapshot, job: Job, policy: str) -> bool:
    """Whether it can be saved and moved now, or is about to be. One that cannot keeps nobody else on its node."""
    busy = job.busy is not None and job.busy.policy != policy
    return job.held and job.trains and not busy and not _stays(snapshot, job)


def _stays(snapshot: ClusterSnapshot, job: Job) -> bool:
    """Its queue is stopped: it would not come back, so a save would be for nothing."""
    return job.workload is not None and snapshot.stopped(job.workload)


def _migrate(snapshot: ClusterSnapshot, job: Job, leaving: Mapping[str, str], policy: str) -> Proposal:
    leave = sorted(job.nodes & leaving.keys())
    reason = "; ".join(f"node {name} {leaving[name]}" for name in leave)[:290]
    return Proposal("migrate", job.key, reason, at_risk(job, snapshot.now), policy, nodes=tuple(leave))


def _last_save(job: Job, policy: str) -> float:
    """When it was last saved for this policy: who has not been comes first, so that nobody keeps the others waiting."""
    return job.save.at if job.save is not None and job.save.policy == policy else 0.0


def _saved(job: Job, policy: str, now: float) -> bool:
    """Whether its current attempt was saved a moment ago, because this policy has asked for it."""
    save = job.save
    if save is None or save.policy != policy or save.state != "done" or save.attempt != job.attempt:
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
