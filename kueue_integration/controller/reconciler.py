"""The workers: take a key, look, decide, act. Only the replica that holds the Lease acts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..contract import job_names, kinds
from ..errors import Conflict, KubeError
from ..guard import names as guards
from ..jobs import unreadable
from ..kube import server_time
from ..kube.client import Kube
from ..kube.resources import (
    ADMISSION_CHECK,
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    WORKLOAD,
    Object,
    condition,
    selector,
)
from . import apply, fence, origins, preemptor, views
from .actions import (
    Action,
    AnswerReady,
    AnswerRequest,
    AskCheckpoint,
    BeginFrom,
    Decision,
    KeepRecords,
    RecordHistory,
    ReleaseHold,
    Repair,
    StartCheckpoint,
    Wait,
)
from .cache import World, job_of
from .decide import decide
from .expectations import OwnWrites
from .fit.nodes import Machines
from .forever import Skips, backoff_s, forever
from .hold import Settings
from .measure import Meter, live_gauges
from .metrics import Metrics
from .overdue import Overdue
from .regrow import planner, quota
from .work_queue import WorkQueue

log = logging.getLogger(__name__)

RESYNC_S = 30.0
WORKERS = 8
"""Workers mostly wait for the API server. Two workers never handle the same Job at once."""
PLAN_DELAY_S = 0.3
"""Quota changes come in bursts; one plan for a burst."""
PLAN_SHARE = 0.1
"""Planning looks at every Workload of a cohort: it may take this share of the worker's time, no more."""
CONFLICT_DELAY_S = 0.05
_JOB_ONLY = (RecordHistory, Repair, StartCheckpoint, AnswerRequest, AskCheckpoint, KeepRecords)


@dataclass(frozen=True)
class Task:
    """`kind`: job, workload (one without a Job), plan, check, policy or everything."""

    kind: str
    namespace: str = ""
    name: str = ""


