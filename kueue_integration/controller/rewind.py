"""A job goes back to an older checkpoint: what is written at once, and how its running attempt ends. Pure.

The attempt is given up where it stands, and saves nothing. From the moment of the write on, its pods are told that it
is not current any more. So they end, and no commit of theirs is accepted. A hold is lifted by the same write. Later
checkpoints stay where they are, on a branch of their own, until retention removes them.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.protocol import names
from proxy.protocol.messages import CheckpointRef, JobRequest, to_json

from ..contract import branches, job_names
from ..contract.branches import Rewind
from ..kube.resources import Object, is_true
from . import attempt_history, views
from .actions import RequestReadmission


def taken_up(job: Object, request: JobRequest, ref: CheckpointRef, now: float) -> tuple[dict[str, str | None], Rewind]:
    """What makes the next attempt start from `ref`, and the present one end. Raises BadAnnotationError."""
    attempt, history = views.attempt(job), views.history(job)
    record = attempt_history.last(history)
    steps = max(0, branches.reached(job) - ref.step)
    made = Rewind(attempt, ref.id, ref.step, steps, request.by, round(now, 3))
    text = to_json(ref)
    change: dict[str, str | None] = {names.ANN_CHECKPOINT: text, job_names.ANN_CHECKPOINT_COPY: text}
    change.update(branches.rewound(job, made))
    if views.hold(job) is not None:
        change[job_names.ANN_HOLD] = job_names.HOLD_RELEASED
    if record is not None and record.ended_by is None and record.checkpoint is None:
        given_up = replace(record, ended_by=attempt_history.REWOUND)
        change.update(attempt_history.stored(attempt_history.with_last(history, given_up)))
    return change, made


def leave(job: Object, workload: Object, check_name: str) -> RequestReadmission | None:
    """Ask Kueue to end a running attempt that was given up; None for any other. Raises BadAnnotationError."""
    found = branches.given_up(job, views.attempt(job))
    state = views.check(workload, check_name)
    if found is None or state is None or state.get("state") != "Ready" or not is_true(workload, "Admitted"):
        return None
    message = branches.sentence(found)
    history = views.history(job)
    record = attempt_history.last(history)
    if record is None or record.readmitted_for == "request":
        return RequestReadmission(message=message, cause="request")
    asked = replace(record, readmitted_for="request")
    change = attempt_history.stored(attempt_history.with_last(history, asked))
    return RequestReadmission(change, message=message, cause="request")
