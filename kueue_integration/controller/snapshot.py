"""What one look sees: a Job, its Workload, its pods and what is known around them. Pure.

What stands on these objects is read in `job`. What decides, writes or waits never belongs here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..contract.record_types import Preemptor
from ..job.pods import Pod, ends_of, of_attempt, ranks_ended, roster_text
from ..job.unreadable import UnreadableAnnotation, readable_or, required
from ..job.view import Job
from ..job.workload import Workload
from ..kube.resources import Object
from .machines import MachinesOf, unknown

__all__ = [
    "Job", "Pod", "Preemption", "Snapshot", "Surroundings", "UnreadableAnnotation", "Workload", "ends_of",
    "of_attempt", "ranks_ended", "readable_or", "required", "roster_text",
]  # fmt: skip


def _nobody(uid: str) -> Preemptor | None:
    return None


def _no_flavors(job: Object) -> Sequence[str] | None:
    return None


@dataclass(frozen=True)
class Surroundings:
    """What may be asked about the cluster around a Job."""

    preemptor: Callable[[str], Preemptor | None] = _nobody
    """The Workload with this UID, or the one of the Job with this UID."""
    flavors_of: Callable[[Object], Sequence[str] | None] = _no_flavors
    """Flavors of a Job's queue, None when they are not known."""
    machines_of: MachinesOf = unknown
    """The only question that may reach the API server: it is asked last, and only before a restore."""


@dataclass(frozen=True)
class Preemption:
    """Who preempted the Workload last."""

    name: str | None = None
    """Name of the preemptor's Workload, its UID if nobody knows its name; None: nobody did, as far as is known."""
    who: Preemptor | None = None
    """Its names, while it still exists."""


@dataclass(frozen=True)
class Snapshot:
    """`workload` None: the API server has none. `pods`: all of the Job, whatever their attempt.

    Pods that were seen to go away are among them, in phase Failed.
    """

    job: Job
    workload: Workload | None
    pods: Sequence[Pod] = ()
    seen_at: float | None = None
    """When Kueue was first seen to want the Job suspended, Unix seconds; None: now."""
    around: Surroundings = field(default_factory=Surroundings)

    @classmethod
    def parse(
        cls,
        job: Object,
        workload: Object | None,
        pods: Sequence[Object],
        seen_at: float | None = None,
        around: Surroundings | None = None,
    ) -> Snapshot:
        """Never raises because of text that a user can write into objects."""
        seen = None if workload is None else Workload.parse(workload)
        return cls(Job.parse(job), seen, tuple(map(Pod.parse, pods)), seen_at, around or Surroundings())

    def with_job(self, job: Object) -> Snapshot:
        """The same look after the Job was read again."""
        return replace(self, job=Job.parse(job))

    def with_workload(self, workload: Object | None) -> Snapshot:
        """The same look after the Workload was read again."""
        return replace(self, workload=None if workload is None else Workload.parse(workload))

    def with_pods(self, pods: Sequence[Object]) -> Snapshot:
        """The same look after the pods were read again."""
        return replace(self, pods=tuple(map(Pod.parse, pods)))

    @functools.cached_property
    def preemption(self) -> Preemption:
        uids = self.workload.preemptor_uids if self.workload is not None else ()
        who = next((found for found in map(self.around.preemptor, uids) if found), None)
        return Preemption(who.workload if who is not None else next(iter(uids), None), who)
