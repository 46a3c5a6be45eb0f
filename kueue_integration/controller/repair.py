"""Repair of a Job's annotations that somebody deleted or damaged by hand, from other sources. Pure.

The history and the pods have the attempt number, too; a copy has the checkpoint. An empty checkpoint annotation is a
user's wish (start from the beginning), a missing annotation is an accident. The same holds for `off` and a missing
hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.protocol import names
from proxy.protocol.decode import Unreadable
from proxy.protocol.messages import AttemptRecord, CheckpointRef

from ..contract import annotation_values, job_names
from ..contract.attempt_records import MAX_COUNT
from ..kube import server_time
from ..kube.resources import Object, annotation
from . import attempt_history, views
from .actions import Repair
from .errors import BadAnnotationError


def due(job: Object, workload: Object | None, pods: Sequence[Object]) -> Repair | None:
    """The first repair, None if nothing is missing, or the value is unknown."""
    return _attempt(job, pods) or _history(job, workload) or _checkpoint(job) or _hold(job, workload)


def _attempt(job: Object, pods: Sequence[Object]) -> Repair | None:
    text, record = annotation(job, job_names.ANN_ATTEMPT), attempt_history.last(_readable_history(job) or ())
    shown = _number(job)
    if record is not None:
        true = max(record.attempt, shown or 0)
    elif shown is None and not views.suspended(job):  # without a history only pods can tell
        true = max((_number(pod) or 0 for pod in pods), default=0)
    else:
        return None
    if not true or shown == true:
        return None
    return Repair({job_names.ANN_ATTEMPT: str(true)}, what="attempt", message=f"attempt {true} instead of {text!r}")


def _number(owner: Object) -> int | None:
    return annotation_values.readable(annotation_values.whole(owner, job_names.ANN_ATTEMPT, most=MAX_COUNT), None)


def _history(job: Object, workload: Object | None) -> Repair | None:
    """A record of the attempt that runs; of earlier ones nothing is known any more."""
    found = _readable_history(job)
    try:
        number = views.attempt(job)
        checkpoint = views.checkpoint(job)
    except BadAnnotationError:
        return None
    if found or (found is not None and not number):
        return None
    given = views.admission(workload) if workload is not None else None
    if given is None or views.suspended(job) or workload is None:
        # Nothing runs: the next answer of the fence starts a new list, but an unreadable one would stop it.
        return (
            Repair({job_names.ANN_HISTORY: None}, what="history", message="an unreadable one")
            if found is None
            else None
        )
    before = checkpoint if checkpoint is not None and checkpoint.attempt < number else None
    record = AttemptRecord(
        attempt=number,
        reservation=views.reservation(workload) or "",
        flavor=given.flavor,
        pods=given.count,
        ranks=views.world_size(job, default=given.count),
        admitted_at=server_time.transition(_quota(workload)) or views.created(workload),
        restored_from=before.id if before else None,
        first_step=before.step if before else 0,
        held=views.hold(job) is not None,
        note="earlier records were lost: the history annotation was removed or spoilt",
    )
    return Repair(attempt_history.stored([record]), what="history", message=f"a record of attempt {number}")


def _quota(workload: Object) -> Object:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == "QuotaReserved"), {})


def _checkpoint(job: Object) -> Repair | None:
    text = annotation(job, names.ANN_CHECKPOINT)
    try:
        if text == "" or views.checkpoint(job) is not None:
            return None
    except BadAnnotationError:
        pass
    ref = annotation_values.message(job, job_names.ANN_CHECKPOINT_COPY, CheckpointRef)
    if ref is None or isinstance(ref, Unreadable):
        return None
    change: dict[str, str | None] = {names.ANN_CHECKPOINT: annotation(job, job_names.ANN_CHECKPOINT_COPY)}
    return Repair(change, what="checkpoint", message=f"{ref.id} (step {ref.step}) instead of {text!r}")


def _hold(job: Object, workload: Object | None) -> Repair | None:
    record = attempt_history.last(_readable_history(job) or ())
    text = annotation(job, job_names.ANN_HOLD)
    if record is None or not record.held or text in (job_names.HOLD_ARMED, job_names.HOLD_RELEASED, job_names.HOLD_OFF):
        return None
    if not views.suspended(job) and workload is not None and views.leaves(workload):
        return None  # Kueue's suspend goes through at this moment; the next attempt is held again
    return Repair({job_names.ANN_HOLD: job_names.HOLD_ARMED}, what="hold", message=f"armed instead of {text!r}")


def _readable_history(job: Object) -> list[AttemptRecord] | None:
    """None if the annotation cannot be read."""
    try:
        return views.history(job)
    except BadAnnotationError:
        return None
