"""All that stands on a Job of ours: each annotation with its form, its writer, what it means, and who brought it. Pure.

Rules for every record (decision 2). A field that is added has a default, and none is taken away or gets another
meaning. Whoever does not know a field ignores it and writes it back. Fields at their default are not written. An
enumeration that grows says what an unknown word reads as (`decode.Grows`). Limits count bytes of UTF-8. Times are Unix
seconds by the controller's clock, durations seconds, sizes bytes, steps are numbered from 0.

What breaks one of these rules needs a higher `attempt_records.SCHEMA`: an older controller then repairs and deletes
nothing on the Job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from singularity_proxy.protocol import names
from singularity_proxy.protocol.decode import Unreadable
from singularity_proxy.protocol.messages import CheckpointRef, Origin
from singularity_proxy.protocol.outputs import StoredOutputs

from ..contract import annotation_values, attempt_phases, attempt_records, branches, job_names, leaves, saveable
from ..contract.record_types import AttemptRecord, CheckpointMemory, JobRequest, Placement, RequestStatus
from ..kube.resources import annotation
from ..spec import save_interval

Job = Mapping[str, Any]
Read = Callable[[Job, str], object]
"""The value of an annotation of a Job, None without one, Unreadable for what has not its form."""
Writer = Literal["controller", "creator", "user"]
"""`creator`: whoever makes the Job; afterwards it stays. `user`: whoever may edit the Job, at any time. The guard keeps
users from the annotations of the others (`guard.ownership`)."""


@dataclass(frozen=True)
class Field:
    """One annotation of a Job."""

    name: str
    read: Read
    writer: Writer
    means: str
    since: str = "0.1.0"
    """The release that brought it."""


@dataclass(frozen=True)
class Message:
    """Reads JSON of one `cls`."""

    cls: type[Any]

    def __call__(self, job: Job, name: str) -> object:
        return annotation_values.message(job, name, self.cls)


@dataclass(frozen=True)
class Messages(Message):
    """Reads a JSON list of `cls`, oldest first."""

    def __call__(self, job: Job, name: str) -> object:
        return annotation_values.messages(job, name, self.cls)


def _count(job: Job, name: str) -> object:
    return annotation_values.whole(job, name, most=attempt_records.MAX_COUNT)


def _json(job: Job, name: str) -> object:
    return annotation_values.value(job, name)


def _text(job: Job, name: str) -> object:
    return annotation(job, name)


def _one_of(*words: str) -> Read:
    def read(job: Job, name: str) -> object:
        found = annotation(job, name)
        return found if found is None or found in words else Unreadable(f"none of {', '.join(words)}")

    return read


def _save_interval(job: Job, name: str) -> object:
    try:
        return save_interval.parse(annotation(job, name))
    except ValueError as error:
        return Unreadable(str(error))


FIELDS: Final = (
    # --- attempts
    Field(job_names.ANN_ATTEMPT, _count, "controller", "number of the current attempt, from 1; it only grows"),
    Field(
        job_names.ANN_HISTORY, Messages(AttemptRecord), "controller",
        "the attempts, oldest first: at most 50 and 96 KiB; older ones are summed up in `earlier` of the first",
    ),
    Field(
        job_names.ANN_HISTORY_ASIDE, _text, "controller",
        "a history that nobody could read, for people: at most 96 KiB, the newest part",
    ),
    Field(
        job_names.ANN_SCHEMA, _count, "controller",
        "number of the format of all of this (`attempt_records.SCHEMA`), of the newest release that wrote",
        since="0.2.0",
    ),
    Field(
        job_names.ANN_PODS, Message(attempt_records.Roster), "controller",
        "the pods with which the attempt took its first step, by the first characters of their UIDs",
    ),
    Field(
        job_names.ANN_PHASES, Messages(attempt_phases.AttemptPhases), "controller",
        "seconds of the phases of the last 20 attempts' starts and saves",
    ),
    Field(
        job_names.ANN_BROKEN, Message(attempt_records.Lost), "controller",
        "how many attempts were lost to the infrastructure, and the last of them",
    ),
    # --- progress
    Field(
        job_names.ANN_PROGRESS, lambda job, name: attempt_records.noted_progress(job), "controller",
        "the step that the current attempt has reached, and what it does",
    ),
    Field(job_names.ANN_CURVE, _json, "controller", "[step, loss] as rank 0 printed them, thinned out"),
    Field(job_names.ANN_RESULT, _json, "controller", "JSON object left by rank 0's program: at most 48,000 bytes"),
    Field(
        job_names.ANN_OUTPUTS_STORED, Message(StoredOutputs), "controller",
        "where what the ranks wrote to $OUTPUTS is, once all of it is there",
    ),
    # --- checkpoints
    Field(
        names.ANN_CHECKPOINT, Message(CheckpointRef), "controller",
        "the committed checkpoint; empty: a user wants the next attempt to start from the beginning",
    ),
    Field(
        job_names.ANN_CHECKPOINT_COPY, Message(CheckpointRef), "controller",
        "its copy, from which a checkpoint that was removed by accident comes back",
    ),
    Field(
        job_names.ANN_CHECKPOINTS, Messages(CheckpointRef), "controller",
        "the last 20 committed checkpoints, oldest first, with what is known against them",
    ),
    Field(
        job_names.ANN_SAVEABLE, Message(saveable.Saveable), "controller",
        "whether the attempt can be saved, as its last save or trial has shown, and why not",
    ),
    Field(
        job_names.ANN_REWINDS, Messages(branches.Rewind), "controller",
        "the attempts that were given up for an older checkpoint, oldest first",
    ),
    Field(
        job_names.ANN_ORIGIN, Message(Origin), "controller",
        "the checkpoint of another job that it began with, as the controller has found it",
    ),
    Field(
        job_names.ANN_START_FROM, Message(Origin), "creator",
        "the checkpoint of another job of the namespace that it is to begin with",
    ),
    Field(job_names.ANN_STORE, _text, "creator", "URL of the store of its checkpoints; absent: the platform's"),
    Field(
        job_names.ANN_INPUTS, annotation_values.texts, "creator",
        "JSON object: name -> URL of what its ranks find in $INPUTS/NAME; absent: it has none",
    ),
    Field(job_names.ANN_OUTPUTS, _text, "creator", "URL for what its ranks write to $OUTPUTS; absent: it has none"),
    Field(job_names.ANN_PRIVILEGES, _text, "creator", "an adopted job's wish: `userns`, `node` or `auto`"),
    Field(job_names.ANN_PRIVILEGES_WHY, _text, "creator", "why its pods have the level that they have, for people"),
    Field(
        job_names.ANN_CHECKPOINT_EVERY, _save_interval, "user",
        "checkpoints after which it trains on: `300s`, `10m`, `500 steps`, `auto` or `off`",
    ),
    Field(
        job_names.ANN_CHECKPOINT_POLICY, Message(CheckpointMemory), "controller",
        "what the controller remembers between two of these",
    ),
    # --- hold
    Field(
        job_names.ANN_HOLD, _text, "user",
        "`armed`: Kueue's suspend is denied until it is `released`; `off`, absent: plain Kueue; else: put back",
    ),
    Field(
        job_names.ANN_HOLD_DEADLINE, annotation_values.moment, "controller",
        "RFC 3339 time after which nothing is denied any more; there while a hold lasts",
    ),
    Field(
        job_names.ANN_BUDGET, lambda job, name: attempt_records.budget(job), "user",
        "seconds that a checkpoint may take when it is preempted; at most the platform's maximum",
    ),
    Field(
        job_names.ANN_INFRASTRUCTURE_RETRIES, _count, "user",
        "how many attempts may be lost to the infrastructure; absent: no limit",
    ),
    # --- size and place
    Field(job_names.ANN_WORKERS, _count, "creator", "pods wanted; a resize changes it"),
    Field(job_names.ANN_MIN_WORKERS, _count, "creator", "the fewest pods that it starts with"),
    Field(job_names.ANN_WORLD_SIZE, _count, "creator", "ranks, where their number is the same in all attempts"),
    Field(job_names.ANN_RANKS_PER_WORKER, _count, "creator", "ranks of each pod, where pods come and go"),
    Field(
        job_names.ANN_ENGINE, _one_of(*names.ENGINES), "creator",
        "what is saved: absent is `process`",
    ),
    Field(
        job_names.ANN_PLACEMENT, Message(Placement), "controller",
        "where it may run since a migration; absent: anywhere in its queue",
    ),
    Field(
        job_names.ANN_SHAPE_BEFORE, Message(leaves.Shape), "controller",
        "size and place before the request that changes them: they come back if it fails",
    ),
    Field(
        job_names.ANN_LEAVE, Message(leaves.Leave), "controller",
        "how far a voluntary stop is, which is saved first",
    ),
    # --- requests
    Field(job_names.ANN_REQUEST, Message(JobRequest), "user", "the last request that changes the job"),
    Field(job_names.ANN_REQUEST_STATUS, Message(RequestStatus), "controller", "the answer to it"),
    Field(job_names.ANN_CHECKPOINT_REQUEST, Message(JobRequest), "user", "the last request for a checkpoint"),
    Field(job_names.ANN_CHECKPOINT_STATUS, Message(RequestStatus), "controller", "the answer to it"),
)  # fmt: skip
BY_NAME: Final = {field.name: field for field in FIELDS}


def unreadable(job: Job) -> dict[str, str]:
    """Name -> why, of what is there and has not its form."""
    given = (job.get("metadata") or {}).get("annotations") or {}
    found = {field.name: field.read(job, field.name) for field in FIELDS if field.name in given}
    return {name: value.why for name, value in found.items() if isinstance(value, Unreadable)}
