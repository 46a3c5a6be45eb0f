"""The hold: between Kueue's decision to evict and the suspend of the Job. Pure.

H1: it ends at a deadline. H2: releasing is always possible. H3: without pods that could save anything it ends at once,
unless they have all ended well: then the Job is about to be complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord

from ..resources import Object, is_true
from . import clock, records, views
from .actions import Decision, ReleaseHold, StartCheckpoint
from .errors import BadAnnotationError

SKEW_S = 2.0
"""Clocks of replicas may differ so much; a deadline that is further away than the budget allows is not one of ours."""


@dataclass(frozen=True)
class Settings:
    """What the core needs of the configuration. Times in seconds."""

    check_name: str = names.ADMISSION_CHECK_NAME
    max_budget_s: float = 600.0
    regrow: bool = True
    regrow_min_run_s: float = 10.0


def decide(
    job: Object, workload: Object | None, pods: Sequence[Object], preemptor: str | None, now: float, settings: Settings
) -> Decision:
    """The Workload is Evicted or gone, the Job runs and is held: start a checkpoint, go on waiting, or let go."""
    try:
        history = views.history(job)
        deadline = views.hold_deadline(job)
        budget = views.budget(job, settings.max_budget_s)
        restart = records.restart_point(views.checkpoint(job))
    except BadAnnotationError as error:
        released = {names.ANN_HOLD: names.HOLD_RELEASED}
        return Decision(ReleaseHold(released, why="unreadable", message=f"{records.NO_CHECKPOINT}: {error}"))

    record = records.last(history)
    if record is not None:
        record = records.observe(record, job, workload, preemptor, now)
        if workload is None or not is_true(workload, "Evicted"):
            record = records.orphaned(record, now)
    obstacle = _obstacle(job, pods, started=deadline is not None)
    if obstacle:
        return Decision(_release(history, record, "no-pods", f"{records.NO_CHECKPOINT}: {obstacle}; {restart}"))
    if deadline is None or deadline > now + budget + SKEW_S:
        due = now + budget
        change: dict[str, str | None] = {names.ANN_HOLD_DEADLINE: clock.to_text(due)}
        if record is not None:
            change.update(records.stored(records.with_last(history, record)))
        reason = (record.ended_by if record else None) or "Evicted"
        return Decision(StartCheckpoint(change, deadline=due, reason=reason, preemptor=preemptor), wake_at=due)
    if now < deadline:
        return Decision(wake_at=deadline)
    return Decision(_release(history, record, "deadline", f"{_too_late(record, deadline, budget)}; {restart}"))


def _obstacle(job: Object, pods: Sequence[Object], started: bool) -> str:
    """Why no checkpoint can be had, "" if one can, or if none is needed any more."""
    expected = views.parallelism(job)
    if sum(views.phase(p) == "Succeeded" for p in pods) >= expected:
        # Training is over; until the Job controller has counted its pods, letting go would look like another attempt.
        return ""
    if not any(views.can_write(p) for p in pods):
        return "no pod of the job was running"
    if started:
        return ""
    # A rank that never started can never reach the barrier. One that has finished means that the job is about to.
    running = [p for p in pods if views.phase(p) in ("Running", "Succeeded")]
    if len(running) < expected:
        return f"only {len(running)} of {expected} pods were running, so training had not started"
    return ""


def _too_late(record: AttemptRecord | None, deadline: float, budget: float) -> str:
    asked = record.evicted_at if record else None
    seconds = deadline - asked if asked is not None else budget
    cause = "no step boundary was reached"
    if record is not None and record.barrier_at is not None and record.barrier_at >= (asked or 0):
        cause = "the ranks had stopped, but the checkpoint was not written in time"
    elif record is not None and record.note is not None and records.MAY_END in record.note:
        cause = "some ranks had finished, the others did not finish in time"
    return f"{records.NO_CHECKPOINT} within {seconds:.0f} s: {cause}"


def _release(history: records.History, record: AttemptRecord | None, why: str, note: str) -> ReleaseHold:
    change: dict[str, str | None] = {names.ANN_HOLD: names.HOLD_RELEASED}
    if record is not None:
        kept = records.noted(record, note)
        change.update(records.stored(records.with_last(history, kept)))
    return ReleaseHold(change, why=why, message=note)
