"""What the history of Jobs tells Prometheus: durations, attempts and lost steps, each once; and gauges of live Jobs.

At most once, never twice: what stands in a Job when this replica sees it first was counted by whoever wrote it, so a
restarted controller, a second replica or a repeated event adds nothing. Only the replica that leads counts.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord

from .. import kinds, records
from ..classify import classify
from ..resources import Object
from . import views
from .errors import BadAnnotationError
from .metrics import Metrics, Series
from .world import World

_DURATIONS = (
    ("singularity_eviction_to_barrier_seconds", "evicted_at", "barrier_at"),
    ("singularity_eviction_to_committed_seconds", "evicted_at", "committed_at"),
    ("singularity_eviction_to_released_seconds", "evicted_at", "released_at"),
    ("singularity_admission_to_first_step_seconds", "admitted_at", "first_step_at"),
    ("singularity_queue_wait_seconds", "queued_at", "admitted_at"),
)
_REASONS = frozenset(
    ("Preempted", "PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped", "LocalQueueStopped", "NodeFailures",
     "FlavorMigration", "Deactivated", "DeactivatedDueToAdmissionCheck", "DeactivatedDueToRequeuingLimitExceeded",
     "DeactivatedDueToMaximumExecutionTimeExceeded", "Evicted", "Finished", "Failed", "Deleted",
     "OutOfMemory")
)  # fmt: skip
"""Values of the label `reason`; anything else is `Other`: what stands in an annotation must not make series."""

_ROUNDING_S = 1.0
"""Kubernetes cuts times to whole seconds; an end further before its start is of something else (an earlier commit)."""

Key = tuple[int, str]


@dataclass(frozen=True)
class Fact:
    """One thing that a history tells: `value` seconds for a histogram, or the amount of a counter."""

    value: float
    label: str = ""


def facts(history: Sequence[AttemptRecord]) -> dict[Key, Fact]:
    """Everything that can be counted in `history`, by (attempt, metric). Pure."""
    found: dict[Key, Fact] = {}
    for record in history:
        for name, start, end in _DURATIONS:
            begun, done = getattr(record, start), getattr(record, end)
            if begun is not None and done is not None and done >= begun - _ROUNDING_S:
                found[record.attempt, name] = Fact(max(0.0, done - begun), _label(name, record))
    for before, after in itertools.pairwise((*history, None)):
        assert before is not None
        if after is not None or before.finished_at is not None or before.released_at is not None:
            found[before.attempt, "singularity_attempts_total"] = Fact(1.0, _reason(before))
        if after is not None and before.last_step is not None and after.first_step is not None:
            lost = max(0, before.last_step + 1 - after.first_step)
            found[after.attempt, "singularity_steps_lost_total"] = Fact(float(lost))
    return found


def _label(name: str, record: AttemptRecord) -> str:
    if name == "singularity_queue_wait_seconds":
        return "again" if record.attempt > 1 else "first"
    if name == "singularity_admission_to_first_step_seconds":
        return "restored" if record.restored_from else "fresh"
    return _reason(record)


def _reason(record: AttemptRecord) -> str:
    reason = record.ended_by or "Evicted"
    return reason if reason in _REASONS else "Other"


class Meter:
    """Turns the sightings of Jobs into metrics. Thread-safe."""

    def __init__(self, metrics: Metrics, leads: Callable[[], bool]) -> None:
        self._metrics, self._leads = metrics, leads
        self._lock = threading.Lock()
        self._known: dict[str, set[Key]] = {}

    def see(self, job: Object, deleted: bool) -> None:
        """Count what is new in `job`; forget it when it is gone."""
        uid = str(job["metadata"].get("uid", ""))
        with self._lock:
            if deleted:
                self._known.pop(uid, None)
                return
            told = facts(records.history(job))
            known = self._known.get(uid)
            self._known[uid] = (known or set()) | told.keys()
            news = {} if known is None else {key: fact for key, fact in told.items() if key not in known}
        if self._leads():
            for (_, name), fact in news.items():
                if name.endswith("_total"):
                    self._metrics.add(name, fact.label, fact.value)
                else:
                    self._metrics.observe(name, fact.label, fact.value)


def live_gauges(
    world: World, leads: Callable[[], bool], clock: Callable[[], float] = time.time
) -> Iterable[tuple[str, Series]]:
    """Gauges of the Jobs that are there now, so that none outlives its Job. Empty on replicas that follow."""
    now = clock()
    held, ages, phases = 0, Series(), Series()
    for job in world.all_jobs() if leads() else ():
        where = str(job["metadata"]["namespace"]), kinds.job_key(job)
        phase = classify(world.workload_of(*where), job).phase
        phases[(phase.value,)] = phases.get((phase.value,), 0) + 1
        held += _held(job, now)
        saved = records.checkpoint(job)
        if saved is not None and not phase.final:
            ages[where] = max(0.0, now - saved.created_at)
    yield "singularity_holds_active", {(): float(held)}
    yield "singularity_checkpoint_age_seconds", ages
    yield "singularity_jobs", phases


def _held(job: Object, now: float) -> bool:
    try:
        deadline = views.hold_deadline(job)
    except BadAnnotationError:
        return False
    armed = views.hold(job) == names.HOLD_ARMED and not views.suspended(job)
    return armed and deadline is not None and now < deadline
