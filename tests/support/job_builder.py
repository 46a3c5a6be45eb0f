"""A training job as its controller finds it: `a_job().running().preempted()` builds the Job, its Workload and its pods.

Each step returns another job and leaves the one before as it was. `objects` are what the API server would show.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import controller_scene as scene
from controller_scene import T0

from kueue_integration.contract import job_names
from kueue_integration.controller.actions import Decision
from proxy.protocol import names
from proxy.protocol.messages import AttemptRecord, CheckpointRef, to_json

NOW = T0 + 100


@dataclass(frozen=True)
class AJob:
    """It waits in its queue, held, until a step says something else. Times are seconds after T0."""

    workers: int = 2
    notes: dict[str, str] = field(default_factory=lambda: {job_names.ANN_HOLD: job_names.HOLD_ARMED})
    past: tuple[AttemptRecord, ...] = ()
    suspended: bool = True
    managed: bool = True
    workload_is: dict[str, Any] = field(default_factory=lambda: {"reserved_at": None})
    """Arguments of `controller_scene.workload`."""
    phases: tuple[str, ...] = ()
    """Of its pods, by index."""

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
        return replace(self, workload_is={**self.workload_is, "evicted": ("Preempted", scene.PREEMPTED, at)})

    def losing_a_pod(self) -> AJob:
        return replace(self, phases=(*self.phases[:-1], "Failed"))

    # --- what is there
    @property
    def job(self) -> dict[str, Any]:
        pods = self.pods
        known = {**scene.history(*self.past), **scene.roster(*pods)} if self.past else {}
        return scene.job(
            annotations={**known, **self.notes}, suspend=self.suspended, parallelism=self.workers, managed=self.managed
        )

    @property
    def workload(self) -> dict[str, Any]:
        return scene.workload(**copy.deepcopy(self.workload_is))

    @property
    def pods(self) -> list[dict[str, Any]]:
        return [scene.pod(index, phase=phase) for index, phase in enumerate(self.phases)]

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        return (self.job, self.workload, *self.pods)

    def look(self, now: float = NOW, **more: Any) -> Decision:
        """What the controller decides; `more`: arguments of `controller_scene.decide`."""
        return scene.decide(self.job, self.workload, self.pods, now, **more)


def a_job(workers: int = 2) -> AJob:
    return AJob(workers)
