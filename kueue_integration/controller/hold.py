"""The hold: between Kueue's decision to evict and the suspend of the Job. Pure.

H1: it ends at a deadline, counted from Kueue's own condition on the Workload. Annotations of the Job, which its owner
may write, can only end it earlier. H2: a release is always possible, also where we cannot write on the Job: `overdue`
goes into the Lease, which the policy reads. H3: without pods that could save anything it ends at once, unless all pods
have ended well: then the Job is about to be complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..contract import job_names
from ..contract.record_types import AttemptRecord, Unsaved
from ..errors import BadAnnotationError
from ..kube import server_time
from ..planner.settings import Mode, PlannerSettings
from . import attempt_history
from .actions import Decision, Guard, ReleaseHold, StartCheckpoint
from .snapshot import Job, Pod, Preemption, Snapshot, Workload, readable_or, required

SKEW_S = 2.0
"""Clocks of replicas may differ so much; a deadline that is further away than the budget allows is not ours."""
LOOK_AGAIN_S = 2.5
"""After a hold was ended: Kueue has asked again by then, or something is in its way; the Lease was renewed."""
LONGEST_LOOK_S = 60.0


_CAUSES: Mapping[str, Unsaved] = {
    "unreadable": "unreadable", "no-pods": "no-pods", "deadline": "deadline", "overdue": "deadline",
}  # fmt: skip
"""Why a hold was released -> why there is no checkpoint."""


@dataclass(frozen=True)
class Settings:
    """What the core needs of the configuration. Times in seconds."""

    check_name: str = job_names.ADMISSION_CHECK_NAME
    max_budget_s: float = 600.0
    regrow: Mode = "propose"
    regrow_min_run_s: float = 10.0
    planner: PlannerSettings = field(default_factory=PlannerSettings)


def decide(snapshot: Snapshot, settings: Settings, now: float) -> Decision:
    """The Workload is Evicted or gone, the Job runs and is held: start a checkpoint, go on waiting, or let go."""
    job, workload, by = snapshot.job, snapshot.workload, snapshot.preemption
    ends = due(job, workload, now if snapshot.seen_at is None else snapshot.seen_at, settings)
    try:
        history = required(job.history)
        restart = attempt_history.restart_point(required(job.checkpoint))
    except BadAnnotationError as error:
        return _let_go(by, [], None, "unreadable", f"{attempt_history.NO_CHECKPOINT}: {error}", now, ends)

    record = attempt_history.last(history)
    if record is not None:
        record = attempt_history.observe(record, job, workload, by.name, now)
        if workload is None or not workload.is_true("Evicted"):
            record = attempt_history.orphaned(record, now)
    deadline = readable_or(job.hold_deadline, None)
    obstacle = _obstacle(job, snapshot.pods, started=deadline is not None)
    if obstacle:
        note = f"{attempt_history.NO_CHECKPOINT}: {obstacle}; {restart}"
        return _let_go(by, history, record, "no-pods", note, now, ends)
    # A deadline does not count if we have not written it, or if it was written for another budget.
    ours = deadline is not None and deadline <= ends + SKEW_S
    end = min(deadline, ends) if ours and deadline is not None else ends
    if now >= end:
        note = _too_late(record, end, job.budget(settings.max_budget_s))
        if not ours:
            note = f"{note}, and its deadline was moved, removed or never written"
        return _let_go(by, history, record, "deadline" if ours else "overdue", f"{note}; {restart}", now, ends)
    if ours:
        return Decision(wake_at=end)
    change: dict[str, str | None] = {job_names.ANN_HOLD_DEADLINE: server_time.to_text(ends)}
    if record is not None:
        change.update(attempt_history.stored(attempt_history.with_last(history, record), by))
    reason = (record.ended_by if record else None) or "Evicted"
    return Decision(StartCheckpoint(change, deadline=ends, reason=reason, preemptor=by.name), wake_at=ends)


def due(job: Job, workload: Workload | None, seen_at: float, settings: Settings) -> float:
    """When the hold has to be over, Unix seconds: at most the platform's maximum after the eviction. Never raises."""
    return asked_at(workload, seen_at) + job.budget(settings.max_budget_s)


def asked_at(workload: Workload | None, seen_at: float) -> float:
    """Since when Kueue has wanted to suspend the Job, Unix seconds: by the Workload alone, which tenants cannot write.

    `seen_at` is when it was first seen: all that is known of a Workload that is gone without a trace.
    """
    if workload is None:
        return seen_at
    times = [workload.condition("Evicted")] if workload.is_true("Evicted") else []
    times += [{"lastTransitionTime": workload.raw["metadata"]["deletionTimestamp"]}] if workload.deleting else []
    try:
        return min((server_time.observed(item, seen_at) for item in times), default=seen_at)
    except (ValueError, OverflowError):  # the schema allows times that are none for us
        return seen_at


def _let_go(
    by: Preemption,
    history: attempt_history.History,
    record: AttemptRecord | None,
    why: str,
    note: str,
    now: float,
    ends: float,
) -> Decision:
    """End the hold, and look again: while the Job still runs, the end has not taken effect."""
    late = now - ends
    released = _release(by, history, record, why, note, nudge=late >= LOOK_AGAIN_S)
    return Decision(released, wake_at=now + min(max(LOOK_AGAIN_S, late / 2), LONGEST_LOOK_S))


def _obstacle(job: Job, pods: Sequence[Pod], started: bool) -> str:
    """Why no checkpoint is possible, "" if one is possible, or if none is needed any more."""
    expected = job.parallelism
    if sum(p.phase == "Succeeded" for p in pods) >= expected:
        # Training is over; until the Job controller has counted its pods, letting go would look like another attempt.
        return ""
    if not any(p.can_write for p in pods):
        return "no pod of the job was running"
    if started:
        return ""
    # A rank that never started can never reach the barrier. One that has finished means that the job is about to.
    running = [p for p in pods if p.phase in ("Running", "Succeeded")]
    if len(running) < expected:
        return f"only {len(running)} of {expected} pods were running, so training had not started"
    return ""


def _too_late(record: AttemptRecord | None, deadline: float, budget: float) -> str:
    asked = record.evicted_at if record else None
    seconds = deadline - asked if asked is not None else budget
    cause = "no step boundary was reached"
    if record is not None and record.barrier_at is not None and record.barrier_at >= (asked or 0):
        cause = "the ranks had stopped, but the checkpoint was not written in time"
    elif record is not None and record.cause == "ending":
        cause = "some ranks had finished, the others did not finish in time"
    return f"{attempt_history.NO_CHECKPOINT} within {seconds:.0f} s: {cause}"


def _release(
    by: Preemption,
    history: attempt_history.History,
    record: AttemptRecord | None,
    why: str,
    note: str,
    nudge: bool = False,
) -> ReleaseHold:
    change: dict[str, str | None] = {job_names.ANN_HOLD: job_names.HOLD_RELEASED}
    if record is not None:
        kept = attempt_history.noted(record, note, _CAUSES[why])
        change.update(attempt_history.stored(attempt_history.with_last(history, kept), by))
    # No time is lost when a budget ends, as a thousand may at once: the policy lets the suspend through by then anyway.
    guard = Guard.JOB_VERSION if why == "deadline" else Guard.JOB_VERSION | Guard.FRESH_READS
    return ReleaseHold(change, why=why, message=note, nudge=nudge, guard=guard)
