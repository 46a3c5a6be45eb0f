"""Takes the steps of `plan`: a loop in the manager's controller that works while it leads, with a task for each job.

A task that waits for a cluster lets the others go on. It waits only for the clusters whose word its step needs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from singularity_proxy.protocol import names

from ..contract import job_names, kinds
from ..controller.cache import World
from ..controller.forever import Skips, backoff_s, forever
from ..controller.metrics import Metrics
from ..controller.snapshot import Job
from ..controller.work_queue import WorkQueue
from ..errors import Conflict, KubeError
from ..job import states
from ..kube.api import Kube
from ..kube.resources import JOB, WORKLOAD, Object, label
from . import access, plan
from .access import Access, AccessProvider
from .acting import Acting
from .clusters import Fleet
from .plan import Site

log = logging.getLogger(__name__)

RESYNC_S = 30.0
REFRESH_S = 5.0
CONFLICT_DELAY_S = 0.05
THREADS = 8
"""Requests at once to the manager's own API server, and one that waits for the queue."""
T = TypeVar("T")

_Key = tuple[str, str]
"""Namespace and name of a Workload."""


class MultiKueueReconciler:
    """`kube` is the manager's API server, `namespace` that of its Kueue. `now`: the server's time, Unix seconds.

    `world`: the copies of the manager's own objects, which whoever has made them starts and stops.
    """

    def __init__(
        self,
        kube: Kube,
        world: World,
        namespace: str,
        check_name: str,
        metrics: Metrics,
        leads: Callable[[], bool],
        now: Callable[[], float] = time.time,
        providers: Sequence[AccessProvider] = (),
        connector: Callable[[Access], Kube] = access.connected,
        noted: Callable[[Object, str], None] = lambda job, text: None,
    ) -> None:
        """`noted` gets a job of the manager and the newest progress of its copy."""
        self._kube, self._check_name, self._metrics, self._leads, self._now = kube, check_name, metrics, leads, now
        self.queue: WorkQueue[_Key] = WorkQueue()
        self._noted = noted
        self.fleet = Fleet(kube, namespace, self._changed, self._again, providers, connector, self._on_note)
        self.jobs, self.workloads = world.jobs, world.workloads
        self.jobs.listen(self._on_job)
        self.workloads.listen(self._on_workload)
        self._skips = Skips(metrics)
        self._again_now = threading.Event()
        self._refresh = self._resync = 0.0
        self._stop = threading.Event()
        self._failures: dict[_Key, int] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="multikueue")
        self._acting = Acting(kube, self._here, self.fleet, check_name, metrics, now)
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="multikueue", daemon=True)

    # --- life -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        self.fleet.start()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self.fleet.stop()  # after the loop, which would connect to its clusters again
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- events ---------------------------------------------------------------------------------------------------
    def _changed(self, namespace: str, workload: str) -> None:
        self.queue.add((namespace, workload))

    def _again(self) -> None:
        self._again_now.set()

    def _on_note(self, namespace: str, name: str, text: str) -> None:
        job = self.jobs.get(namespace, name)
        if job is not None and states.delegated(job) and self._leads():
            self._noted(job, text)

    def _on_job(self, job: Object, deleted: bool) -> None:
        if states.delegated(job):
            namespace, name = str(job["metadata"]["namespace"]), str(job["metadata"]["name"])
            for workload in self.workloads.indexed((namespace, name)):
                self.queue.add((namespace, str(workload["metadata"]["name"])))

    def _on_workload(self, workload: Object, deleted: bool) -> None:
        self.queue.add((str(workload["metadata"]["namespace"]), str(workload["metadata"]["name"])))

    # --- loop -----------------------------------------------------------------------------------------------------
    async def _here(self, call: Callable[[], T]) -> T:
        """Return what `call` does with the manager's API server, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        surprised = partial(self._metrics.add, "singularity_errors_total")
        forever(self._stop, lambda: loop.run_until_complete(self._turn()), "multikueue", surprised)
        loop.run_until_complete(self._end())
        loop.close()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _turn(self) -> None:
        key = await self._here(partial(self.queue.claim, 0.5))
        if not self._leads():
            self._resync = 0.0  # whoever takes over looks at everything
            if key is not None:
                self.queue.done(key)
            return
        if key is not None:
            task = asyncio.get_running_loop().create_task(self.handle(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._again_now.is_set():
            self._again_now.clear()
            self._refresh = self._resync = 0.0  # a cluster more or less may be what a job waits for
        if time.monotonic() >= self._refresh:
            self._refresh = time.monotonic() + REFRESH_S
            self.fleet.refresh()
        if time.monotonic() >= self._resync:
            self._resync = time.monotonic() + RESYNC_S
            for each in self._known():
                self.queue.add(each)

    def _known(self) -> set[_Key]:
        found = {_key(w) for w in self.workloads.all()}
        for worker in self.fleet.workers():
            found |= {_key(w) for w in worker.workloads.all()}
            for job in worker.jobs.all():
                with self._skips.over("multikueue", _name(job)):
                    found.add((str(job["metadata"]["namespace"]), plan.prebuilt(job)))
        return found

    async def handle(self, key: _Key) -> None:
        """Take a step for a claimed key; what goes wrong is logged and done again later. Never raises."""
        try:
            if await self.step(key):
                self.queue.add(key, CONFLICT_DELAY_S)
            self._failures.pop(key, None)
        except Conflict:
            self._metrics.add("singularity_conflicts_total")
            self.queue.add(key, CONFLICT_DELAY_S)
        except Exception as error:
            self._metrics.add("singularity_errors_total")
            count = self._failures[key] = self._failures.get(key, 0) + 1
            delay = backoff_s(count)
            if isinstance(error, KubeError):
                log.warning("multikueue %s/%s: %s; again in %.1f s", *key, error, delay)
            else:
                self._skips.note("multikueue", "/".join(key), error)
            self.queue.add(key, delay)
        finally:
            self.queue.done(key)

    # --- one job --------------------------------------------------------------------------------------------------
    async def step(self, key: _Key) -> bool:
        """Take one step; whether there may be another. Raises KubeError, Conflict: look again."""
        namespace, name = key
        if not (self.jobs.synced.is_set() and self.workloads.synced.is_set()):
            return False
        workload = self.workloads.get(namespace, name)
        job_name = states.owner_job(workload) if workload is not None else self._name_of_copy(key)
        if job_name is None or kinds.kind_and_name(job_name)[0] is not JOB:
            return await self._strange(key, workload, job_name)
        job = self.jobs.get(namespace, job_name)
        if job is not None and not states.delegated(job):
            return False
        sites = [worker.site(namespace, job_name, name) for worker in self.fleet.workers()]
        if job is None and all(s.job is None and s.workload is None for s in sites):
            return False
        if job is None:  # not a managed one, or one that is gone
            job = await self._here(partial(self._kube.find, JOB, namespace, job_name))
        await self._acting.provide(job, sites)
        step = self._decide(job, workload, sites)
        if isinstance(step, (plan.Record, plan.Hand)):
            await self._acting.perform(step, job, sites)  # the version of what it writes on guards it
            return True
        if step is not None:
            step = await self._surely(namespace, job_name, name, sites)
        return step is not None and not isinstance(step, (plan.End, plan.Say, plan.Back))

    async def _surely(self, namespace: str, job_name: str, name: str, copies: Sequence[Site]) -> plan.Step | None:
        """Decide on what cannot be taken back by what the clusters say now, do it, and return it."""
        job = await self._here(partial(self._kube.find, JOB, namespace, job_name))
        workload = await self._here(partial(self._kube.find, WORKLOAD, namespace, name))
        restores = job is not None and Job.parse(job).text(names.ANN_CHECKPOINT) is not None
        asked: dict[str, Site] = {}
        while True:
            sites = [asked.get(site.cluster, site) for site in copies]
            step = self._decide(job, workload, sites)
            if step is None:
                return None
            if isinstance(step, (plan.Record, plan.Hand)):
                break
            open_questions = plan.concerned(step, job, sites) - asked.keys()
            if not open_questions:
                break
            workers = [worker for worker in self.fleet.workers() if worker.name in open_questions]
            looks = [worker.look(namespace, job_name, name, restores) for worker in workers]
            asked |= {site.cluster: site for site in await asyncio.gather(*looks)}
            for gone in open_questions - asked.keys():
                asked[gone] = Site(gone, reachable=False)
        await self._acting.perform(step, job, sites)
        return step

    def _decide(self, job: Object | None, workload: Object | None, sites: Sequence[Site]) -> plan.Step | None:
        blind = [Site(name, reachable=False) for name in self.fleet.unconnected()]
        return plan.decide(job, workload, [*sites, *blind], self._check_name, self._now())

    def _name_of_copy(self, key: _Key) -> str | None:
        """Name of the Job whose copies are left of a Workload that is no more."""
        for worker in self.fleet.workers():
            for copy in worker.jobs.indexed(key):
                return str(copy["metadata"]["name"])
        return None

    async def _strange(self, key: _Key, workload: Object | None, owner: str | None) -> bool:
        """A Workload of something that is no Job, in a queue that names our check: let it in, unless it is one of ours.

        The manager's own Workloads, which have a queue of this cluster, have no copies.
        """
        sites = [worker.site(key[0], "", key[1]) for worker in self.fleet.workers()]
        if workload is None or all(site.workload is None for site in sites):
            return False
        found = await self._here(partial(kinds.find, self._kube, key[0], owner)) if owner else None
        if found is not None and label(found, job_names.LABEL_MANAGED) == "true":
            step = plan.only_jobs(str(found["kind"]), sites, self._check_name)
        else:
            step = plan.plain(workload, sites, self._check_name)
        if step is not None:
            await self._acting.perform(step, None, sites)
        return step is not None


def _key(workload: Object) -> _Key:
    return str(workload["metadata"]["namespace"]), str(workload["metadata"]["name"])


def _name(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"
