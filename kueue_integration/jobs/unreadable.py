"""Annotations of a job that cannot be read: which, and why. All go on without them, and people see a note. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from proxy.protocol import names
from proxy.protocol.decode import Unreadable
from proxy.protocol.messages import AttemptRecord, CheckpointRef, JobRequest, Placement, RequestStatus

from ..contract import annotation_values, attempt_phases, attempt_records, job_names, leaves, saveable
from ..kube.resources import annotation
from ..requests import periodic_checkpoints
from ..spec import save_interval

Job = Mapping[str, Any]


def _message(cls: type[Any]) -> Callable[[Job, str], object]:
    return lambda job, name: annotation_values.message(job, name, cls)


def _messages(cls: type[Any]) -> Callable[[Job, str], object]:
    return lambda job, name: annotation_values.messages(job, name, cls)


def _count(job: Job, name: str) -> object:
    return annotation_values.whole(job, name, most=attempt_records.MAX_COUNT)


def _save_interval(job: Job, name: str) -> object:
    try:
        return save_interval.parse(annotation(job, name))
    except ValueError as error:
        return Unreadable(str(error))


FORMS: Final[Mapping[str, Callable[[Job, str], object]]] = {
    job_names.ANN_ATTEMPT: _count,
    job_names.ANN_BROKEN: _message(attempt_records.Lost),
    job_names.ANN_BUDGET: lambda job, name: attempt_records.budget(job),
    names.ANN_CHECKPOINT: _message(CheckpointRef),
    job_names.ANN_CHECKPOINT_COPY: _message(CheckpointRef),
    job_names.ANN_CHECKPOINT_EVERY: _save_interval,
    job_names.ANN_CHECKPOINT_POLICY: _message(periodic_checkpoints.Memory),
    job_names.ANN_CHECKPOINT_REQUEST: _message(JobRequest),
    job_names.ANN_CHECKPOINT_STATUS: _message(RequestStatus),
    job_names.ANN_CHECKPOINTS: _messages(CheckpointRef),
    job_names.ANN_CURVE: lambda job, name: annotation_values.value(job, name),
    job_names.ANN_HISTORY: _messages(AttemptRecord),
    job_names.ANN_HOLD_DEADLINE: annotation_values.moment,
    job_names.ANN_INFRASTRUCTURE_RETRIES: _count,
    job_names.ANN_LEAVE: _message(leaves.Leave),
    job_names.ANN_MIN_WORKERS: _count,
    job_names.ANN_PHASES: _messages(attempt_phases.AttemptPhases),
    job_names.ANN_PLACEMENT: _message(Placement),
    job_names.ANN_PODS: _message(attempt_records.Roster),
    job_names.ANN_PROGRESS: lambda job, name: attempt_records.noted_progress(job),
    job_names.ANN_RESULT: lambda job, name: annotation_values.value(job, name),
    job_names.ANN_REQUEST: _message(JobRequest),
    job_names.ANN_REQUEST_STATUS: _message(RequestStatus),
    job_names.ANN_SAVEABLE: _message(saveable.Saveable),
    job_names.ANN_SCHEMA: _count,
    job_names.ANN_SHAPE_BEFORE: _message(leaves.Shape),
    job_names.ANN_WORKERS: _count,
    job_names.ANN_WORLD_SIZE: _count,
    job_names.ANN_RANKS_PER_WORKER: _count,
}
"""How each annotation of ours on a job is read."""
_INSTEAD: Final = {
    job_names.ANN_BUDGET: "the platform's maximum counts",
    job_names.ANN_CHECKPOINT_EVERY: "there are no periodic checkpoints",
    names.ANN_CHECKPOINT: "no attempt starts before it is repaired, or set to nothing to start from the beginning",
}


def found(job: Job) -> dict[str, str]:
    """Name -> why, of what is there and cannot be read."""
    given = (job.get("metadata") or {}).get("annotations") or {}
    read_all = {name: FORMS[name](job, name) for name in FORMS if name in given}
    return {name: value.why for name, value in read_all.items() if isinstance(value, Unreadable)}


def sentences(job: Job) -> list[str]:
    """The same for people."""
    return [
        f"annotation {name} cannot be read: {why}" + (f"; {_INSTEAD[name]}" if name in _INSTEAD else "")
        for name, why in found(job).items()
    ]
