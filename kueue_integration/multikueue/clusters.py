"""The worker clusters: our copies of what MultiKueue has made there, and threads of their own for what they are asked.

A request to a cluster waits in one of its threads. So a cluster that is slow, dead or cut off holds up what needs its
word, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from ..contract import job_names, progress_objects
from ..contract.kinds import JOB_NAME_LABEL
from ..controller import kept
from ..controller.copies import Copies
from ..controller.informer import Informer
from ..controller.machines.nodes import Machines, Nodes
from ..controller.snapshot import Workload
from ..errors import KubeError, PlatformError, Unreachable
from ..job import states
from ..kube.api import Kube
from ..kube.resources import JOB, MULTIKUEUE_CLUSTER, POD, PROGRESS, WORKLOAD, Object, label, selector
from . import access
from .access import Access, AccessProvider
from .plan import Site, prebuilt

log = logging.getLogger(__name__)

THREADS = 4
"""Requests at once to one cluster."""
SLOW_S = 1.0
"""An answer that did not come and took longer: the cluster is not asked again for a while."""
AWAY_S = 10.0
_COPIES = job_names.MULTIKUEUE_ORIGIN_LABEL
T = TypeVar("T")

Changed = Callable[[str, str], None]
"""`(namespace, name of the Workload)`, which is the same in all clusters."""
Noted = Callable[[str, str, str], None]
"""`(namespace, name of the Job, its newest progress)`."""


class Worker(Copies):
    """One worker cluster and our copies of what MultiKueue has made there."""

    def __init__(self, name: str, kube: Kube, changed: Changed, noted: Noted, threads: ThreadPoolExecutor) -> None:
        self.name, self.kube = name, kube
        self._changed, self._noted = changed, noted
        self._threads = threads
        self._away_until = 0.0
        self.jobs = Informer(kube, JOB, self._on_job, _COPIES, index=_workload_of_copy, keep=kept.job)
        self.workloads = Informer(kube, WORKLOAD, self._on_workload, _COPIES, keep=kept.workload)
        managed = selector({job_names.LABEL_MANAGED: "true"})
        self.pods = Informer(kube, POD, self._on_pod, managed, index=_job_of_pod, keep=kept.pod)
        self.informers = (self.jobs, self.workloads, self.pods)
        self.beside = (Informer(kube, PROGRESS, self._on_note, optional=True),)
        self.nodes = Nodes(kube)
        self._machines = Machines(kube, self.nodes)

    def stop(self) -> None:
        super().stop()
        self.nodes.stop()

    # --- what we know without asking ------------------------------------------------------------------------------
    @property
    def answers(self) -> bool:
        """Whether it is worth asking: our copies are fresh, and it did not let us wait in vain a moment ago."""
        return self.fresh and not self._away

    @property
    def _away(self) -> bool:
        return time.monotonic() < self._away_until

    def site(self, namespace: str, name: str, workload: str) -> Site:
        """What it has of the Job `name` with that Workload, by our copies. Nothing is known of its machines."""
        pods = self.pods.indexed((namespace, name))
        job, copy = self.jobs.get(namespace, name), self.workloads.get(namespace, workload)
        return Site(self.name, self.answers, job, copy, pods)

    # --- asking it ------------------------------------------------------------------------------------------------
    async def run(self, call: Callable[[], T]) -> T:
        """Return what `call` does in one of this cluster's threads. Raises what it raises."""
        try:
            waiting = asyncio.get_running_loop().run_in_executor(self._threads, self._tried, call)
        except RuntimeError as error:  # its threads have ended
            raise Unreachable(f"cluster {self.name} has been given up") from error
        return await waiting

    def _tried(self, call: Callable[[], T]) -> T:
        if self._away:
            raise Unreachable(f"cluster {self.name} did not answer a moment ago")
        began = time.monotonic()
        try:
            return call()
        except Unreachable:
            if time.monotonic() - began > SLOW_S:
                self._away_until = time.monotonic() + AWAY_S
            raise

    async def look(self, namespace: str, name: str, workload: str, restores: bool) -> Site:
        """The same as `site`, asked of the cluster now. Not reachable when it does not answer.

        `restores`: also the machines of the flavors that its Workload has got.
        """
        if not self.answers:
            return Site(self.name, reachable=False)
        try:
            return await self.run(partial(self._look, namespace, name, workload, restores))
        except KubeError as error:
            log.warning("cluster %s: %s", self.name, error)
            return Site(self.name, reachable=False)

    def _look(self, namespace: str, name: str, workload: str, restores: bool) -> Site:
        """Pods come last: without a Job nothing makes more of them."""
        copy = self.kube.find(WORKLOAD, namespace, workload)
        job = self.kube.find(JOB, namespace, name)
        pods = self.kube.list(POD, namespace, selector({JOB_NAME_LABEL: name}))
        known = copy if copy is None or states.copied(copy) else None
        given = Workload.parse(known).admission if restores and known is not None else None
        flavors = set(given.flavors.values()) if given is not None else set()
        machines = {flavor: self._machines.of(flavor) for flavor in flavors}
        return Site(self.name, True, job, known, pods, machines.get)

    # --- events ---------------------------------------------------------------------------------------------------
    def _on_job(self, job: Object, deleted: bool) -> None:
        self._changed(str(job["metadata"]["namespace"]), prebuilt(job))

    def _on_note(self, obj: Object, deleted: bool) -> None:
        """Progress of a copy goes up to the manager's job of the same name."""
        namespace, name = str(obj["metadata"]["namespace"]), label(obj, job_names.LABEL_JOB) or ""
        copy, text = self.jobs.get(namespace, name), progress_objects.note_of(obj)
        if copy is not None and text is not None and str(copy["metadata"]["uid"]) == progress_objects.uid_of(obj):
            self._noted(namespace, name, text)

    def _on_workload(self, workload: Object, deleted: bool) -> None:
        self._changed(str(workload["metadata"]["namespace"]), str(workload["metadata"]["name"]))

    def _on_pod(self, pod: Object, deleted: bool) -> None:
        namespace, name = _job_of_pod(pod)
        job = self.jobs.get(namespace, name)
        if job is not None:
            self._changed(namespace, prebuilt(job))


