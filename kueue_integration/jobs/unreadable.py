"""Annotations of a job that cannot be read, in words. All go on without them, and people see a note. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from singularity_proxy.protocol import names

from ..contract import job_names
from ..job import records

_INSTEAD: Final = {
    job_names.ANN_BUDGET: "the platform's maximum counts",
    job_names.ANN_CHECKPOINT_EVERY: "there are no periodic checkpoints",
    names.ANN_CHECKPOINT: "no attempt starts before it is repaired, or set to nothing to start from the beginning",
}


def sentences(job: Mapping[str, Any]) -> list[str]:
    """For people: which annotation, why, and what counts instead."""
    return [
        f"annotation {name} cannot be read: {why}" + (f"; {_INSTEAD[name]}" if name in _INSTEAD else "")
        for name, why in records.unreadable(job).items()
    ]
