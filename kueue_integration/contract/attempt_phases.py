"""How long the phases of a job's last attempts took, as their pods have told. Pure.

An annotation of its own beside the history: whoever reads the history with an older version still can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from singularity_proxy.protocol import phases
from singularity_proxy.protocol.decode import Record
from singularity_proxy.protocol.messages import to_json
from singularity_proxy.protocol.phases import SavePhases, StartPhases

from . import annotation_values, job_names
from .annotation_values import readable

MAX_KEPT: Final = 20
"""About 4 KiB of annotation."""


@dataclass(frozen=True)
class AttemptPhases(Record):
    """What is known of one attempt."""

    attempt: int
    start: StartPhases | None = None
    save: SavePhases | None = None
    """Of the checkpoint that ended it."""


def of_job(job: Mapping[str, Any] | None) -> list[AttemptPhases]:
    """Oldest first; empty when no pod has reported, or the annotation is unreadable."""
    return readable(annotation_values.messages(job, job_names.ANN_PHASES, AttemptPhases), [])


def of_attempt(job: Mapping[str, Any] | None, attempt: int) -> AttemptPhases:
    return next((known for known in of_job(job) if known.attempt == attempt), AttemptPhases(attempt))


def told(
    job: Mapping[str, Any], attempt: int, start: StartPhases | None = None, save: SavePhases | None = None
) -> dict[str, str | None]:
    """The annotation with what the pods report now, {} if it says so already. None takes nothing back."""
    before = of_attempt(job, attempt)
    now = replace(
        before,
        start=before.start if start is None else phases.rounded(start),
        save=before.save if save is None else phases.rounded(save),
    )
    if now == before:
        return {}
    kept = [known for known in of_job(job) if known.attempt != attempt]
    return {job_names.ANN_PHASES: to_json([*kept, now][-MAX_KEPT:])}
