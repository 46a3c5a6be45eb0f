"""What the controller writes on the Job, read back: history, committed checkpoint, progress. Pure.

These annotations are ours, but anybody who may edit the Job may spoil them: readers get "nothing known", not a crash.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from singularity_proxy.protocol import names
from singularity_proxy.protocol.decode import MAX_WHOLE, AnyFloat, UnixTime, Unreadable, json_value, typed
from singularity_proxy.protocol.messages import CheckpointRef, Gpus

from ..kube.resources import annotation
from . import annotation_values, job_names
from .annotation_values import readable
from .record_types import AttemptRecord

SCHEMA = 1
"""Number of the format of all that the controller writes on a Job. It grows where an older controller would take a
record for something that it is not. A field with a default is no such change: older ones keep it."""
STEPLESS_S = 20.0
SHORT_NOTE, NOTES_KEPT = 4096, 8192
"""Notes of so few characters are kept with what they say, so many of them: two of each job, its own and the newest."""
MAX_COUNT = 10**9
"""Of workers, ranks and attempts: more is a slip, or meant to harm."""
MAX_BUDGET_S = 999_999
"""Six digits, as the adoption policy has it. More is a slip, or meant to harm."""


@dataclass(frozen=True)
class ProgressNote:
    """What is known of a running attempt: `step` boundaries passed in `attempt`, seen `at` (Unix seconds).

    It stands in a small object of its own (`progress_objects`), and in an annotation of the Job, which is written at
    changes of phase.

    `phase` is what the leader was doing, as in `singularity_proxy.protocol.messages.Progress`.
    """

    attempt: int
    step: int
    at: UnixTime
    phase: str = ""
    free: bool = False
    """No step was made in `attempt` yet, and no rank waits for another."""
    printed: int | None = None
    """Step, total and loss as rank 0 printed them last, in the script's own counting."""
    total: int | None = None
    loss: AnyFloat | None = None
    bytes_done: int | None = None
    bytes_total: int | None = None
    """While the phase is `uploading`: how much of the checkpoint the store has, and how much there is."""
    gpus: Gpus | None = None
    curve: list[AnyFloat] = field(default_factory=list)
    """The newest points of the loss curve, which the annotation with the whole curve does not have yet: step, loss,
    step, loss."""


def schema(job: Mapping[str, Any] | None) -> int:
    """The format in which the records of `job` are written, 0 where nobody has said."""
    return integer(job, job_names.ANN_SCHEMA)


def newer(job: Mapping[str, Any] | None) -> bool:
    """Whether a newer release has written the records of `job` in a format that this one does not know."""
    return schema(job) > SCHEMA


def history(job: Mapping[str, Any] | None) -> list[AttemptRecord]:
    """Attempts of `job`, oldest first; empty when there is none or the annotation is unreadable."""
    return readable(told_history(job), [])


def told_history(job: Mapping[str, Any] | None) -> list[AttemptRecord] | Unreadable:
    """The same; the last record says what the newer progress note knows."""
    found = annotation_values.messages(job, job_names.ANN_HISTORY, AttemptRecord)
    if isinstance(found, Unreadable) or not found:
        return found
    seen = progress(job)
    return found if seen is None else [*found[:-1], reached(found[-1], seen)]


def last(job: Mapping[str, Any] | None) -> AttemptRecord | None:
    """The last attempt of `history`."""
    found = history(job)
    return found[-1] if found else None


def last_alone(job: Mapping[str, Any] | None) -> AttemptRecord | None:
    """The same for who looks at many jobs once: a tenth of the time, and the records before it may be unreadable."""
    found = readable(annotation_values.last_message(job, job_names.ANN_HISTORY, AttemptRecord), None)
    seen = None if found is None else progress(job)
    return found if found is None or seen is None else reached(found, seen)


def stored_last(job: Mapping[str, Any] | None) -> AttemptRecord | None:
    """The last record as it stands on the Job, without what a newer progress note knows."""
    found = readable(annotation_values.messages(job, job_names.ANN_HISTORY, AttemptRecord), [])
    return found[-1] if found else None


def reached(record: AttemptRecord, seen: ProgressNote) -> AttemptRecord:
    """`record` with the last step and the GPUs of a note about the same attempt.

    The commit that has ended an attempt knows its last step. Otherwise steps only grow: none is lost unnoticed.
    """
    if seen.attempt != record.attempt:
        return record
    gpus = record.gpus if seen.gpus is None else seen.gpus
    moved = record.first_step is not None and seen.step > record.first_step and record.checkpoint is None
    last = max(seen.step - 1, record.last_step or 0) if moved else record.last_step
    return record if (last, gpus) == (record.last_step, record.gpus) else replace(record, last_step=last, gpus=gpus)


