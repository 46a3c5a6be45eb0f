"""A job goes back to an older checkpoint: what is written at once, and how its running attempt ends. Pure.

The attempt is given up where it stands, and saves nothing. From the moment of the write on, its pods hear that it
is not current any more. So they end, and no commit of theirs is accepted. A hold is lifted by the same write. Later
checkpoints stay where they are, on a branch of their own, until retention removes them.
"""

from __future__ import annotations

from dataclasses import replace

from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, to_json

from ..contract import branches, job_names
from ..contract.branches import Rewind
from ..contract.record_types import JobRequest
from . import attempt_history
from .actions import RequestReadmission
from .snapshot import Job, Workload, required


def taken_up(job: Job, request: JobRequest, ref: CheckpointRef, now: float) -> tuple[dict[str, str | None], Rewind]:
    """What makes the next attempt start from `ref`, and the present one end. Raises BadAnnotationError."""
    history = required(job.history)
    record = attempt_history.last(history)
    steps = max(0, branches.reached(job.raw) - ref.step)
    made = Rewind(required(job.attempt), ref.id, ref.step, steps, request.by, round(now, 3))
    anew = replace(ref, failed=[])  # whoever asks for it wants it tried again
    text = to_json(anew)
    change: dict[str, str | None] = {names.ANN_CHECKPOINT: text, job_names.ANN_CHECKPOINT_COPY: text}
    if ref.failed:
        known = [anew if other.id == ref.id else other for other in job.checkpoints]
        change[job_names.ANN_CHECKPOINTS] = attempt_history.listed(known)
    change.update(branches.rewound(job.raw, made))
    if job.hold is not None:
        change[job_names.ANN_HOLD] = job_names.HOLD_RELEASED
    if record is not None and record.ended_by is None and record.checkpoint is None:
        given_up = replace(record, ended_by=attempt_history.REWOUND)
        change.update(attempt_history.stored(attempt_history.with_last(history, given_up)))
    return change, made


def leave(job: Job, workload: Workload, check_name: str) -> RequestReadmission | None:
    """Ask Kueue to end a running attempt that was given up; None for any other. Raises BadAnnotationError."""
    found = branches.given_up(job.rewinds, required(job.attempt))
    if found is None or workload.state_of(check_name) != "Ready" or not workload.is_true("Admitted"):
        return None
    message = branches.sentence(found)
    history = required(job.history)
    record = attempt_history.last(history)
    safe = "its work since that checkpoint was given up"
    if record is None or record.readmitted_for == "request":
        return RequestReadmission(message=message, cause="request", safe=safe)
    asked = replace(record, readmitted_for="request")
    change = attempt_history.stored(attempt_history.with_last(history, asked))
    return RequestReadmission(change, message=message, cause="request", safe=safe)
