"""What users ask of a job that is there already, and the controller's answers: read, stored and judged. Pure.

There are two places for requests on a Job, because a checkpoint changes nothing about it and may come at any time.
Each holds one request, the last; the answer beside it carries the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proxy.protocol import names
from proxy.protocol.messages import (
    CheckpointRef,
    JobRequest,
    MessageError,
    RequestOp,
    RequestStatus,
    from_json,
    to_json,
)

from .resources import annotation

MAX_MESSAGE = 400


@dataclass(frozen=True)
class Slot:
    """A place for one request: the names of its two annotations."""

    request: str
    status: str


CHANGE = Slot(names.ANN_REQUEST, names.ANN_REQUEST_STATUS)
CHECKPOINT = Slot(names.ANN_CHECKPOINT_REQUEST, names.ANN_CHECKPOINT_STATUS)
SLOTS = (CHANGE, CHECKPOINT)


def slot_of(op: RequestOp) -> Slot:
    return CHECKPOINT if op == "checkpoint" else CHANGE


def asked(job: Mapping[str, Any] | None, slot: Slot) -> JobRequest | None:
    """The request in `slot`, None without one or when it cannot be read."""
    text = annotation(job, slot.request)
    try:
        found = from_json(JobRequest, text) if text else None
    except MessageError:
        return None
    return found if found is not None and slot_of(found.op) is slot else None


def answer(job: Mapping[str, Any] | None, slot: Slot) -> RequestStatus | None:
    """The controller's answer to the request in `slot`; None while there is none to that very request."""
    request, text = asked(job, slot), annotation(job, slot.status)
    try:
        found = from_json(RequestStatus, text) if text else None
    except MessageError:
        return None
    return found if found is not None and request is not None and found.id == request.id else None


def running(job: Mapping[str, Any] | None, slot: Slot) -> tuple[JobRequest, RequestStatus] | None:
    """The request in `slot` while the controller carries it out."""
    request, status = asked(job, slot), answer(job, slot)
    return (request, status) if request is not None and status is not None and status.state == "running" else None


def stored(status: RequestStatus) -> dict[str, str | None]:
    """The annotation that stores an answer."""
    message = status.message
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 3] + "..."
    return {slot_of(status.op).status: to_json(replace(status, message=message))}


def ended(status: RequestStatus, state: str, message: str, now: float) -> RequestStatus:
    """`status` with its final word: `state` is done or failed."""
    return replace(status, state=state, message=message, finished_at=now)  # type: ignore[arg-type]


def checkpointed(status: RequestStatus, checkpoint: CheckpointRef, now: float) -> RequestStatus:
    """`status` of a checkpoint request that `checkpoint` answers."""
    done = ended(status, "done", f"checkpoint {checkpoint.id} at step {checkpoint.step}", now)
    return replace(done, checkpoint=checkpoint.id, step=checkpoint.step)
