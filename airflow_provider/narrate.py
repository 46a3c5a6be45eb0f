"""Two looks at a job -> what a user should read in the task log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kueue_integration.contract import attempt_records
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.contract.saveable import Saveable
from kueue_integration.jobs import lost_time
from kueue_integration.jobs.status import JobStatus
from singularity_proxy.protocol.messages import NOT_TRIED

QUIET_PHASES = frozenset(("Running", "Restoring", "Checkpointing", "Succeeded"))
"""The attempts tell it better than the phase."""


def narrate(before: JobStatus | None, now: JobStatus) -> list[str]:
    """Sentences for everything that is new in `now`, oldest first; `before` None: everything."""
    lines: list[str] = []
    known = {record.attempt: record for record in before.attempts} if before else {}
    made = {str(c["id"]): (int(c["attempt"]), float(c["committed_at"])) for c in now.checkpoints}
    lost = lost_time.of_history(now.attempts, made).since
    for position, record in enumerate(now.attempts):
        previous = now.attempts[position - 1] if position else None
        gone = lost_time.words(lost.get(record.attempt, 0.0))
        lines += _attempt(known.get(record.attempt), record, previous, now, gone)
    lines += _saveable(before.saveable if before else None, now)
    turned = before is None or (before.phase, before.reason) != (now.phase, now.reason)
    if turned and now.phase not in QUIET_PHASES:
        lines.append(f"{now.phase}: {now.message}")
    return lines


def _saveable(before: Saveable | None, now: JobStatus) -> Iterator[str]:
    found = now.saveable
    if found is None or found == before or (before is not None and _told(before) == _told(found)):
        return
    if found.verdict == "no":
        yield f"Attempt {found.attempt}: cannot be saved, as a {found.by} has shown: {found.why}"
    elif found.verdict == "yes" and (found.by == "trial" or (before is not None and before.verdict == "no")):
        yield f"Attempt {found.attempt}: can be saved, as a {found.by} has shown"
    elif found.verdict == NOT_TRIED and found.why:
        yield f"Attempt {found.attempt}: not tried whether it can be saved: {found.why}"


def _told(found: Saveable) -> tuple[int, str]:
    """The reason of a failure has times in it, and is told once."""
    return found.attempt, found.verdict if found.verdict != NOT_TRIED else found.why


def progress(now: JobStatus) -> str:
    """One line on how far a running job, or its checkpoint, is."""
    if now.saving:
        saved, size = (now.saving[name] >> 20 for name in ("bytes_done", "bytes_total"))
        return f"Attempt {now.attempt}: {saved} of {size} MiB of its checkpoint are saved"
    done = f"Attempt {now.attempt}: {now.step} steps done on {now.flavor} with {_count(now.pods, 'pod')}"
    return ", ".join([done, *_printed(now.progress)])


def _printed(progress: Mapping[str, Any]) -> Iterator[str]:
    """What the script itself says, in its own counting."""
    step, total, loss, left = (progress.get(name) for name in ("step", "total", "loss", "eta_s"))
    if step is not None and total:
        yield f"{100 * step / total:.0f} % of its {total}"
    if loss is not None:
        yield f"loss {loss:.4g}"
    if left is not None:
        yield f"about {_long(left)} left"


def _long(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _attempt(
    old: AttemptRecord | None, new: AttemptRecord, previous: AttemptRecord | None, status: JobStatus, gone: str
) -> Iterator[str]:
    who = f"Attempt {new.attempt}"
    if old is None:
        wait = "" if new.queued_at is None else f" after {_seconds(new.admitted_at - new.queued_at)} in the queue"
        lost = f"; {gone} is lost" if gone else ""
        yield (
            f"{who}: admitted on flavor {new.flavor} with {_count(new.pods, 'pod')} "
            f"({_count(new.ranks, 'rank')}){wait}; {_start(new, status)}{lost}"
        )
    if _newly(old, new, "running_at") and new.running_at is not None:
        yield f"{who}: runs, {_seconds(new.running_at - new.admitted_at)} after admission"
    if _newly(old, new, "first_step_at"):
        took = _seconds(new.first_step_at - new.admitted_at) if new.first_step_at is not None else "?"
        yield f"{who}: first step is {new.first_step}, completed {took} after admission{_lost(previous, new, status)}"
    if _newly(old, new, "evicted_at"):
        yield f"{who}: {_evicted(new)}"
    if _newly(old, new, "barrier_at"):
        at = "" if new.last_step is None else f" after step {new.last_step}"
        yield f"{who}: all {new.ranks} ranks stopped{at}{_after(new.evicted_at, new.barrier_at)}"
    if _newly(old, new, "committed_at"):
        safe = "" if new.last_step is None else f": steps 0 to {new.last_step} are safe"
        yield f"{who}: checkpoint {new.checkpoint} is committed{safe}{_after(new.barrier_at, new.committed_at)}"
    if _newly(old, new, "note"):
        yield f"{who}: {new.note}"
    if _newly(old, new, "released_at"):
        yield f"{who}: its quota is free for others{_after(new.committed_at, new.released_at)}"
    if _newly(old, new, "finished_at"):
        last = "" if new.last_step is None else f", last step {new.last_step}"
        yield f"{who}: {'finished' if new.ended_by == 'Finished' else 'failed'}{last}"


def _newly(old: AttemptRecord | None, new: AttemptRecord, field: str) -> bool:
    value = getattr(new, field)
    return value is not None and (old is None or getattr(old, field) != value)


def _start(record: AttemptRecord, status: JobStatus) -> str:
    skipped = (f"; checkpoint {other.id} cannot be restored: {other.why}" for other in record.skipped)
    return _where(record, status) + "".join(skipped)


def _where(record: AttemptRecord, status: JobStatus) -> str:
    if not record.restored_from:
        return "starts from the beginning"
    steps: Mapping[str, int] = {str(c["id"]): int(c["step"]) for c in status.checkpoints if "step" in c}
    step = steps.get(record.restored_from)
    at = "" if step is None else f" at step {step}"
    return f"goes on{at} from checkpoint {record.restored_from}"


def _evicted(record: AttemptRecord) -> str:
    if record.preempted_by:
        return f"preempted by {record.preempted_by}; keeps running until its checkpoint is safe"
    reason = record.ended_by or "Evicted"
    if reason == "Regrown":
        return "may grow again or move to an earlier flavor; keeps running until its checkpoint is safe"
    if reason in ("Migrated", "Resized", "Paused"):
        return f"is {reason.lower()} as asked for; keeps running until its checkpoint is safe"
    return f"evicted by Kueue ({reason}); a checkpoint is asked for"


def _lost(previous: AttemptRecord | None, record: AttemptRecord, status: JobStatus) -> str:
    if previous is None or record.first_step is None:
        return ""
    lost = attempt_records.steps_lost(status.attempts).get(record.attempt, 0)
    if not lost and previous.last_step is None:
        return ""
    return f", {_count(lost, 'step')} lost and run again" if lost > 0 else ", no step lost"


def _after(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f", {_seconds(end - start)} later"


def _seconds(value: float) -> str:
    return f"{max(0.0, value):.1f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
