"""When each job had quota, by the news of its Workload. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kueue_integration.kube.resources import Object, condition, is_true

from .objects import job_of

PREEMPTED = "Preempted"
"""Kueue's reason for an eviction in favour of another Workload."""


@dataclass
class Stay:
    """From a reservation of quota to its release, in seconds of whoever saw the news; None: not yet."""

    reserved_at: float
    uid: str
    """Of the Workload: Kueue makes another one for a Job that has changed its shape."""
    evicted_at: float | None = None
    why: str = ""
    released_at: float | None = None


class Stays:
    """By job, in the order of their reservations."""

    def __init__(self) -> None:
        self.of: dict[int, list[Stay]] = {}
        self.arrived_at: dict[int, float] = {}
        """When Kueue had made its Workload."""
        self.finished_at: dict[int, float] = {}
        self.failed: dict[int, str] = {}
        """What Kueue says of jobs that have ended without success."""

    def look(self, workload: Object, now: float) -> None:
        owners = workload["metadata"].get("ownerReferences") or ()
        job = next((job_of(str(owner["name"])) for owner in owners if owner.get("kind") == "Job"), None)
        if job is None:
            return
        self.arrived_at.setdefault(job, now)
        mine = self.of.setdefault(job, [])
        last = mine[-1] if mine and mine[-1].released_at is None else None
        uid = str(workload["metadata"]["uid"])
        if last is not None and last.uid != uid:
            last.released_at, last = now, None
        reserved, evicted = is_true(workload, "QuotaReserved"), is_true(workload, "Evicted")
        if is_true(workload, "Finished"):
            self._finished(job, workload, now)
            if last is not None:
                last.released_at = now
        elif last is None and reserved and not evicted:
            mine.append(Stay(now, uid))
        elif last is not None:
            if evicted and last.evicted_at is None:
                last.evicted_at, last.why = now, str((condition(workload, "Evicted") or {}).get("reason"))
            if not reserved:
                last.released_at = now

    def _finished(self, job: int, workload: Object, now: float) -> None:
        if job not in self.finished_at:
            self.finished_at[job] = now
            told = condition(workload, "Finished") or {}
            if told.get("reason") != "Succeeded":
                self.failed[job] = f"{told.get('reason')}: {told.get('message')}"

    def at(self, job: int, moment: float) -> Stay | None:
        """The one in which `moment` lies."""
        for stay in reversed(self.of.get(job, [])):
            if stay.reserved_at <= moment and (stay.released_at is None or moment <= stay.released_at):
                return stay
        return None


def reasons(stays: Mapping[int, Sequence[Stay]]) -> dict[str, int]:
    """How many evictions there were, by Kueue's reason."""
    found: dict[str, int] = {}
    for stay in (one for some in stays.values() for one in some if one.evicted_at is not None):
        found[stay.why] = found.get(stay.why, 0) + 1
    return found
