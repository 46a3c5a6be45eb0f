"""The attempts of a simulated job as the controller keeps them: what a move cost, and how fast it was at which size.

Times are Unix seconds. A step is a second of the job's work.
"""

from __future__ import annotations

from dataclasses import replace

from kueue_integration.contract.record_types import AttemptRecord
from singularity_proxy.protocol.messages import Gpus

from .active import Active
from .utilisation import busy_percent

EPOCH = 1_700_000_000.0
"""Unix seconds of the beginning of a simulation."""


def admitted(active: Active, now: float) -> None:
    job, number = active.job, len(active.records) + 1
    active.records.append(
        AttemptRecord(
            attempt=number,
            reservation=f"{job.id}-{number}",
            flavor=active.flavor,
            pods=active.devices,
            ranks=job.most,
            admitted_at=EPOCH + now,
            queued_at=EPOCH + active.queued_since,
            restored_from="checkpoint" if active.done_s else None,
            held=True,
        )
    )


def trains(active: Active, now: float) -> None:
    first = int(active.done_s)
    busy = busy_percent(active.job.speeds, active.flavor)
    gpus = None if busy is None else Gpus(count=active.devices, utilisation=busy)
    _last(active, running_at=EPOCH + now, first_step=first, first_step_at=EPOCH + now, gpus=gpus)


def evicted(active: Active, now: float, why: str) -> None:
    """`why`: as `AttemptRecord.ended_by` has it."""
    last = int(active.done_s) - 1 if active.records[-1].first_step is not None else None
    readmitted = "regrow" if why == "Regrown" else None
    _last(active, evicted_at=EPOCH + now, ended_by=why, last_step=last, readmitted_for=readmitted)


def released(active: Active, now: float) -> None:
    _last(active, released_at=EPOCH + now)


def _last(active: Active, **changes: object) -> None:
    active.records[-1] = replace(active.records[-1], **changes)  # type: ignore[arg-type]
