"""Who was preempted lately and by whom. Pure.

It stands in the records of attempts. So it is known as long as the Job exists and its history is not cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..contract.record_types import Preemptor
from .model import Training

LATELY_S = 86_400.0
MOST = 50
"""Lines at most."""
PREEMPTED = "Preempted"


@dataclass(frozen=True)
class Preemption:
    """An attempt of a training job that gave its quota to another Workload."""

    time: float
    """Unix seconds of the eviction."""
    namespace: str
    job: str
    uid: str
    attempt: int
    flavor: str
    pods: int
    by: str
    """The preemptor's Workload, or its UID; "" where nobody could tell."""
    preemptor: Preemptor | None
    checkpoint: str | None
    """The checkpoint that it left behind."""
    released: bool
    """It has given its quota back; before that its checkpoint may be under way."""


def preemptions(trainings: Iterable[Training], now: float) -> list[Preemption]:
    """Those of the last LATELY_S seconds, the newest first."""
    found = [
        Preemption(
            time=record.evicted_at, namespace=job.namespace, job=job.name, uid=job.uid, attempt=record.attempt,
            flavor=record.flavor, pods=record.pods, by=record.preempted_by or "", preemptor=record.preemptor,
            checkpoint=record.checkpoint, released=record.released_at is not None,
        )
        for job in trainings
        for record in job.attempts
        if record.ended_by == PREEMPTED and record.evicted_at is not None and now - record.evicted_at <= LATELY_S
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.time, one.namespace, one.job))[:MOST]
