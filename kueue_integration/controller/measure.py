"""Metrics from the history of Jobs for Prometheus: durations, attempts, lost steps and errors of GPUs, each counted
once. Also gauges of live Jobs.

At most once, never twice. What stands in a Job when this replica first sees it was counted by the replica that wrote
it. So a restarted controller, a second replica or a repeated event adds nothing. Only the replica that leads counts.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from singularity_proxy.protocol.messages import Gpus

from ..contract import attempt_records, kinds, saveable
from ..contract.record_types import AttemptRecord
from ..jobs import lost_time
from ..jobs.phase import classify
from ..kube.resources import Object
from . import attempt_history
from .cache import World
from .forever import Skips
from .metrics import Metrics, Series
from .snapshot import Job, readable_or

_DURATIONS = (
    ("singularity_eviction_to_barrier_seconds", "evicted_at", "barrier_at"),
    ("singularity_eviction_to_committed_seconds", "evicted_at", "committed_at"),
    ("singularity_eviction_to_released_seconds", "evicted_at", "released_at"),
    ("singularity_admission_to_running_seconds", "admitted_at", "running_at"),
    ("singularity_admission_to_first_step_seconds", "admitted_at", "first_step_at"),
    ("singularity_queue_wait_seconds", "queued_at", "admitted_at"),
)
_REASONS = frozenset(
    ("Preempted", "PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped", "LocalQueueStopped", "NodeFailures",
     "FlavorMigration", "Deactivated", "DeactivatedDueToAdmissionCheck", "DeactivatedDueToRequeuingLimitExceeded",
     "DeactivatedDueToMaximumExecutionTimeExceeded", "Evicted", "Finished", "Failed", "Deleted",
     "OutOfMemory", "Migrated", "Resized", "Paused", "Regrown",
     "Rewound")
)  # fmt: skip
"""Values of the label `reason`; anything else is `Other`: text in an annotation must not create series."""

_ROUNDING_S = 1.0
"""Kubernetes cuts times to whole seconds; an end that is further before its start belongs to another event (an earlier
commit)."""

_XIDS = range(1, 200)
"""Numbers that NVIDIA has given away and a few more; anything else is `other`."""

Key = tuple[int, str, str]
"""Attempt, metric, and which of several that it counts there."""


@dataclass(frozen=True)
class Fact:
    """One thing that a history tells: `value` seconds for a histogram, or the amount of a counter."""

    value: float
    label: str = ""


def facts(history: Sequence[AttemptRecord], lost: Mapping[int, float] = MappingProxyType({})) -> dict[Key, Fact]:
    """Everything that can be counted in `history`. Pure.

    :param lost: `Lost.since`
    """
    found = {(attempt, "singularity_seconds_lost_total", ""): Fact(seconds) for attempt, seconds in lost.items()}
    for record in history:
        for name, start, end in _DURATIONS:
            begun, done = getattr(record, start), getattr(record, end)
            if begun is not None and done is not None and done >= begun - _ROUNDING_S:
                found[record.attempt, name, ""] = Fact(max(0.0, done - begun), _label(name, record))
        found |= _gpus(record)
    for before, after in itertools.pairwise((*history, None)):
        assert before is not None
        if after is not None or before.finished_at is not None or before.released_at is not None:
            found[before.attempt, "singularity_attempts_total", ""] = Fact(1.0, _reason(before))
    for attempt, again in attempt_records.steps_lost(history).items():
        found[attempt, "singularity_steps_lost_total", ""] = Fact(float(again))
    return found


def _gpus(record: AttemptRecord) -> dict[Key, Fact]:
    """Errors so far; they grow while the attempt runs."""
    gpus = record.gpus
    if gpus is None:
        return {}
    xids = Counter[str]()
    for fault in gpus.faults:
        xids[str(fault.xid) if fault.xid in _XIDS else "other"] += fault.count
    xids["other"] += gpus.faults_more
    errors = {"corrected": gpus.ecc_corrected, "uncorrected": gpus.ecc_uncorrected}
    counts = [("singularity_gpu_xids_total", label, count) for label, count in xids.items()]
    counts += [("singularity_gpu_ecc_errors_total", label, count or 0) for label, count in errors.items()]
    return {(record.attempt, name, label): Fact(float(count), label) for name, label, count in counts if count}


def _label(name: str, record: AttemptRecord) -> str:
    if name == "singularity_queue_wait_seconds":
        return "again" if record.attempt > 1 else "first"
    if name.startswith("singularity_admission_to_"):
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
        self._known: dict[str, dict[Key, float]] = {}
        """By UID of the Job: what was counted, and how much of it."""
        self._seen: dict[str, object] = {}
        """By UID: what was read of the Job when it was counted last."""

    def see(self, job: Object, deleted: bool) -> None:
        """Count what is new in `job`; forget it when it is gone."""
        uid = str(job["metadata"].get("uid", ""))
        with self._lock:
            if deleted:
                self._known.pop(uid, None)
                self._seen.pop(uid, None)
                return
            history = attempt_records.history(job)
            # How far the last attempt has come is nothing that is counted, and is new at each look.
            counted_of = [*history[:-1], *(replace(record, last_step=None) for record in history[-1:])]
            seen = counted_of, attempt_records.checkpoints(job), attempt_records.checkpoint(job)
            if self._seen.get(uid) == seen:
                return
            self._seen[uid] = seen
            told = facts(history, lost_time.of_job(job).since)
            known = self._known.get(uid)
            news = {} if known is None else _news(told, known)
            counted = {key: max(fact.value, (known or {}).get(key, 0.0)) for key, fact in told.items()}
            self._known[uid] = {**(known or {}), **counted}
        if self._leads():
            for (_, name, _), fact in news.items():
                if name.endswith("_total"):
                    self._metrics.add(name, fact.label, fact.value)
                else:
                    self._metrics.observe(name, fact.label, fact.value)


def _news(told: Mapping[Key, Fact], known: Mapping[Key, float]) -> dict[Key, Fact]:
    """The amounts not counted yet: all new entries, and the growth of errors."""
    found = {}
    for key, fact in told.items():
        if key not in known:
            found[key] = fact
        elif key[1].startswith("singularity_gpu_") and fact.value > known[key]:
            found[key] = replace(fact, value=fact.value - known[key])
    return found


def live_gauges(
    world: World, leads: Callable[[], bool], skips: Skips, clock: Callable[[], float]
) -> Iterable[tuple[str, Series]]:
    """Gauges of the Jobs that are there now, so that none outlives its Job. Empty on replicas that follow."""
    now = clock()
    held, ages, phases, busy, memory, unsaveable = 0, Series(), Series(), Series(), Series(), Series()
    for job in world.all_jobs() if leads() else ():
        where = str(job["metadata"]["namespace"]), kinds.job_key(job)
        with skips.over("metrics", "/".join(where)):
            phase = classify(world.workload_of(*where), job).phase
            phases[(phase.value,)] = phases.get((phase.value,), 0) + 1
            held += _held(job, now)
            saved = attempt_records.checkpoint(job)
            if saved is not None and not phase.final:
                ages[where] = max(0.0, now - saved.created_at)
            found = saveable.newest(job)
            if found.verdict == "no" and not phase.final:
                which = where[0], found.cause or "unknown"
                unsaveable[which] = unsaveable.get(which, 0) + 1
            gpus = _running_gpus(job)
            if gpus is not None:
                memory[where] = float(gpus.memory_peak)
                if gpus.utilisation is not None:
                    busy[where] = gpus.utilisation
    yield "singularity_holds_active", {(): float(held)}
    yield "singularity_checkpoint_age_seconds", ages
    yield "singularity_jobs", phases
    yield "singularity_jobs_unsaveable", unsaveable
    yield "singularity_gpu_utilisation_percent", busy
    yield "singularity_gpu_memory_peak_bytes", memory


def _running_gpus(job: Object) -> Gpus | None:
    """Of an attempt that has its quota still."""
    last = attempt_history.last(attempt_records.history(job))
    return None if last is None or last.finished_at is not None or last.released_at is not None else last.gpus


def _held(job: Object, now: float) -> bool:
    seen = Job.parse(job)
    deadline = readable_or(seen.hold_deadline, None)
    held = seen.armed and not seen.suspended
    return held and deadline is not None and now < deadline
