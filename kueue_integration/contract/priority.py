"""The priority that the planner has given a Workload, and the one that it had before. Pure.

Kueue reads `spec.priority` of a Workload whenever it sorts a queue or looks for whom to preempt. It writes it again
only when the label of the priority class on the Job changes. So it is what works at any time. An annotation
beside it remembers what to give back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from singularity_proxy.protocol.decode import Count, UnixTime, Within
from singularity_proxy.protocol.messages import to_json

from . import annotation_values, job_names
from .annotation_values import readable

Priority = Annotated[int, Within(-(2**31), 2**31 - 1)]


@dataclass(frozen=True)
class Mark:
    """`own`: the priority before `policy` gave it `given`."""

    policy: str
    own: Priority
    given: Priority
    attempt: Count = 0
    """It held quota when its priority was lowered, so Kueue may preempt it since then. 0: none did."""
    at: UnixTime = 0.0
    """When that was."""


def read(workload: Mapping[str, Any] | None) -> Mark | None:
    """None: the planner has not changed its priority, or the annotation cannot be read."""
    return readable(annotation_values.message(workload, job_names.ANN_PRIORITY, Mark), None)


def unplanned(mark: Mark | None, stands: int) -> int:
    """The priority without the planner. If somebody else has changed it since, that counts."""
    return mark.own if mark is not None and mark.given == stands else stands


def change(
    policy: str, wanted: int, stands: int, mark: Mark | None, running: tuple[int, float] | None = None
) -> dict[str, Any]:
    """A merge patch of the Workload that gives it `wanted`, and forgets the mark where that is its own again.

    :param running: the attempt that holds quota, and the time now (Unix seconds)
    """
    before = unplanned(mark, stands)
    lowered = running if running is not None and wanted < stands else (mark.attempt, mark.at) if mark else (0, 0.0)
    text = None if wanted == before else to_json(Mark(policy, before, wanted, *lowered))
    return {"metadata": {"annotations": {job_names.ANN_PRIORITY: text}}, "spec": {"priority": wanted}}
