"""How many attempts a job may lose to the infrastructure, and how many it has lost. Pure.

A preemption is Kueue's decision and never counts. An attempt counts if it broke off without a checkpoint of its own.
Causes are a lost pod or node, a kill by the kernel, or an exit code after which the job wants to go on.
"""

from __future__ import annotations

import json

from ..contract import attempt_records, job_names
from ..contract.record_types import AttemptRecord
from ..jobs import lifecycle
from .snapshot import Job

END = lifecycle.END
"""The change that makes Kubernetes fail a running Job: the only way for a client that may patch Jobs."""


def counted(job: Job, record: AttemptRecord) -> tuple[int, dict[str, str | None]]:
    """Attempts lost with `record`, and the annotation that says so; counting the same attempt twice changes nothing."""
    count = 0 if job.lost is None else job.lost.count
    if record.checkpoint is not None or (job.lost is not None and job.lost.attempt == record.attempt):
        return count, {}
    return count + 1, {job_names.ANN_BROKEN: json.dumps({"attempt": record.attempt, "count": count + 1})}


def used_up(job: Job, count: int) -> str | None:
    """The sentence that ends the job, None while the budget lasts."""
    limit = job.infrastructure_retries
    return None if limit is None or count <= limit else attempt_records.used_up(limit)
