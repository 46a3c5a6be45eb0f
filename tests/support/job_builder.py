"""A training job as its controller finds it: `a_job().running().preempted()` builds the Job, its Workload and its pods.

Each step returns another job and leaves the one before as it was. `objects` are what the API server would show.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import controller_scene as scene
from controller_scene import T0

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.controller.actions import Decision
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, to_json

NOW = T0 + 100


@dataclass(frozen=True)
class AJob:
    """It waits in its queue, held, until a step says something else. Times are seconds after T0."""

    workers: int = 2
    notes: dict[str, str] = field(default_factory=lambda: {job_names.ANN_HOLD: job_names.HOLD_ARMED})
    past: tuple[AttemptRecord, ...] = ()
    suspended: bool = True
    managed: bool = True
    workload_is: dict[str, Any] | None = field(default_factory=lambda: {"reserved_at": None})
    """Arguments of `controller_scene.workload`; None: there is none."""
    phases: tuple[str, ...] = ()
    """Of its pods, by index."""
    others: tuple[dict[str, Any], ...] | None = None
    """Its pods instead, as the API server shows them."""
    conditions: tuple[dict[str, Any], ...] = ()
    """Of the Job."""

    # --- steps
    def with_note(self, name: str, text: str) -> AJob:
        """With an annotation, whatever it says."""
        return replace(self, notes={**self.notes, name: text})

    def with_checkpoint(self, ref: CheckpointRef) -> AJob:
        return self.with_note(names.ANN_CHECKPOINT, to_json(ref)).with_note(job_names.ANN_CHECKPOINTS, to_json([ref]))

    def of_others(self) -> AJob:
        """Not managed."""
        return replace(self, managed=False, notes={})

    def with_quota(self) -> AJob:
        """It waits at the fence."""
        return replace(self, workload_is={"reserved_at": 10})

    def running(self, **seen: Any) -> AJob:
        """Its first attempt trains since second 20; `seen`: fields of its record."""
        record = scene.record(
            pods=self.workers, ranks=self.workers, **{"first_step": 0, "first_step_at": T0 + 20, **seen}
        )
        return replace(
            self,
            past=(record,),
            suspended=False,
            workload_is={"state": "Ready", "admitted": True, "count": self.workers, "wanted": self.workers},
            phases=("Running",) * self.workers,
        )

    def preempted(self, at: float = 30.0) -> AJob:
        """Kueue has evicted it for another one, and its suspend is about to come."""
        return self.evicted("Preempted", scene.PREEMPTED, at)

    def evicted(self, reason: str, message: str, at: float) -> AJob:
        """Kueue has evicted it for this reason."""
        return replace(self, workload_is={**(self.workload_is or {}), "evicted": (reason, message, at)})

    def in_attempt(self, record: AttemptRecord) -> AJob:
        """Running, in the attempt of this record."""
        return replace(self.running(), past=(record,))

    def with_pods(self, *pods: dict[str, Any]) -> AJob:
        """These are there now, whichever pods the attempt made its first step with."""
        return replace(self, others=pods)

    def without_workload(self) -> AJob:
        return replace(self, workload_is=None)

    def ended(self, type_: str, at: float = 50, reason: str = "", message: str = "") -> AJob:
        """The Job has this condition since second `at`."""
        return replace(self, conditions=(scene.condition(type_, True, at, reason, message),))

    def after(self, written: Mapping[str, str | None]) -> AJob:
        """With the annotations that an action has written."""
        notes = {**self.job["metadata"]["annotations"], **written}
        return replace(self, notes={name: text for name, text in notes.items() if text is not None})

    def losing_a_pod(self) -> AJob:
        return replace(self, phases=(*self.phases[:-1], "Failed"))

    # --- what is there
    @property
    def attempt(self) -> int:
        return self.past[-1].attempt if self.past else 1

    @property
    def job(self) -> dict[str, Any]:
        first = [scene.pod(index, attempt=self.attempt) for index in range(self.workers)]
        known = {**scene.history(*self.past), **scene.roster(*first, attempt=self.attempt)} if self.past else {}
        return scene.job(
            annotations={**known, **self.notes},
            suspend=self.suspended,
            parallelism=self.workers,
            managed=self.managed,
            conditions=list(self.conditions),
        )

    @property
    def workload(self) -> dict[str, Any] | None:
        return None if self.workload_is is None else scene.workload(**copy.deepcopy(self.workload_is))

    @property
    def pods(self) -> list[dict[str, Any]]:
        if self.others is not None:
            return list(self.others)
        return [scene.pod(index, attempt=self.attempt, phase=phase) for index, phase in enumerate(self.phases)]

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        return tuple(one for one in (self.job, self.workload, *self.pods) if one is not None)

    def look(self, now: float = NOW, **more: Any) -> Decision:
        """What the controller decides; `more`: arguments of `controller_scene.decide`."""
        return scene.decide(self.job, self.workload, self.pods, now, **more)


def a_job(workers: int = 2) -> AJob:
    return AJob(workers)