def _workload_of_copy(job: Object) -> tuple[str, str]:
    return str(job["metadata"]["namespace"]), prebuilt(job)


def _job_of_pod(pod: Object) -> tuple[str, str]:
    return str(pod["metadata"]["namespace"]), label(pod, JOB_NAME_LABEL) or ""


class Fleet:
    """The worker clusters of this manager. `namespace` is Kueue's own, where Secrets and ClusterProfiles are."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        changed: Changed,
        everything: Callable[[], None],
        providers: Sequence[AccessProvider] = (),
        connector: Callable[[Access], Kube] = access.connected,
        noted: Noted = lambda namespace, name, text: None,
    ) -> None:
        self._kube, self._namespace, self._changed, self._connector = kube, namespace, changed, connector
        self._providers, self._noted = providers, noted
        self._everything = everything
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self._made_of: dict[str, str] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._connecting: dict[str, Future[None]] = {}
        self.declared = Informer(kube, MULTIKUEUE_CLUSTER, lambda obj, deleted: everything(), optional=True)

    def start(self) -> None:
        self.declared.start()

    def stop(self) -> None:
        self.declared.stop()
        for name in list(self._threads):
            self._forget(name)

    def refresh(self) -> None:
        """Connect to clusters that are new or reached otherwise than before, forget those that are declared no more.

        Nothing is waited for: each cluster is connected to in a thread of its own.
        """
        for worker in self.workers():
            worker.nodes.rest()
        if not self.declared.synced.is_set():
            return
        wanted = {str(obj["metadata"]["name"]): obj for obj in self.declared.all()}
        for name in self._threads.keys() - wanted.keys():
            self._forget(name)
        for name, declared in wanted.items():
            if name not in self._threads:
                self._threads[name] = ThreadPoolExecutor(THREADS, thread_name_prefix=f"multikueue-{name}")
            running = self._connecting.get(name)
            if running is None or running.done():
                self._connecting[name] = self._threads[name].submit(self._connect, declared, self._threads[name])

    def _connect(self, declared: Object, threads: ThreadPoolExecutor) -> None:
        name = str(declared["metadata"]["name"])
        try:
            found = access.of(declared, self._kube, self._namespace, self._providers)
            if self._made_of.get(name) == found.version:
                return
            kube = self._connector(found)
        except (KubeError, PlatformError) as error:
            log.error("MultiKueueCluster %s: %s", name, error)
            return
        except Exception:  # what is wrong with one cluster must not cut the others off
            log.exception("MultiKueueCluster %s", name)
            return
        worker = Worker(name, kube, self._changed, self._noted, threads)
        with self._lock:
            if self._threads.get(name) is not threads:
                return  # forgotten meanwhile
            before = self._workers.get(name)
            self._workers[name], self._made_of[name] = worker, found.version
        if before is not None:
            before.stop()
        worker.start()
        log.info("connecting to worker cluster %s", name)
        self._everything()

    def _forget(self, name: str) -> None:
        with self._lock:
            worker, threads = self._workers.pop(name, None), self._threads.pop(name)
            self._made_of.pop(name, None)
            self._connecting.pop(name, None)
        threads.shutdown(wait=False)
        if worker is not None:
            worker.stop()
            log.info("worker cluster %s is not ours any more", name)

    def worker(self, name: str) -> Worker:
        """Raises KeyError: it has been forgotten."""
        with self._lock:
            return self._workers[name]

    def workers(self) -> Sequence[Worker]:
        with self._lock:
            return list(self._workers.values())

    def unconnected(self) -> Sequence[str]:
        """Clusters that are declared and that we cannot even try."""
        declared = {str(obj["metadata"]["name"]) for obj in self.declared.all()}
        return sorted(declared - {worker.name for worker in self.workers()})
