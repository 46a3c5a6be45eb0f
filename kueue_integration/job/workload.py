"""A Workload as one look sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..contract import job_names, priority
from ..kube import server_time
from ..kube.resources import Object, annotation
from . import states
from .part import Part

State = Mapping[str, Any]
"""A condition, or the state of an admission check."""


def _conditions(raw: Object) -> Mapping[str, State]:
    return _first((raw.get("status") or {}).get("conditions") or (), "type")


def _checks(raw: Object) -> Mapping[str, State]:
    return _first((raw.get("status") or {}).get("admissionChecks") or (), "name")


def _podset(raw: Object) -> Mapping[str, Any] | None:
    found: Sequence[Mapping[str, Any]] = (raw.get("spec") or {}).get("podSets") or ()
    return found[0] if found else None


@dataclass(frozen=True)
class Workload:
    raw: Object
    """As it was read: for those who write it with its version."""
    uid = Part(lambda raw: str(raw["metadata"].get("uid", "")))
    name = Part(lambda raw: str(raw["metadata"].get("name", "")))
    copied = Part(states.copied)
    """MultiKueue has copied it into this cluster: its attempts are numbered elsewhere."""
    deleting = Part(lambda raw: bool(raw["metadata"].get("deletionTimestamp")))
    leaves = Part(states.leaves)
    """Kueue is about to suspend the Job: true of a deleted Workload too, which keeps its quota until then."""
    conditions = Part(_conditions)
    """By type, whatever their status."""
    checks = Part(_checks)
    """By name of the admission check."""
    reservation = Part(states.reservation)
    """Identity of the quota reservation, None without one."""
    admission = Part(states.admission)
    active = Part(lambda raw: (raw.get("spec") or {}).get("active", True) is not False)
    podset = Part(_podset)
    """A training Job has one."""
    preemptor_uids = Part(states.preemptor_uids)
    reshape_reason = Part(lambda raw: annotation(raw, job_names.ANN_RESHAPE))
    """Our controller has taken it out of the queue to give it another shape: what was wrong."""
    paused = Part(lambda raw: annotation(raw, job_names.ANN_PAUSED) is not None)
    """A `pause` has deactivated it."""
    paused_by = Part(lambda raw: (annotation(raw, job_names.ANN_PAUSED) or "").partition(" ")[2])
    """The policy of the planner that has asked for that, "" for anybody else."""
    priority_mark = Part(priority.read)
    """A policy of the planner has changed its priority: which one, and since when."""
    has_our_pods = Part(states.has_our_pods)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Workload:
        """No part of it raises because of text that a user can write into the Workload."""
        return cls(cast(Object, raw))

    @property
    def created(self) -> float:
        """Unix seconds."""
        return states.created(self.raw)

    def condition(self, name: str) -> State:
        """The condition, whatever its status; empty without one."""
        return self.conditions.get(name) or {}

    def is_true(self, name: str) -> bool:
        """Whether condition `name` is there with status True."""
        return self.condition(name).get("status") == "True"

    def state_of(self, check: str) -> str | None:
        """What an admission check says, None without the check."""
        state = self.checks.get(check)
        return None if state is None else str(state.get("state"))

    @property
    def reserved_at(self) -> float:
        """Unix seconds of the quota reservation (whole ones), 0 without one."""
        return server_time.transition(self.conditions.get("QuotaReserved")) or 0.0


def _first(items: Iterable[State], key: str) -> dict[str, State]:
    """By `key`, the first of each."""
    found: dict[str, State] = {}
    for item in items:
        found.setdefault(str(item.get(key)), item)
    return found
