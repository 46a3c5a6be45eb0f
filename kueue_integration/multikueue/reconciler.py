"""Carries the steps of `plan` out: one thread in the manager's controller, working while that one leads."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..contract import job_names, kinds
from ..controller import apply
from ..controller.actions import Action, Wait
from ..controller.forever import Skips, backoff_s, forever
from ..controller.informer import Informer
from ..controller.metrics import Metrics
from ..controller.work_queue import WorkQueue
from ..errors import Conflict, KubeError, NotFound
from ..job import states
from ..kube.api import Kube
from ..kube.client import connect_to
from ..kube.resources import JOB, POD, WORKLOAD, Object, label, selector
from . import companions, plan
from .clusters import Fleet, Worker
from .plan import Site

log = logging.getLogger(__name__)

RESYNC_S = 30.0
REFRESH_S = 5.0
CONFLICT_DELAY_S = 0.05

_Key = tuple[str, str]
"""Namespace and name of a Workload."""


class MultiKueueReconciler:
    """`kube` is the manager's API server, `namespace` that of its Kueue. `now`: the server's time, Unix seconds."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        check_name: str,
        metrics: Metrics,
        leads: Callable[[], bool],
        now: Callable[[], float] = time.time,
        connector: Callable[[Mapping[str, Any]], Kube] = connect_to,
        noted: Callable[[Object, str], None] = lambda job, text: None,
    ) -> None:
        """`noted` gets a job of the manager and the newest progress of its copy."""
        self._kube, self._check_name, self._metrics, self._leads, self._now = kube, check_name, metrics, leads, now
        self.queue: WorkQueue[_Key] = WorkQueue()
        self._noted = noted
        self.fleet = Fleet(kube, namespace, self._changed, self._again, connector, self._on_note)
        managed = selector({job_names.LABEL_MANAGED: "true"})
        self.jobs = Informer(kube, JOB, self._on_job, selector=managed)
        self.workloads = Informer(kube, WORKLOAD, self._on_workload, index=_owner)
        self._skips = Skips(metrics)
        self._again_now = threading.Event()
        self._refresh = self._resync = 0.0
        self._stop = threading.Event()
        self._failures: dict[_Key, int] = {}
        self._provided: dict[_Key, str] = {}
        self._thread = threading.Thread(target=self._run, name="multikueue", daemon=True)

    # --- life -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        self.jobs.start()
        self.workloads.start()
        self.fleet.start()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self.fleet.stop()
        self.jobs.stop()
        self.workloads.stop()
        self._thread.join(timeout=10)

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
    def _run(self) -> None:
        forever(self._stop, self._turn, "multikueue", lambda: self._metrics.add("singularity_errors_total"))

    def _turn(self) -> None:
        key = self.queue.get(timeout_s=0.5)
        if not self._leads():
            self._resync = 0.0  # whoever takes over looks at everything
            return
        if key is not None:
            self.handle(key)
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

    def handle(self, key: _Key) -> None:
        """Take the steps that are due; what goes wrong is logged and done again later. Never raises."""
        try:
            if self.step(key):
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

    # --- one job --------------------------------------------------------------------------------------------------
    def step(self, key: _Key) -> bool:
        """Take one step; whether there may be another. Raises KubeError, Conflict: look again."""
        namespace, name = key
        if not (self.jobs.synced.is_set() and self.workloads.synced.is_set()):
            return False
        workload = self.workloads.get(namespace, name)
        job_name = states.owner_job(workload) if workload is not None else self._name_of_copy(key)
        if job_name is None or kinds.kind_and_name(job_name)[0] is not JOB:
            return self._strange(key, workload, job_name)
        job = self.jobs.get(namespace, job_name)
        if job is not None and not states.delegated(job):
            return False
        workers = self.fleet.workers()
        sites = [worker.site(namespace, job_name, name) for worker in workers]
        if job is None and all(s.job is None and s.workload is None for s in sites):
            return False
        if job is None:  # not a managed one, or one that is gone
            job = self._kube.find(JOB, namespace, job_name)
        self._provide(job, sites)
        step = self._decide(job, workload, sites)
        if step is None:
            return False
        if isinstance(step, (plan.Record, plan.Hand)):
            self._perform(step, job, sites)  # the version of what it writes on guards it
            return True
        # What cannot be taken back is decided again on what the clusters say now.
        job = self._kube.find(JOB, namespace, job_name)
        workload = self._kube.find(WORKLOAD, namespace, name)
        sites = [worker.look(namespace, job_name, name) for worker in workers]
        step = self._decide(job, workload, sites)
        if step is not None:
            self._perform(step, job, sites)
        return step is not None and not isinstance(step, (plan.End, plan.Say, plan.Back))

    def _decide(self, job: Object | None, workload: Object | None, sites: Sequence[Site]) -> plan.Step | None:
        blind = [Site(name, reachable=False) for name in self.fleet.unconnected()]
        return plan.decide(job, workload, [*sites, *blind], self._check_name, self._now())

    def _name_of_copy(self, key: _Key) -> str | None:
        """Name of the Job whose copies are left of a Workload that is no more."""
        for worker in self.fleet.workers():
            for copy in worker.jobs.indexed(key):
                return str(copy["metadata"]["name"])
        return None

    def _strange(self, key: _Key, workload: Object | None, owner: str | None) -> bool:
        """A Workload of something that is no Job, in a queue that names our check: let it in, unless it is one of ours.

        The manager's own Workloads, which have a queue of this cluster, have no copies.
        """
        sites = [worker.site(key[0], "", key[1]) for worker in self.fleet.workers()]
        if workload is None or all(site.workload is None for site in sites):
            return False
        found = kinds.find(self._kube, key[0], owner) if owner else None
        if found is not None and label(found, job_names.LABEL_MANAGED) == "true":
            step = plan.only_jobs(str(found["kind"]), sites, self._check_name)
        else:
            step = plan.plain(workload, sites, self._check_name)
        if step is not None:
            self._perform(step, None, sites)
        return step is not None

    # --- acting ---------------------------------------------------------------------------------------------------
    def _perform(self, step: plan.Step, job: Object | None, sites: Sequence[Site]) -> None:
        if isinstance(step, plan.Record):
            assert job is not None
            apply.patch_annotations(self._kube, job, step.change)
            return
        worker = self.fleet.worker(step.cluster)
        site = next(s for s in sites if s.cluster == step.cluster)
        where = {"cluster": step.cluster}
        if isinstance(step, plan.Hand):
            assert site.job is not None
            apply.patch_annotations(worker.kube, site.job, step.change)
            log.info("handed to cluster %s: %s", step.cluster, ", ".join(sorted(step.change)), extra=where)
        elif isinstance(step, plan.Drop):
            assert site.job is not None
            apply.drop_finalizer(worker.kube, site.job)
            log.info("Job %s: its records are here, cluster %s may delete it", _name(site.job), step.cluster)
        elif isinstance(step, plan.End):
            assert site.job is not None
            for pod in step.pods:
                _delete(worker, str(site.job["metadata"]["namespace"]), pod)
            log.info("Job %s: ending its pods in cluster %s", _name(site.job), step.cluster, extra=where)
        elif isinstance(step, plan.Say):
            self._answer(worker, site, Wait(message=step.message))
        elif isinstance(step, plan.Back):
            self._answer(worker, site, step.action)
        else:
            if job is not None and step.answer.job_annotations:
                apply.patch_annotations(self._kube, job, step.answer.job_annotations)
            self._answer(worker, site, replace(step.answer, job_annotations={}))

    def _answer(self, worker: Worker, site: Site, action: Action) -> None:
        assert site.workload is not None
        about = {"metadata": site.workload["metadata"]}
        apply.perform(worker.kube, action, about, site.workload, self._check_name, self._metrics, self._now())

    def _provide(self, job: Object | None, sites: Sequence[Site]) -> None:
        """What the copy's pods need beside it: the job's Service and ConfigMaps. The copy owns them there."""
        for site in sites:
            copy = site.job
            if job is None or copy is None or copy["metadata"].get("deletionTimestamp"):
                continue
            key, uid = (site.cluster, str(copy["metadata"]["uid"])), str(copy["metadata"]["uid"])
            if key in self._provided:
                continue
            worker = self.fleet.worker(site.cluster)
            for kind, name in companions.needed(job):
                found = self._kube.find(kind, str(job["metadata"]["namespace"]), name)
                if found is not None:
                    companions.create(worker.kube, companions.made_for(found, copy))
            self._provided[key] = uid
            if len(self._provided) > 10_000:
                self._provided.clear()  # they are made again, which changes nothing


def _delete(worker: Worker, namespace: str, pod: str) -> None:
    with contextlib.suppress(NotFound):
        worker.kube.delete(POD, namespace, pod)


def _owner(workload: Object) -> tuple[str, str | None]:
    return str(workload["metadata"]["namespace"]), states.owner_job(workload)


def _key(workload: Object) -> _Key:
    return str(workload["metadata"]["namespace"]), str(workload["metadata"]["name"])


def _name(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"
