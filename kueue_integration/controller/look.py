"""One Job: look, decide, read again what the action's guard asks for, decide again, apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..contract import kinds
from ..job import states
from ..kube.client import Kube
from ..kube.resources import WORKLOAD, Object, selector
from . import apply, fence, origins
from .actions import Action, BeginFrom, Guard, Wait
from .cache import World
from .decide import decide
from .expectations import Expectations
from .hold import Settings
from .machines import MachinesOf
from .metrics import Metrics
from .overdue import Overdue
from .snapshot import Job, Snapshot, Surroundings, Workload

NOTHING = Guard(0)
UNGUARDED_S = 5.0
"""A job that waits for the guard of its namespace is looked at again after this long."""


class Looks:
    """Looks at Jobs in our copies (`world`), and at the API server where a guard asks for it.

    `now` gives the API server's time, Unix seconds. `unguarded` says why no job of ours begins in a namespace, or "".
    """

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        world: World,
        overdue: Overdue,
        machines_of: MachinesOf,
        metrics: Metrics,
        now: Callable[[], float],
        unguarded: Callable[[str], str] = lambda namespace: "",
    ) -> None:
        self._unguarded = unguarded
        self._kube, self._settings, self._world, self._overdue = kube, settings, world, overdue
        self._metrics, self._now = metrics, now
        self._around = Surroundings(world.preemptor, world.flavors_of, machines_of)
        self._expectations = Expectations()

    def job(self, namespace: str, name: str, again: Callable[[float], None]) -> None:
        """One look at a Job; `again` gets seconds until the next. Raises Conflict, KubeError."""
        job, workload = self._copies(namespace, name)
        if job is None:
            return
        behind = self._expectations.behind(job, workload)
        if behind:
            again(behind)  # the event of our own write comes before that
            return
        lost = self._world.lost_of(namespace, name)
        seen = Snapshot.parse(job, workload, [*self._world.pods_of(namespace, name), *lost], around=self._around)
        begins = origins.due(seen.job, lambda key: kinds.find(self._kube, namespace, key))
        if begins is not None:
            self._begin(begins, seen)
            return
        why = self._unguarded(namespace) if seen.job.managed and not seen.job.has_begun else ""
        if why and seen.workload is not None and fence.asks(seen.workload, self._settings.check_name):
            self._begin(Wait(message=why), seen)
            again(UNGUARDED_S)
            return
        fresh = NOTHING
        while True:
            seen = replace(seen, seen_at=self._overdue.seen_at(seen.job, seen.workload))
            decision = decide(seen, self._settings, self._now())
            action = decision.action
            needed = NOTHING if action is None else action.guard.reads
            if fresh in (NOTHING, Guard.FRESH_READS, needed):
                if decision.wake_at is not None:
                    again(decision.wake_at - self._now())
                if action is None or (isinstance(action, Wait) and self._says(seen.workload, action)):
                    return
                if needed in fresh:
                    self.perform(action, seen.job.raw, None if seen.workload is None else seen.workload.raw)
                    return
            else:
                needed = Guard.FRESH_READS  # a part of it was read again, and says something else: now the rest
            refreshed = self._refreshed(seen, namespace, name, needed & ~fresh)
            if refreshed is None:
                return
            seen, fresh = refreshed, fresh | needed

    def _begin(self, begins: BeginFrom | Wait, seen: Snapshot) -> None:
        """Nothing else is decided about a Job before it is known what it begins with."""
        workload = seen.workload
        if isinstance(begins, BeginFrom):
            self.perform(begins, seen.job.raw, None)
        elif workload and fence.asks(workload, self._settings.check_name) and not self._says(workload, begins):
            self.perform(begins, seen.job.raw, workload.raw)

    def ownerless(self, namespace: str, name: str) -> None:
        """A Workload whose owner is no Job waits at our fence because its queue names our check."""
        workload = self._world.workloads.get(namespace, name)  # its version guards the answer
        if workload is None or states.owner_job(workload) or not self.asks(workload):
            return
        if states.copied(workload):
            return  # its Job follows when the manager has let the attempt in: see kueue_integration.multikueue
        seen = Snapshot.parse({"metadata": workload["metadata"]}, workload, ())
        assert seen.workload is not None
        if seen.workload.has_our_pods:
            self.perform(fence.FOREIGN, workload, workload)
            return
        action = fence.decide(seen, seen.workload, self._now()).action
        assert action is not None
        self.perform(action, workload, workload)

    def asks(self, workload: Object) -> bool:
        """Whether a Workload that belongs to no managed Job needs an answer: now because it has quota, or in
        advance."""
        seen, name = Workload.parse(workload), self._settings.check_name
        return fence.asks(seen, name) or fence.asks_ahead(seen, name)

    def perform(self, action: Action, job: Object, workload: Object | None) -> None:
        """Write it, with the versions that are shown. Raises Conflict, KubeError."""
        check_name, metrics = self._settings.check_name, self._metrics
        self._expectations.note(apply.perform(self._kube, action, job, workload, check_name, metrics, self._now()))

    # --- reads ----------------------------------------------------------------------------------------------------
    def _copies(self, namespace: str, name: str) -> tuple[Object | None, Object | None]:
        """The Job and its Workload as far as we know them. (None, None): there is nothing to do."""
        workload = self._world.workload_of(namespace, name)
        job = self._world.job(namespace, name)
        if job is None:
            if workload is None or not self.asks(workload):
                return None, None
            # Not a managed Job, or one that our copy does not have yet: only the API server can tell.
            job = self._found(namespace, name)
        elif workload is None and _is_held(Job.parse(job)):
            workload = self._kube.get_workload_for_job(job)  # our copy may be behind; what follows may end the attempt
        return job, workload

    def _refreshed(self, seen: Snapshot, namespace: str, name: str, parts: Guard) -> Snapshot | None:
        """`seen` with `parts` of it read from the API server; None if the Job is gone.

        Pods come before the Job: a pod that has failed is counted before the Job says what that means.
        """
        if Guard.FRESH_PODS in parts:
            lost = self._world.lost_of(namespace, name)
            seen = seen.with_pods([*self._kube.list_pods(namespace, selector(kinds.pod_labels(name))), *lost])
        if Guard.FRESH_WORKLOAD in parts and seen.workload is not None:
            seen = seen.with_workload(self._kube.find(WORKLOAD, namespace, seen.workload.name))
        if Guard.FRESH_JOB in parts:
            job = self._found(namespace, name)
            return None if job is None else seen.with_job(job)
        return seen

    def _found(self, namespace: str, name: str) -> Object | None:
        """The Job as the API server has it, with the progress that its pods have told us since."""
        job = kinds.find(self._kube, namespace, name)
        return None if job is None else self._world.notes.over(job)

    def _says(self, workload: Workload | None, action: Wait) -> bool:
        state = workload.checks.get(self._settings.check_name) if workload is not None else None
        return state is not None and state.get("message") == action.message


def _is_held(job: Job) -> bool:
    return job.managed and not job.suspended and job.armed
