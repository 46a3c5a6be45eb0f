"""A job as one line of a list: what is shown there, and nothing else is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singularity_proxy.protocol.messages import CheckpointRef

from ..contract import attempt_records, branches, job_names, kinds
from ..contract.record_types import AttemptRecord
from ..job import states
from ..job.unreadable import readable_or
from ..job.view import Job
from ..kube.resources import label
from .phase import Phase, classify
from .queue_position import Position


@dataclass(frozen=True)
class JobLine:
    """One look at a job. `JobStatus` is one, too, and has all the rest."""

    namespace: str
    name: str
    phase: str
    reason: str
    message: str
    queue: str
    attempt: int
    """Current attempt, 0 before the first admission."""
    workers: int
    pods: int
    """Pods of the current attempt; 0 while it has none."""
    flavor: str
    cluster: str
    """The worker cluster that the current attempt runs in, where MultiKueue has moved the job there."""
    step: int
    """Step boundaries passed, 0 when none is known."""

    @property
    def final(self) -> bool:
        return Phase(self.phase).final


def of_job(
    job: Mapping[str, Any],
    workload: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    position: Position | None = None,
    attempt: Callable[[Mapping[str, Any]], AttemptRecord | None] = attempt_records.last_alone,
) -> JobLine:
    """Return the line of a managed Job. Pure.

    :param attempt: how its last attempt is read
    """
    last = attempt(job)
    state = classify(workload, job, pods, position, attempt=lambda job: last)
    seen, alive = Job.parse(job), last if last is not None and last.ended_by is None else None
    return JobLine(
        namespace=job["metadata"]["namespace"],
        name=kinds.job_key(job),
        phase=state.phase.value,
        reason=state.reason,
        message=state.message,
        queue=label(job, job_names.KUEUE_QUEUE_LABEL) or "",
        attempt=readable_or(seen.attempt_shown, None) or 0,
        workers=readable_or(seen.workers_wanted, states.parallelism(job)),
        pods=alive.pods if alive else 0,
        flavor=alive.flavor if alive else "",
        cluster=(alive.cluster or "") if alive else "",
        step=_step(attempt_records.progress(job), attempt_records.checkpoint(job), last, branches.rewinds(job)),
    )


def _step(
    seen: attempt_records.ProgressNote | None,
    saved: CheckpointRef | None,
    last: AttemptRecord | None,
    back: Sequence[branches.Rewind],
) -> int:
    """Steps that count: those of an attempt that was given up do not."""
    start = saved.step if saved else 0
    if last is not None and back and back[-1].attempt == last.attempt:
        return start
    at = seen.step if seen and not (last is not None and back and seen.attempt < last.attempt) else 0
    return max(at, start, reached(last))


def reached(record: AttemptRecord | None) -> int:
    """Steps that are done with this attempt."""
    if record is None:
        return 0
    return (record.first_step or 0) if record.last_step is None else record.last_step + 1
