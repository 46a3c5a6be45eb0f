"""Where a job's lineage branches: rewinds to older checkpoints, and the checkpoint of another job it began with. Pure.

Checkpoints form a tree. The parent of a checkpoint is the one before it in its attempt, or the one that its attempt
was restored from. The branch that the job is on leads from its committed checkpoint to the root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from singularity_proxy.protocol import names
from singularity_proxy.protocol.decode import Count, Record, UnixTime, Unreadable
from singularity_proxy.protocol.messages import AnyId, CheckpointRef, Origin, to_json

from ..kube.resources import annotation
from . import annotation_values, attempt_records, job_names
from .annotation_values import readable
from .record_types import AttemptRecord

MAX_KEPT: Final = 50


@dataclass(frozen=True)
class Rewind(Record):
    """Somebody has given up what came after a checkpoint."""

    attempt: Count
    """The last attempt before it: nothing of it is committed any more."""
    checkpoint: AnyId
    """The job goes on from it,"""
    step: Count
    """with this step."""
    steps: Count
    """Steps that were made, and are given up with it."""
    by: str
    """The requester, for people."""
    at: UnixTime


def rewinds(job: Mapping[str, Any] | None) -> list[Rewind]:
    """Oldest first; empty when there is none or the annotation is unreadable."""
    return readable(annotation_values.messages(job, job_names.ANN_REWINDS, Rewind), [])


def given_up(found: Sequence[Rewind], attempt: int) -> Rewind | None:
    """The one of a job's rewinds that has given up `attempt`, which may still run; None if there is none."""
    return found[-1] if found and found[-1].attempt == attempt else None


def rewound(job: Mapping[str, Any], new: Rewind) -> dict[str, str | None]:
    """The annotation with `new`. A second one in the same attempt counts alone."""
    before = [known for known in rewinds(job) if known.attempt != new.attempt]
    return {job_names.ANN_REWINDS: to_json([*before, new][-MAX_KEPT:])}


def reached(job: Mapping[str, Any]) -> int:
    """Step boundaries that the newest attempt has passed, or that its start has."""
    past, saved = attempt_records.history(job), attempt_records.checkpoint(job)
    last = past[-1] if past else None
    if last is not None and last.last_step is not None:
        return last.last_step + 1
    if last is not None and last.first_step is not None:
        return last.first_step
    return saved.step if saved is not None else 0


def sentence(rewind: Rewind) -> str:
    """Words for people."""
    by = f" by {rewind.by}" if rewind.by else ""
    lost = f"{rewind.steps} steps are given up" if rewind.steps != 1 else "1 step is given up"
    return f"rewound{by} to checkpoint {rewind.checkpoint} (step {rewind.step}); {lost}"


# --- the branch that the job is on ------------------------------------------------------------------------------------
def known(job: Mapping[str, Any] | None) -> list[CheckpointRef]:
    """All committed checkpoints that the job knows, oldest first."""
    saved = attempt_records.checkpoint(job)
    found = {ref.id: ref for ref in attempt_records.checkpoints(job)}
    if saved is not None:
        found.setdefault(saved.id, saved)
    return sorted(found.values(), key=lambda ref: ref.generation)


def line(job: Mapping[str, Any] | None) -> list[CheckpointRef]:
    """The checkpoints on the job's branch, oldest first; empty if it starts from the beginning."""
    tip = attempt_records.checkpoint(job)
    return branch_of(tip, known(job), attempt_records.history(job)) if tip is not None else []


def branch_of(
    tip: CheckpointRef, refs: Sequence[CheckpointRef], attempts: Sequence[AttemptRecord]
) -> list[CheckpointRef]:
    """`tip` and its ancestors among `refs`, oldest first.

    Where nothing tells how an attempt started, all older checkpoints count as ancestors. Without a rewind they are.
    """
    starts = {record.attempt: record.restored_from for record in attempts}
    by_id = {ref.id: ref for ref in refs}
    found = [tip]
    while True:
        last = found[-1]
        older = [ref for ref in refs if ref.generation < last.generation]
        same = [ref for ref in older if ref.attempt == last.attempt]
        if same:
            found.append(max(same, key=lambda ref: ref.generation))
        elif not starts.get(last.attempt):
            found += sorted(older, key=lambda ref: ref.generation, reverse=True)
            return found[::-1]
        else:
            parent = by_id.get(str(starts[last.attempt]))
            if parent is None or parent.generation >= last.generation:
                return found[::-1]
            found.append(parent)


# --- forks ------------------------------------------------------------------------------------------------------------
def start_from(job: Mapping[str, Any] | None) -> Origin | Unreadable | None:
    """What whoever created the Job wants it to begin with; None for the beginning."""
    return annotation_values.message(job, job_names.ANN_START_FROM, Origin)


def origin(job: Mapping[str, Any] | None) -> Origin | None:
    """The checkpoint that the job began with, as the controller has found it; `job` is the one that made it."""
    return readable(annotation_values.message(job, job_names.ANN_ORIGIN, Origin), None)


def maker(job: Mapping[str, Any] | None, name: str, checkpoint: str) -> str:
    """The job in whose folder of the store `checkpoint` of `job`, called `name`, lies."""
    found = origin(job)
    return found.job if found is not None and found.checkpoint == checkpoint else name


def begun(source_name: str, source: Mapping[str, Any], ref: CheckpointRef) -> dict[str, str | None]:
    """What is written on a new job that begins with `ref` of `source`."""
    made_by = maker(source, source_name, ref.id)
    ref = replace(ref, failed=[])  # in another job it may be restored
    text = to_json(ref)
    return {
        job_names.ANN_ORIGIN: to_json(Origin(made_by, ref.id)),
        names.ANN_CHECKPOINT: text,
        job_names.ANN_CHECKPOINT_COPY: text,
        job_names.ANN_CHECKPOINTS: to_json([ref]),
        # The number of an attempt is part of the number of its checkpoints, which only grows along a branch.
        job_names.ANN_ATTEMPT: str(ref.attempt),
    }


def unfit(new: Mapping[str, Any], ref: CheckpointRef) -> str:
    """Why the new job `new` cannot begin with `ref`, "" if it can."""
    if ref.unusable:
        return f"checkpoint {ref.id} cannot be restored: {ref.unusable}"
    engine = annotation(new, job_names.ANN_ENGINE) or names.ENGINE_PROCESS
    if engine != ref.engine and names.ENGINE_BOTH not in (engine, ref.engine):
        return (
            f"checkpoint {ref.id} was made with engine {ref.engine!r}, the job has {engine!r}: give the same engine, "
            f"or {names.ENGINE_BOTH!r} for a script that uses singularity_train"
        )
    ranks = attempt_records.integer(new, job_names.ANN_WORLD_SIZE)
    if names.ENGINE_PROCESS in (engine, ref.engine) and ranks != ref.world_size:
        return f"checkpoint {ref.id} has {ref.world_size} ranks, the job has {ranks}: the number of ranks stays"
    store = annotation(new, job_names.ANN_STORE) or ""
    if store.rstrip("/") != ref.url.rstrip("/"):
        return f"checkpoint {ref.id} is in store {ref.url}, the store of the job is {store}: give the same store"
    return ""