class Reconciler:
    """`notify(namespace, job)` is called, from informer threads, for every change of a managed Job or its pods.

    `now` gives the API server's time, Unix seconds.
    """

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        metrics: Metrics,
        notify: Callable[[str, str], None] = lambda namespace, job: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._metrics = metrics
        self._notify = notify
        self._now = now
        self.queue: WorkQueue[Task] = WorkQueue()
        self._skips = Skips(metrics)
        self.world = World(kube, self._on_job, self._on_workload, self._on_pod, self._on_queue, self._skips)
        self._machines = Machines(kube)
        self._own = OwnWrites()
        self.overdue = Overdue(self.world.all_jobs, self._workload_of, settings, now)
        self._failures: dict[Task, int] = {}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"worker-{number}", daemon=True) for number in range(WORKERS)
        ]
        self._beats = {thread.name: time.monotonic() for thread in self._threads}
        self._plan_pause = PLAN_DELAY_S
        self._planned_at = 0.0
        self.leads: Callable[[], bool] = lambda: False
        self._meter = Meter(metrics, lambda: self.leads())
        metrics.compute(lambda: live_gauges(self.world, lambda: self.leads(), self._skips, now))

    # --- life -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        self.world.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self.world.stop()
        for thread in self._threads:
            thread.join(timeout=10)

    def silent_for(self) -> float:
        """Seconds since the worker that is silent for longest last showed life."""
        return time.monotonic() - min(self._beats.values())

    def everything(self) -> None:
        """Look at every object again: after taking over, and now and then."""
        for kind in ("check", "policy"):
            self.queue.add(Task(kind))
        self.queue.add(Task("plan"), self._plan_delay())
        for handle, objects in ((self._on_workload, self.world.workloads.all()), (self._on_job, self.world.all_jobs())):
            for obj in objects:
                self._beat()
                with self._skips.over("resync", f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"):
                    handle(obj, False)

    # --- events -----------------------------------------------------------------------------------------------------
    def _on_job(self, job: Object, deleted: bool) -> None:
        namespace, name = str(job["metadata"]["namespace"]), kinds.job_key(job)
        self.queue.add(Task("job", namespace, name))
        self.queue.add(Task("plan"), self._plan_delay())
        self._notify(namespace, name)
        self._meter.see(job, deleted)
        if not deleted and self.leads():
            self._tell_unreadable(job, f"{namespace}/{name}")

    def _tell_unreadable(self, job: Object, name: str) -> None:
        """Each unreadable annotation is counted and named once: the job goes on without it."""
        for key, why in unreadable.found(job).items():
            if self._skips.is_new("annotation", f"{job['metadata'].get('uid')}/{key}"):
                self._metrics.add("singularity_unreadable_total", "annotation")
                log.warning("annotation %s of %s cannot be read: %s", key, name, why)

    def _on_workload(self, workload: Object, deleted: bool) -> None:
        namespace, owner = str(workload["metadata"]["namespace"]), views.owner_job(workload)
        if owner is not None:
            self.queue.add(Task("job", namespace, owner))
        elif self._asks(workload):
            self.queue.add(Task("workload", namespace, str(workload["metadata"]["name"])))
        self.queue.add(Task("plan"), self._plan_delay())

    def _on_pod(self, pod: Object, deleted: bool) -> None:
        name = job_of(pod)
        if name:
            namespace = str(pod["metadata"]["namespace"])
            self.queue.add(Task("job", namespace, name))
            self._notify(namespace, name)

    def _on_queue(self, queue: Object, deleted: bool) -> None:
        self.queue.add(Task("plan"), self._plan_delay())

    # --- loop -------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        forever(self._stop, self._turn, threading.current_thread().name, self._count_error)

    def _turn(self) -> None:
        self._beat()
        task = self.queue.claim(timeout_s=1.0)
        self._metrics.set("singularity_queue_depth", len(self.queue))
        if task is None:
            return
        try:
            if self.leads():  # if not: whoever takes over looks at everything
                self.handle(task)
        finally:
            self.queue.done(task)

    def _beat(self) -> None:
        """This worker is alive. Whoever else calls it, a test for example, is not watched."""
        name = threading.current_thread().name
        if name in self._beats:
            self._beats[name] = time.monotonic()

    def _count_error(self) -> None:
        self._metrics.add("singularity_errors_total")

    def look_again(self) -> None:
        """Have a worker look at everything, soon: after taking over."""
        self.queue.add(Task("everything"))

    def handle(self, task: Task) -> None:
        """Do `task`; what goes wrong is logged and done again later. Never raises."""
        try:
            if task.kind == "job":
                self._job(task)
            elif task.kind == "workload":
                self._ownerless(task)
            elif task.kind == "plan":
                self._plan()
            elif task.kind == "everything":
                self.queue.add(task, RESYNC_S)
                self.everything()
            elif task.kind == "policy":
                self._policy()
            else:
                self._check()
            self._failures.pop(task, None)
        except Conflict:
            self._metrics.add("singularity_conflicts_total")
            self.queue.add(task, CONFLICT_DELAY_S)
        except Exception as error:
            self._count_error()
            count = self._failures[task] = self._failures.get(task, 0) + 1
            delay = backoff_s(count)
            if isinstance(error, KubeError):
                log.warning("%s %s/%s: %s; again in %.1f s", task.kind, task.namespace, task.name, error, delay)
            else:
                self._skips.note(task.kind, f"{task.namespace}/{task.name}", error)
            self.queue.add(task, delay)

    # --- one Job ----------------------------------------------------------------------------------------------------
    def _job(self, task: Task) -> None:
        namespace, name = task.namespace, task.name
        workload = self.world.workload_of(namespace, name)
        job = self.world.job(namespace, name)
        if job is None:
            if workload is None or not self._asks(workload):
                return
            # Not a managed Job, or one that our copy does not have yet: only the API server can tell.
            job = kinds.find(self._kube, namespace, name)
            if job is None:
                return
        if (
            workload is None
            and views.managed(job)
            and not views.suspended(job)
            and views.hold(job) == job_names.HOLD_ARMED
        ):
            workload = self._kube.get_workload_for_job(job)  # our copy may be behind; what follows may end the attempt
        behind = self._own.behind(job, workload)
        if behind:
            self.queue.add(task, behind)  # the event of our own write comes before that
            return
        begins = origins.due(job, lambda key: self.world.job(namespace, key) or kinds.find(self._kube, namespace, key))
        if begins is not None:
            self._begin(begins, job, workload)
            return
        lost = self.world.lost_of(namespace, name)
        first = self._decide(job, workload, [*self.world.pods_of(namespace, name), *lost])
        if first.wake_at is not None:
            self.queue.add(task, first.wake_at - self._now())
        if first.action is None or (isinstance(first.action, Wait) and self._said(workload, first.action)):
            return
        # These only write the Job, whose version guards them: no time is lost between an eviction and its barrier.
        # Nor when a budget ends, as a thousand may at once: the policy lets the suspend through by then anyway.
        late = isinstance(first.action, ReleaseHold) and first.action.why == "deadline"
        if late or isinstance(first.action, _JOB_ONLY):
            self._perform(first.action, job, workload)
            return
        if isinstance(first.action, AnswerReady) and not views.managed(job):
            # Nothing is fenced: the Job has just been read, and its Workload's version guards the answer.
            self._perform(first.action, job, workload)
            return
        # Copies may be old, so everything else is decided again on fresh reads. Pods come before the Job: a pod that
        # has failed is counted before the Job says what that means.
        answers = isinstance(first.action, AnswerReady) and bool(first.action.job_annotations)
        if answers and views.never_started(job):
            # Most admissions are first ones. There are no pods to list, and the versions of our copies guard the rest.
            # An answer that fails half-way is given again under the same number.
            self._perform(first.action, job, workload)
            return
        pods = [*self._kube.list_pods(namespace, selector(kinds.pod_labels(name))), *lost]
        if workload is not None:
            workload = self._kube.find(WORKLOAD, namespace, workload["metadata"]["name"])
        if answers:
            # It starts with a patch of the Job that the version of our copy guards: no need to read the Job again.
            decision = self._decide(job, workload, pods)
            if isinstance(decision.action, AnswerReady) and decision.action.job_annotations:
                self._perform(decision.action, job, workload)
                return
        job = kinds.find(self._kube, namespace, name)
        if job is None:
            return
        decision = self._decide(job, workload, pods)
        if decision.wake_at is not None:
            self.queue.add(task, decision.wake_at - self._now())
        if decision.action is None or (isinstance(decision.action, Wait) and self._said(workload, decision.action)):
            return
        self._perform(decision.action, job, workload)

    def _perform(self, action: Action, job: Object, workload: Object | None) -> None:
        check_name, metrics = self._settings.check_name, self._metrics
        self._own.note(apply.perform(self._kube, action, job, workload, check_name, metrics, self._now()))

    def _begin(self, begins: BeginFrom | Wait, job: Object, workload: Object | None) -> None:
        """Nothing else is decided about a Job before it is known what it begins with."""
        asks = workload is not None and fence.asks(workload, self._settings.check_name)
        if isinstance(begins, BeginFrom) or (asks and not self._said(workload, begins)):
            self._perform(begins, job, workload)

    def _decide(self, job: Object, workload: Object | None, pods: Sequence[Object]) -> Decision:
        now, world = self._now(), self.world
        flavors = world.flavors_of
        seen_at = self.overdue.seen_at(job, workload)
        decision = decide(job, workload, pods, now, self._settings, world.name_of, flavors, self._machines.of, seen_at)
        return replace(decision, action=preemptor.named(decision.action, workload, world.preemptor))

    def _workload_of(self, job: Object) -> Object | None:
        return self.world.workload_of(str(job["metadata"]["namespace"]), kinds.job_key(job))

    def _said(self, workload: Object | None, action: Wait) -> bool:
        state = views.check(workload, self._settings.check_name) if workload else None
        return state is not None and state.get("message") == action.message

    def _asks(self, workload: Object) -> bool:
        """Whether a Workload that belongs to no managed Job needs an answer: now because it has quota, or in
        advance."""
        name = self._settings.check_name
        return fence.asks(workload, name) or fence.asks_ahead(workload, name)

    def _ownerless(self, task: Task) -> None:
        """A Workload whose owner is no Job waits at our fence because its queue names our check."""
        workload = self.world.workloads.get(task.namespace, task.name)  # its version guards the answer
        if workload is None or views.owner_job(workload) or not self._asks(workload):
            return
        if views.copied(workload):
            return  # its Job follows when the manager has let the attempt in: see kueue_integration.multikueue
        action = fence.decide({"metadata": workload["metadata"]}, workload, (), None, self._now()).action
        assert action is not None
        self._perform(action, workload, workload)

    # --- regrowth -----------------------------------------------------------------------------------------------------
    def _plan_delay(self) -> float:
        """Seconds until the next plan: soon, but planning as a whole stays within its share of the worker."""
        return max(PLAN_DELAY_S, self._planned_at + self._plan_pause - time.monotonic())

    def _plan(self) -> None:
        began = time.monotonic()
        try:
            self._regrow()
        finally:
            self._planned_at = time.monotonic()
            self._plan_pause = (self._planned_at - began) / PLAN_SHARE

    def _regrow(self) -> None:
        by_queue: dict[str, list[planner.Candidate]] = {}
        for candidate in self.world.candidates():
            if not (self._settings.regrow or planner.asked_to_grow(candidate)):
                continue
            given = views.admission(candidate.workload)
            if given is not None:
                by_queue.setdefault(given.cluster_queue, []).append(candidate)
        now = self._now()
        moved: set[str] = set()
        for name, candidates in sorted(by_queue.items()):
            queues = self.world.queues_around(name)
            if queues is None or moved & {str(q["metadata"]["name"]) for q in queues.cohort}:
                continue
            plan = self._planned(name, queues, candidates, now)
            if plan.wake_at is not None:
                self.queue.add(Task("plan"), plan.wake_at - now)
            if plan.candidate is None or plan.action is None:
                continue
            moved.add(name)
            chosen = plan.candidate
            # Written with the versions that were planned with: if either object has changed, the plan is void.
            self._perform(plan.action, chosen.job, chosen.workload)

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
            with self._skips.over("plan", f"Job {candidate.job['metadata']['name']}"):
                planner.plan(fewer, [candidate], now, min_run_s)
                good.append(candidate)
        return planner.plan(fewer, good, now, min_run_s)

    # --- the AdmissionCheck object ----------------------------------------------------------------------------------
    def _check(self) -> None:
        """Kueue keeps a ClusterQueue inactive until its checks show that a controller answers them."""
        check = self._kube.find(ADMISSION_CHECK, None, self._settings.check_name)
        if check is None:
            log.warning("no AdmissionCheck %s: the chart is not completely installed", self._settings.check_name)
            return
        controller = (check.get("spec") or {}).get("controllerName")
        if controller != job_names.ADMISSION_CHECK_CONTROLLER:
            log.error("AdmissionCheck %s belongs to %s, left alone", self._settings.check_name, controller)
            return
        active = condition(check, "Active")
        if active is not None and active.get("status") == "True":
            return
        new = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "the controller answers",
            "lastTransitionTime": server_time.to_whole(self._now()),
            "observedGeneration": check["metadata"].get("generation", 1),
        }
        self._kube.patch(
            ADMISSION_CHECK,
            None,
            self._settings.check_name,
            {"status": {"conditions": [new]}},
            resource_version=check["metadata"]["resourceVersion"],
            subresource="status",
        )
        log.info("AdmissionCheck %s is active", self._settings.check_name)

    def _policy(self) -> None:
        """The hold is an admission policy with its binding: without either, no preemption waits for a checkpoint."""
        missing = self._missing(job_names.HOLD_LEASE)
        self._metrics.set("singularity_hold_policy_missing", float(bool(missing)))
        if missing:
            log.error("no %s: preemption does not wait for checkpoints; upgrade the chart", missing)
        unguarded = [what for name in guards.POLICIES if (what := self._missing(name))]
        self._metrics.set("singularity_guard_policies_missing", float(len(unguarded)))
        if unguarded:
            log.error("no %s: tenants can write what is the platform's; upgrade the chart", ", ".join(unguarded))

    def _missing(self, policy: str) -> str:
        """Which of a policy and its binding is missing, for people; "" if both exist."""
        parts = (ADMISSION_POLICY, ADMISSION_POLICY_BINDING)
        return " and ".join(f"{kind.name} {policy}" for kind in parts if self._kube.find(kind, None, policy) is None)
