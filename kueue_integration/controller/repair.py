"""Repair of a Job's annotations that somebody deleted or damaged by hand, from other sources. Pure.

The history and the pods have the attempt number, too; a copy has the checkpoint. An empty checkpoint annotation is a
user's wish (start from the beginning), a missing annotation is an accident. The same holds for `off` and a missing
hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from singularity_proxy.protocol import names

from ..contract import job_names
from ..contract.record_types import AttemptRecord
from ..kube import server_time
from . import attempt_history
from .actions import Repair
from .snapshot import Job, Pod, Snapshot, UnreadableAnnotation, Workload, readable_or


def due(snapshot: Snapshot) -> Repair | None:
    """The first repair, None if nothing is missing, or the value is unknown.

    What a newer release has written is no damage because this one cannot read it.
    """
    job, workload = snapshot.job, snapshot.workload
    if job.newer:
        return None
    return _attempt(job, snapshot.pods) or _history(job, workload) or _checkpoint(job) or _hold(job, workload)


def _attempt(job: Job, pods: Sequence[Pod]) -> Repair | None:
    text, record = job.text(job_names.ANN_ATTEMPT), job.last
    shown = readable_or(job.attempt_shown, None)
    if record is not None:
        true = max(record.attempt, shown or 0)
    elif shown is None and not job.suspended:  # without a history only pods can tell
        true = max((pod.attempt or 0 for pod in pods), default=0)
    else:
        return None
    if not true or shown == true:
        return None
    return Repair({job_names.ANN_ATTEMPT: str(true)}, what="attempt", message=f"attempt {true} instead of {text!r}")


def _history(job: Job, workload: Workload | None) -> Repair | None:
    """A record of the attempt that runs; of earlier ones nothing is known any more. An unreadable one is set aside."""
    found, number, checkpoint = readable_or(job.history, None), job.attempt, job.checkpoint
    if isinstance(number, UnreadableAnnotation) or isinstance(checkpoint, UnreadableAnnotation):
        return None
    if found or (found is not None and not number):
        return None
    aside: dict[str, str | None] = {}
    if found is None:
        text, earlier = job.text(job_names.ANN_HISTORY), job.text(job_names.ANN_HISTORY_ASIDE)
        aside = attempt_history.set_aside(text, earlier)
    given = workload.admission if workload is not None else None
    if given is None or job.suspended or workload is None:
        # Nothing runs: the next answer of the fence starts a new list, but an unreadable one would stop it.
        if found is not None:
            return None
        return Repair({job_names.ANN_HISTORY: None, **aside}, what="history", message="an unreadable one, set aside")
    ranks = job.ranks(given.count)
    if ranks is None:
        ranks = given.count
    if isinstance(ranks, UnreadableAnnotation):
        return None
    before = checkpoint if checkpoint is not None and checkpoint.attempt < number else None
    record = AttemptRecord(
        attempt=number,
        reservation=workload.reservation or "",
        flavor=given.flavor,
        pods=given.count,
        ranks=ranks,
        admitted_at=server_time.transition(workload.condition("QuotaReserved")) or workload.created,
        restored_from=before.id if before else None,
        first_step=before.step if before else 0,
        held=job.hold is not None,
        note="earlier records were lost: the history annotation was removed or spoilt",
    )
    change = {**attempt_history.stored([record]), **aside}
    return Repair(change, what="history", message=f"a record of attempt {number}")


def _checkpoint(job: Job) -> Repair | None:
    ref = readable_or(job.checkpoint_copy, None)
    if job.starts_over or readable_or(job.checkpoint, None) is not None or ref is None:
        return None
    text = job.text(names.ANN_CHECKPOINT)
    change: dict[str, str | None] = {names.ANN_CHECKPOINT: job.text(job_names.ANN_CHECKPOINT_COPY)}
    return Repair(change, what="checkpoint", message=f"{ref.id} (step {ref.step}) instead of {text!r}")


def _hold(job: Job, workload: Workload | None) -> Repair | None:
    record, text = job.last, job.hold_word
    if record is None or not record.held or text in (job_names.HOLD_ARMED, job_names.HOLD_RELEASED, job_names.HOLD_OFF):
        return None
    if not job.suspended and workload is not None and workload.leaves:
        return None  # Kueue's suspend goes through at this moment; the next attempt is held again
    return Repair({job_names.ANN_HOLD: job_names.HOLD_ARMED}, what="hold", message=f"armed instead of {text!r}")
