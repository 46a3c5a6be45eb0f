"""How long the next checkpoint may take, judged by the last one, and whether the limits leave that much time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import attempt_records
from ..contract.record_types import AttemptRecord, RequestStatus
from ..job.unreadable import readable_or
from ..job.view import Job
from ..kube.resources import pod_spec


@dataclass(frozen=True)
class Limits:
    """Seconds that a checkpoint has: `budget` of the job, cut to the platform's `maximum`, while Kueue is held back.

    `grace` of the pods when the eviction bypasses Kueue, or nothing is held. `budget` 0: nothing is; others 0: not
    known.
    """

    budget: float
    grace: float
    maximum: float = 0.0


def of_attempts(attempts: Sequence[AttemptRecord]) -> float | None:
    """Seconds from the request (or, where that is not known, the barrier) to the commit of the newest checkpoint."""
    for record in reversed(attempts):
        if record.barrier_at is not None and record.committed_at is not None:
            asked = record.barrier_at
            if record.evicted_at is not None:
                asked = min(asked, record.evicted_at)
            return round(max(0.0, record.committed_at - asked), 1)
    return None


def of_request(status: RequestStatus) -> float | None:
    """Seconds from taking a checkpoint request up to its commit; None for one that brought no checkpoint.

    The ranks stand still for less than that: the request has to reach them, and a barrier waits for the step to end.
    """
    if status.op != "checkpoint" or status.state != "done" or status.finished_at is None:
        return None
    return round(max(0.0, status.finished_at - status.at), 1)


def of_job(job: Mapping[str, Any]) -> float | None:
    """`of_attempts` of a Job's history."""
    return of_attempts(attempt_records.history(job))


def limits_of(job: Mapping[str, Any], maximum: float = 0.0) -> Limits:
    """The limits that a Job was submitted with."""
    pod = pod_spec(job)
    grace = float(pod.get("terminationGracePeriodSeconds") or (30 if pod else 0))  # other kinds keep theirs elsewhere
    seen = Job.parse(job)
    asked = readable_or(seen.budget_s, None)
    budget = maximum if asked is None else float(asked)
    return Limits(budget if seen.hold_word is not None else 0.0, grace, maximum)


def warnings(seconds: float | None, limits: Limits) -> list[str]:
    """One sentence for each limit that is shorter than `seconds`; names the limit that binds and what to set."""
    if seconds is None:
        return []
    found = []
    held = min(limits.budget, limits.maximum) if limits.maximum else limits.budget
    wanted = int(seconds * 1.5) + 1
    if held and seconds > held:
        if limits.maximum and limits.maximum < limits.budget:
            fix = "the platform's maximum binds (chart value budget.maxSeconds)"
        else:
            fix = f"the job's own budget binds (checkpoint_budget_s), set it to {wanted}"
            if limits.maximum and wanted > limits.maximum:
                fix += f"; the platform allows {limits.maximum:.0f} (chart value budget.maxSeconds)"
        found.append(
            f"the last checkpoint took {seconds:.0f} s, Kueue's preemption is held back for {held:.0f} s at most: {fix}"
        )
    if limits.grace and seconds > limits.grace:
        found.append(
            f"the last checkpoint took {seconds:.0f} s, and a node drain or `kubectl delete pod` leaves the pods "
            f"{limits.grace:.0f} s: the pods' grace period binds (grace_period_s), set it to {wanted}"
        )
    return found
