"""Regrowth in practice: plans from our copies, carries one move out for each cohort, and takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...kube.resources import Object
from ..actions import Action
from ..cache import World
from ..forever import Skips
from ..hold import Settings
from . import planner, quota

PLAN_DELAY_S = 0.3
"""Quota changes come in bursts; one plan for a burst."""
PLAN_SHARE = 0.1
"""Planning looks at every Workload of a cohort: it may take this share of the worker's time, no more."""
Perform = Callable[[Action, Object, Object], None]
"""Writes an action for a Job and its Workload."""


class Moves:
    """`now` gives the API server's time, Unix seconds."""

    def __init__(
        self, world: World, settings: Settings, skips: Skips, perform: Perform, now: Callable[[], float]
    ) -> None:
        self._world, self._settings, self._skips, self._perform, self._now = world, settings, skips, perform, now
        self._pause = PLAN_DELAY_S
        self._planned_at = 0.0

    def delay(self) -> float:
        """Seconds until the next plan: soon, but planning as a whole stays within its share of the worker."""
        return max(PLAN_DELAY_S, self._planned_at + self._pause - time.monotonic())

    def plan(self, again: Callable[[float], None]) -> None:
        """At most one move for each cohort; `again` gets seconds until another plan. Raises Conflict, KubeError."""
        began = time.monotonic()
        try:
            self._regrow(again)
        finally:
            self._planned_at = time.monotonic()
            self._pause = (self._planned_at - began) / PLAN_SHARE

    def _regrow(self, again: Callable[[float], None]) -> None:
        by_queue: dict[str, list[planner.Candidate]] = {}
        for candidate in self._world.candidates():
            if not (self._settings.regrow or planner.asked_to_grow(candidate)):
                continue
            given = candidate.workload.admission
            if given is not None:
                by_queue.setdefault(given.cluster_queue, []).append(candidate)
        now = self._now()
        moved: set[str] = set()
        for name, candidates in sorted(by_queue.items()):
            queues = self._world.queues_around(name)
            if queues is None or moved & {str(q["metadata"]["name"]) for q in queues.cohort}:
                continue
            plan = self._planned(name, queues, candidates, now)
            if plan.wake_at is not None:
                again(plan.wake_at - now)
            if plan.candidate is None or plan.action is None:
                continue
            moved.add(name)
            chosen = plan.candidate
            # Its guard: written with the versions that were planned with. If either has changed, the plan is void.
            self._perform(plan.action, chosen.job.raw, chosen.workload.raw)

    def _planned(
        self, queue: str, queues: quota.Queues, candidates: Sequence[planner.Candidate], now: float
    ) -> planner.Plan:
        """The plan of a queue. If one object causes an error, the plan for the other objects."""
        min_run_s = self._settings.regrow_min_run_s
        try:
            return planner.plan(queues, candidates, now, min_run_s)
        except Exception as error:
            self._skips.note("plan", f"ClusterQueue {queue}", error)
        good: list[planner.Candidate] = []
        reserved, pending = list[Object](), list[Object]()
        parts = (reserved, queues.reserved, quota.usage), (pending, queues.pending, quota.requests)
        for kept, objects, look in parts:
            for workload in objects:
                with self._skips.over("plan", f"Workload {workload['metadata']['name']}"):
                    look(workload)
                    kept.append(workload)
        fewer = replace(queues, reserved=reserved, pending=pending)
        for candidate in candidates:
            with self._skips.over("plan", f"Job {candidate.job.raw['metadata']['name']}"):
                planner.plan(fewer, [candidate], now, min_run_s)
                good.append(candidate)
        return planner.plan(fewer, good, now, min_run_s)
