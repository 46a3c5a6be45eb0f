"""A Workload as one look sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...contract import job_names
from ...kube import server_time
from ...kube.resources import Object, annotation
from .. import views

State = Mapping[str, Any]
"""A condition, or the state of an admission check."""


@dataclass(frozen=True)
class Workload:
    raw: Object
    """As it was read: for those who write it with its version."""
    uid: str
    name: str
    copied: bool
    """MultiKueue has copied it into this cluster: its attempts are numbered elsewhere."""
    deleting: bool
    leaves: bool
    """Kueue is about to suspend the Job: true of a deleted Workload too, which keeps its quota until then."""
    conditions: Mapping[str, State]
    """By type, whatever their status."""
    checks: Mapping[str, State]
    """By name of the admission check."""
    reservation: str | None
    """Identity of the quota reservation, None without one."""
    admission: views.Admission | None
    active: bool
    podset: Mapping[str, Any] | None
    """A training Job has one."""
    preemptor_uids: Sequence[str]
    reshape_reason: str | None
    """Our controller has taken it out of the queue to give it another shape: what was wrong."""
    paused: bool
    """A `pause` has deactivated it."""
    has_our_pods: bool

    @classmethod
    def parse(cls, raw: Object) -> Workload:
        """Never raises because of text that a user can write into the Workload."""
        spec, status = raw.get("spec") or {}, raw.get("status") or {}
        podsets = spec.get("podSets") or ()
        return cls(
            raw=raw,
            uid=str(raw["metadata"].get("uid", "")),
            name=str(raw["metadata"].get("name", "")),
            copied=views.copied(raw),
            deleting=bool(raw["metadata"].get("deletionTimestamp")),
            leaves=views.leaves(raw),
            conditions=_first(status.get("conditions") or (), "type"),
            checks=_first(status.get("admissionChecks") or (), "name"),
            reservation=views.reservation(raw),
            admission=views.admission(raw),
            active=spec.get("active", True) is not False,
            podset=podsets[0] if podsets else None,
            preemptor_uids=views.preemptor_uids(raw),
            reshape_reason=annotation(raw, job_names.ANN_RESHAPE),
            paused=annotation(raw, job_names.ANN_PAUSED) is not None,
            has_our_pods=views.has_our_pods(raw),
        )

    @property
    def created(self) -> float:
        """Unix seconds."""
        return views.created(self.raw)

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
