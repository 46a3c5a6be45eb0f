"""What a policy may ask for, and what makes no sense to ask for. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from .job import Job, JobKey
from .model import ClusterSnapshot

Action = Literal["readmit", "resize", "migrate", "checkpoint", "pause", "resume", "priority", "unpin"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
MAX_REASON: Final = 300
MAX_PRIORITY: Final = 10**9
"""Kubernetes keeps higher ones for itself."""


@dataclass(frozen=True)
class Proposal:
    """One action for one job, asked for by one policy."""

    action: Action
    job: JobKey
    reason: str
    """A sentence for people."""
    gain_device_seconds: float
    """What the policy expects of it; 0 where it cannot be given in device-seconds."""
    policy: str
    workers: int = 0
    """resize."""
    nodes: tuple[str, ...] = ()
    """migrate: the nodes to leave."""
    flavor: str = ""
    """migrate: the flavor to go to and to stay on, until `unpin` takes that back."""
    priority: int = 0
    """priority: the one that the Workload gets."""
    not_before: float = 0.0
    """Unix seconds: the policy wants it then, and not now."""
    helps: JobKey | None = None
    """resize: the job that is to take what this one gives. It is in vain while that one may not move."""
    urgent: bool = False
    """What the job runs on is about to go: it waits for no other move of its cohort."""
    memory: tuple[str, ...] = ()
    """pause, resume: what the policy finds again in the job's last request."""
    asked: bool = False
    """It does what somebody has asked for, and waits for."""


def moves(proposal: Proposal, job: Job) -> bool:
    """Whether the job has to stop and start for it, now or because Kueue may preempt it then."""
    if proposal.action == "priority":
        return job.given is not None and job.workload is not None and proposal.priority < job.workload.priority
    return proposal.action in ("readmit", "resize", "migrate", "pause")


def nonsense(proposal: object, policy: str, snapshot: ClusterSnapshot) -> str:
    """Why nobody can do what a policy proposes, "" if it makes sense."""
    if not isinstance(proposal, Proposal):
        return f"is a {type(proposal).__name__} and no proposal"
    if proposal.policy != policy:
        return f"is signed by {str(proposal.policy)[:40]!r}"
    if proposal.action not in ACTIONS:
        return f"action {str(proposal.action)[:40]!r} is unknown"
    job = snapshot.jobs.get(proposal.job)
    if job is None:
        return f"job {str(proposal.job)[:100]} is not there"
    if not isinstance(proposal.reason, str) or not 0 < len(proposal.reason) <= MAX_REASON:
        return f"its reason has to have 1 to {MAX_REASON} characters"
    numbers = (proposal.gain_device_seconds, proposal.not_before)
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
        return f"gain {proposal.gain_device_seconds!r} or time {proposal.not_before!r} is not a finite number"
    if proposal.helps is not None and proposal.helps not in snapshot.jobs:
        return f"job {str(proposal.helps)[:100]}, which it would help, is not there"
    if proposal.asked and not job.asks_for_change:
        return "nobody has asked for it"
    return _unfit(proposal, job, snapshot)


def _unfit(proposal: Proposal, job: Job, snapshot: ClusterSnapshot) -> str:
    action = proposal.action
    if action == "resize":
        count = proposal.workers
        if not job.resizable:
            return "its number of pods is fixed"
        if not isinstance(count, int) or not 1 <= count <= job.ranks or job.ranks % count:
            return f"{count!r} workers do not divide its {job.ranks} ranks evenly"
        has = job.given is None or job.given.count == count
        return "it has that size already" if count == job.wanted and has else ""
    if action == "migrate" and proposal.flavor:
        queue = snapshot.queue_of(job)
        known = [f for group in queue.groups for f in group.flavors] if queue is not None else []
        if proposal.flavor not in known or proposal.nodes:
            return f"flavor {str(proposal.flavor)[:60]!r} is none of its queue, or nodes are named too"
        return "it has that flavor already" if job.given is not None and job.given.flavor == proposal.flavor else ""
    if action == "migrate":
        unknown = [node for node in proposal.nodes if node not in snapshot.nodes]
        if unknown or not proposal.nodes:
            return f"node {unknown[:1] or 'to leave'!s} is not there"
        return "" if job.nodes & {*proposal.nodes} else "it has no pod on these nodes"
    if action == "priority":
        if not isinstance(proposal.priority, int) or abs(proposal.priority) > MAX_PRIORITY:
            return f"priority {proposal.priority!r} is not a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        if job.workload is None:
            return "it has no Workload"
        back = proposal.priority == job.own_priority and job.boosted_by
        return "it has that priority already" if proposal.priority == job.workload.priority and not back else ""
    if action == "unpin":
        return "" if job.flavors else "it may go everywhere"
    if action == "resume":
        return "" if job.paused else "it is not paused"
    return ""
