"""The workers: events become tasks, a worker takes one and has it done. Only the replica that holds the Lease acts.

What a task does is elsewhere: `look` for a Job, `planning.rounds` for a plan, `installed` for what the chart brings.
Plans have a worker of their own: they take long where jobs are many, and no hold waits for them.

A canary says whether jobs are looked at: a task that any worker may take, before all others, and that does nothing but
to come back. One worker that waits for a slow answer says nothing, nor does a long plan or a crowd of changes; a queue
that nobody serves does. A round over all objects waits behind what has changed.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..contract import job_names, kinds
from ..errors import Conflict, KubeError
from ..job import records, states
from ..kube.client import Kube
from ..kube.resources import WORKLOAD, Object, version_of
from . import device_time, installed, vitals
from .agent_images import AgentImages
from .cache import World, job_of
from .forever import Skips, backoff_s, forever
from .guarded import Guarded
from .hold import Settings
from .look import Looks
from .machines.nodes import Machines
from .measure import Meter, live_gauges
from .metrics import Metrics, Series
from .overdue import Overdue
from .planning.node_watch import NodeWatch
from .planning.rounds import Rounds
from .snapshot import Pod
from .work_queue import Lane, WorkQueue

log = logging.getLogger(__name__)

RESYNC_S = 30.0
SLICES = 60
"""Parts of a round over all objects, one after the other: thousands of looks at once keep everybody else waiting."""
CANARY_S = 1.0
WORKERS = 8
"""Workers mostly wait for the API server. Two workers never handle the same Job at once."""
CONFLICT_DELAY_S = 0.05
GUARD_DELAY_S = 1.0
"""Queues change all the time; a namespace that gets its first one is guarded within this."""


@dataclass(frozen=True)
class Task:
    """`kind`: job, workload (one without a Job), plan, check, policy, images, guard, everything, slice or canary."""

    kind: str
    namespace: str = ""
    name: str = ""


CANARY = Task("canary")


class Reconciler:
    """`notify(namespace, job, leader)` is called, from informer threads, for every change of a managed Job or its pods.

    `leader`: of the Job itself, or of its first pod.

    `now` gives the API server's time, Unix seconds. `namespace`, `agent_images`: see AgentImages.
    """

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        metrics: Metrics,
        notify: Callable[[str, str, bool], None] = lambda namespace, job, leader: None,
        now: Callable[[], float] = time.time,
        namespace: str = job_names.SYSTEM_NAMESPACE,
        agent_images: Sequence[str] = (),
        namespaces: Sequence[str] = (),
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._metrics = metrics
        self._notify = notify
        self._now = now
        self.queue: WorkQueue[Task] = WorkQueue()
        self.plans: WorkQueue[Task] = WorkQueue()
        self._skips = Skips(metrics)
        places = settings.planner.defragmentation.mode != "none"
        self._node_watch = NodeWatch(settings.planner.cordon, self._node_leaves)
        self.world = World(
            kube, self._on_job, self._on_workload, self._on_pod, self._on_queue, self._skips, places,
            self._node_watch.changed, namespaces,
        )  # fmt: skip
        self.overdue = Overdue(self.world.all_jobs, self._workload_of, settings, now)
        queues = self.world.local_queues.all, self.world.cluster_queues.all
        self.guarded = Guarded(kube, *queues, self.world.all_jobs)
        machines_of = Machines(kube, self.world.nodes).of
        self.looks = Looks(
            kube, settings, self.world, self.overdue, machines_of, metrics, now, self.guarded.why_not
        )  # fmt: skip
        self._rounds = Rounds(kube, self.world, settings, self._skips, metrics, self.looks.perform, now)
        self._images = AgentImages(kube, namespace, agent_images, self.world.all_jobs, now)
        self._failures: dict[Task, int] = {}
        self._told: dict[str, str] = {}
        """By UID of a Job: the version in which all of its annotations were read."""
        self._sliced = 0
        self._stop = threading.Event()
        served = [(f"worker-{number}", self.queue) for number in range(WORKERS)] + [("planner", self.plans)]
        self._threads = [
            threading.Thread(target=self._run, args=(queue,), name=name, daemon=True) for name, queue in served
        ]
        self._canary_at = time.monotonic()
        self.leads: Callable[[], bool] = lambda: False
        self._meter = Meter(metrics, lambda: self.leads())
        metrics.compute(self._gauges)
        metrics.compute(self._vitals)

    def _gauges(self) -> Iterable[tuple[str, Series]]:
        leads, tiers = (lambda: self.leads()), self._settings.planner.sla_tiers
        yield from live_gauges(self.world, leads, self._skips, self._now)
        yield from device_time.gauges(self.world, leads, self._skips, self._now, tiers)

    def _vitals(self) -> Iterable[tuple[str, Series]]:
        copies = {one.kind.plural: one for one in (*self.world.informers, *self.world.beside)}
        return vitals.of_work(self.silent_for(), {"jobs": self.queue.due(), "plans": self.plans.due()}, copies)

    # --- life -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        self.world.start()
        self.world.notes.start()
        self._canary_at = time.monotonic()
        self.queue.add(CANARY, lane=Lane.FIRST)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self.world.stop()
        self.world.notes.stop()
        for thread in self._threads:
            thread.join(timeout=10)

    def silent_for(self) -> float:
        """Seconds since the workers last took the canary, which is due every `CANARY_S`."""
        return time.monotonic() - self._canary_at

    def everything(self) -> None:
        """Look at every object again, at once: after taking over."""
        self._beside()
        self._look_at(lambda obj: True)

    def _slice(self) -> None:
        """Look at the next part of all objects again."""
        self._sliced = number = (self._sliced + 1) % SLICES
        if number == 0:
            self._beside()
        self._look_at(lambda obj: zlib.crc32(_job_of(obj).encode()) % SLICES == number)

    def _beside(self) -> None:
        """What a round looks at besides Jobs and Workloads."""
        if not self._rounds.leaves_nodes:
            self.world.nodes.rest()
        for kind in ("check", "policy", "images", "guard"):
            self.queue.add(Task(kind))
        self._plan_soon()

    def _look_at(self, which: Callable[[Object], bool]) -> None:
        workloads = filter(which, self.world.workloads.all())
        for handle, objects in ((self._see_workload, workloads), (self._see_job, self.world.all_jobs(which))):
            for obj in objects:
                with self._skips.over("resync", f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"):
                    handle(obj, False, Lane.LAST)

    # --- events -----------------------------------------------------------------------------------------------------
    def _on_job(self, job: Object, deleted: bool) -> None:
        self._plan_soon()
        self._see_job(job, deleted, Lane.USUAL)

    def _see_job(self, job: Object, deleted: bool, lane: Lane) -> None:
        namespace, name = str(job["metadata"]["namespace"]), kinds.job_key(job)
        self.queue.add(Task("job", namespace, name), lane=lane)
        self._notify(namespace, name, True)
        self._meter.see(job, deleted)
        uid = str(job["metadata"].get("uid"))
        if deleted:
            self._told.pop(uid, None)
        elif self.leads() and self._told.get(uid) != version_of(job):
            self._told[uid] = version_of(job)
            self._tell_unreadable(job, f"{namespace}/{name}")

    def _tell_unreadable(self, job: Object, name: str) -> None:
        """Each unreadable annotation is counted and named once: the job goes on without it."""
        for key, why in records.unreadable(job).items():
            if self._skips.is_new("annotation", f"{job['metadata'].get('uid')}/{key}"):
                self._metrics.add("singularity_unreadable_total", "annotation")
                log.warning("annotation %s of %s cannot be read: %s", key, name, why)

    def _on_workload(self, workload: Object, deleted: bool) -> None:
        self._plan_soon()
        self._see_workload(workload, deleted, Lane.USUAL)

    def _see_workload(self, workload: Object, deleted: bool, lane: Lane) -> None:
        namespace, owner = str(workload["metadata"]["namespace"]), states.owner_job(workload)
        if owner is not None:
            self.queue.add(Task("job", namespace, owner), lane=lane)
        elif self.looks.asks(workload):
            self.queue.add(Task("workload", namespace, str(workload["metadata"]["name"])), lane=lane)

    def _on_pod(self, pod: Object, deleted: bool) -> None:
        name = job_of(pod)
        if name:
            namespace = str(pod["metadata"]["namespace"])
            self.queue.add(Task("job", namespace, name))
            self._notify(namespace, name, Pod.parse(pod).index == 0)

    def _on_queue(self, queue: Object, deleted: bool) -> None:
        self._plan_soon()
        self.queue.add(Task("guard"), GUARD_DELAY_S)

    def _node_leaves(self) -> None:
        if self._rounds.leaves_nodes:
            self._rounds.hurry()
            self.plans.add(Task("plan"))

    def _plan_soon(self) -> None:
        self.plans.add(Task("plan"), self._rounds.delay())

    # --- loop -------------------------------------------------------------------------------------------------------
    def _run(self, queue: WorkQueue[Task]) -> None:
        forever(self._stop, lambda: self._turn(queue), threading.current_thread().name, self._count_error)

    def _turn(self, queue: WorkQueue[Task]) -> None:
        task = queue.claim(timeout_s=1.0)
        if task is None:
            return
        began = time.monotonic()
        try:
            if task == CANARY:  # also where another replica acts: this one may have to take over
                self._canary_at = time.monotonic()
                queue.add(CANARY, CANARY_S, Lane.FIRST)
            elif self.leads():  # if not: whoever takes over looks at everything
                self.handle(task)
                self._metrics.observe("singularity_task_seconds", task.kind, time.monotonic() - began)
        finally:
            queue.done(task)

    def _count_error(self) -> None:
        self._metrics.add("singularity_errors_total")

    def look_again(self) -> None:
        """Have a worker look at everything, soon: after taking over."""
        self.queue.add(Task("everything"))

    def handle(self, task: Task) -> None:
        """Do `task`; what goes wrong is logged and done again later. Never raises."""
        queue = self.plans if task.kind == "plan" else self.queue
        try:
            if task.kind == "job":
                self.looks.job(task.namespace, task.name, again=lambda seconds: queue.add(task, seconds))
            elif task.kind == "workload":
                self.looks.ownerless(task.namespace, task.name)
            elif task.kind == "plan":
                self._rounds.plan(again=lambda seconds: queue.add(task, seconds))
            elif task.kind == "everything":
                queue.add(Task("slice"), RESYNC_S / SLICES)
                self.everything()
            elif task.kind == "slice":
                queue.add(task, RESYNC_S / SLICES)
                self._slice()
            elif task.kind == "policy":
                self.guarded.problem = installed.look_at_policies(self._kube, self._metrics)
            elif task.kind == "images":
                self._images.keep()
            elif task.kind == "guard":
                self.guarded.keep()
            else:
                installed.claim_check(self._kube, self._settings.check_name, self._now())
            self._failures.pop(task, None)
        except Conflict:
            self._metrics.add("singularity_conflicts_total")
            queue.add(task, CONFLICT_DELAY_S)
        except Exception as error:
            self._count_error()
            count = self._failures[task] = self._failures.get(task, 0) + 1
            delay = backoff_s(count)
            if isinstance(error, KubeError):
                log.warning("%s %s/%s: %s; again in %.1f s", task.kind, task.namespace, task.name, error, delay)
            else:
                self._skips.note(task.kind, f"{task.namespace}/{task.name}", error)
            queue.add(task, delay)

    def _workload_of(self, job: Object) -> Object | None:
        return self.world.workload_of(str(job["metadata"]["namespace"]), kinds.job_key(job))


def _job_of(obj: Object) -> str:
    """What a Job and its Workload have in common: one look is enough for both."""
    owner = states.owner_job(obj) if obj.get("kind") == WORKLOAD.name else kinds.job_key(obj)
    return owner or str(obj["metadata"]["name"])
