"""A job as one line of a list: what is shown there, and nothing else is read. Two thousand jobs are no second's work.

`status.summarise` says the same of these fields, and of many more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import attempt_records, branches, job_names, kinds
from ..job import states
from ..job.unreadable import readable_or
from ..job.view import Job
from ..kube.resources import label
from .phase import Phase, classify
from .status import step


@dataclass(frozen=True)
class JobLine:
    """As in `JobStatus`."""

    namespace: str
    name: str
    phase: str
    message: str
    queue: str
    attempt: int
    workers: int
    pods: int
    flavor: str
    cluster: str
    step: int

    @property
    def final(self) -> bool:
        return Phase(self.phase).final


def of_job(job: Mapping[str, Any], workload: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobLine:
    """Return the line of a managed Job. Pure."""
    last = attempt_records.last_alone(job)
    state = classify(workload, job, pods, attempt=lambda job: last)
    seen, alive = Job.parse(job), last if last is not None and last.ended_by is None else None
    return JobLine(
        namespace=job["metadata"]["namespace"],
        name=kinds.job_key(job),
        phase=state.phase.value,
        message=state.message,
        queue=label(job, job_names.KUEUE_QUEUE_LABEL) or "",
        attempt=readable_or(seen.attempt_shown, None) or 0,
        workers=readable_or(seen.workers_wanted, states.parallelism(job)),
        pods=alive.pods if alive else 0,
        flavor=alive.flavor if alive else "",
        cluster=(alive.cluster or "") if alive else "",
        step=step(attempt_records.progress(job), attempt_records.checkpoint(job), last, branches.rewinds(job)),
    )
