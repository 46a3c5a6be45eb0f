"""What users ask of a job that is there already, and the controller's answers, as they stand on it. Pure.

There are two places for requests on a Job, because a checkpoint changes nothing about it and may come at any time.
Each holds one request, the last; the answer beside it carries the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..contract import annotation_values, job_names
from ..contract.annotation_values import readable
from ..contract.record_types import JobRequest, RequestOp, RequestStatus


@dataclass(frozen=True)
class Slot:
    """A place for one request: the names of its two annotations."""

    request: str
    status: str


CHANGE = Slot(job_names.ANN_REQUEST, job_names.ANN_REQUEST_STATUS)
CHECKPOINT = Slot(job_names.ANN_CHECKPOINT_REQUEST, job_names.ANN_CHECKPOINT_STATUS)
SLOTS = (CHANGE, CHECKPOINT)


def slot_of(op: RequestOp) -> Slot:
    return CHECKPOINT if op == "checkpoint" else CHANGE


@dataclass(frozen=True)
class Exchange:
    """What one slot holds: a request, and the controller's answer to that very request."""

    request: JobRequest | None = None
    answer: RequestStatus | None = None

    @property
    def running(self) -> tuple[JobRequest, RequestStatus] | None:
        """Both while the controller carries the request out."""
        request, status = self.request, self.answer
        return (request, status) if request is not None and status is not None and status.state == "running" else None


def exchange(job: Mapping[str, Any] | None, slot: Slot) -> Exchange:
    """What stands in `slot`."""
    request = asked(job, slot)
    found = readable(annotation_values.message(job, slot.status, RequestStatus), None)
    return Exchange(request, found if found is not None and request is not None and found.id == request.id else None)


def asked(job: Mapping[str, Any] | None, slot: Slot) -> JobRequest | None:
    """The request in `slot`, None without one or when it cannot be read."""
    found = readable(annotation_values.message(job, slot.request, JobRequest), None)
    return found if found is not None and slot_of(found.op) is slot else None


def answer(job: Mapping[str, Any] | None, slot: Slot) -> RequestStatus | None:
    """The controller's answer to the request in `slot`; None while there is none to that very request."""
    return exchange(job, slot).answer


def running(job: Mapping[str, Any] | None, slot: Slot) -> tuple[JobRequest, RequestStatus] | None:
    """The request in `slot` while the controller carries it out."""
    return exchange(job, slot).running