def steps_lost(attempts: Sequence[AttemptRecord]) -> dict[int, int]:
    """By attempt: steps that it runs again, though an earlier one had completed them. Some that could not be restored
    may lie between both."""
    lost, reached = {}, 0
    for record in attempts:
        if record.first_step is not None and record.first_step < reached:
            lost[record.attempt] = reached - record.first_step
            reached = record.first_step
        if record.last_step is not None:
            reached = record.last_step + 1
    return lost


def all_steps_lost(attempts: Sequence[AttemptRecord]) -> int:
    """Of the whole job, with attempts that are kept as numbers only."""
    earlier = attempts[0].earlier if attempts else None
    return sum(steps_lost(attempts).values()) + (0 if earlier is None else earlier.steps_lost)


def checkpoint(job: Mapping[str, Any] | None) -> CheckpointRef | None:
    """The committed checkpoint of `job`."""
    return readable(annotation_values.message(job, names.ANN_CHECKPOINT, CheckpointRef), None)


def checkpoints(job: Mapping[str, Any] | None) -> list[CheckpointRef]:
    """The newest checkpoints of `job` that were committed, oldest first."""
    return readable(annotation_values.messages(job, job_names.ANN_CHECKPOINTS, CheckpointRef), [])


def progress(job: Mapping[str, Any] | None) -> ProgressNote | None:
    """The last progress note of `job`."""
    return readable(noted_progress(job), None)


def noted_progress(job: Mapping[str, Any] | None) -> ProgressNote | Unreadable | None:
    """The same, or why it cannot be read."""
    text = annotation(job, job_names.ANN_PROGRESS)
    return note(text) if text else None


def note(text: str) -> ProgressNote | Unreadable:
    """The progress note that `text` is. Callers must not change it."""
    return _known_note(text) if len(text) <= SHORT_NOTE else _read_note(text)


def _read_note(text: str) -> ProgressNote | Unreadable:
    data = json_value(text, annotation_values.MAX_TEXT)
    if isinstance(data, Unreadable):
        return Unreadable(f"{ProgressNote.__name__}: {data.why}")
    return typed(ProgressNote, data)


_known_note = functools.lru_cache(NOTES_KEPT)(_read_note)


def trains_since(job: Mapping[str, Any], record: AttemptRecord) -> float | None:
    """Unix seconds since which the newest attempt `record` of `job` trains, None before that.

    That is its first step. A program that may make no step counts as training once it has run for STEPLESS_S, which may
    lie in the future. A single rank meets nobody, so it counts at once.
    """
    seen = progress(job)
    if record.first_step_at is not None or seen is None or seen.attempt != record.attempt or not seen.free:
        return record.first_step_at
    if record.running_at is None:
        return None
    return record.running_at + (0.0 if record.ranks == 1 else STEPLESS_S)


def integer(job: Mapping[str, Any] | None, name: str, default: int = 0, most: int = MAX_WHOLE) -> int:
    """Annotation `name` as a number from 0 to `most`, `default` if absent or not one."""
    found = annotation_values.whole(job, name, most=most)
    return default if found is None or isinstance(found, Unreadable) else found


@dataclass(frozen=True)
class Roster:
    """The annotation that names the pods of an attempt: their UIDs, the first characters of each."""

    attempt: int
    uids: list[str]


@dataclass(frozen=True)
class Lost:
    """The annotation that counts attempts lost to the infrastructure; `attempt` was the last of them."""

    attempt: int
    count: int


def lost(job: Mapping[str, Any] | None) -> Lost | None:
    """What was counted, None if nothing was or it cannot be read."""
    return readable(annotation_values.message(job, job_names.ANN_BROKEN, Lost), None)


def broken(job: Mapping[str, Any] | None) -> int:
    """How many attempts of `job` were lost to the infrastructure."""
    found = lost(job)
    return 0 if found is None else found.count


def budget(job: Mapping[str, Any] | None) -> int | Unreadable | None:
    """Seconds for a checkpoint that the job asks for, None if it does not say."""
    return annotation_values.whole(job, job_names.ANN_BUDGET, most=MAX_BUDGET_S)


def infrastructure_retries(job: Mapping[str, Any] | None) -> int | None:
    """How many may be; None: no limit."""
    return readable(annotation_values.whole(job, job_names.ANN_INFRASTRUCTURE_RETRIES), None)


def forget(job: Mapping[str, Any]) -> None:
    """Drop what is kept of the records of a Job that is gone."""
    annotation_values.forget(job)


def used_up(limit: int) -> str:
    """The message of a job that has lost one attempt more than `limit`."""
    return f"its budget of {limit} infrastructure retries is used up"
