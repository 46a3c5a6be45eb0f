"""Carries the steps of `plan` out: each request in a thread of the cluster that it goes to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..controller import apply
from ..controller.actions import Action, Wait
from ..controller.metrics import Metrics
from ..errors import NotFound
from ..kube.api import Kube
from ..kube.resources import JOB, POD, Object
from . import companions, plan
from .clusters import Fleet, Worker
from .plan import Site

log = logging.getLogger(__name__)

_Here = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a request to the manager's API server in a thread."""


class Acting:
    """`kube` is the manager's API server; `now` is the server's time, Unix seconds."""

    def __init__(
        self, kube: Kube, here: _Here, fleet: Fleet, check_name: str, metrics: Metrics, now: Callable[[], float]
    ) -> None:
        self._kube, self._here, self._fleet = kube, here, fleet
        self._check_name, self._metrics, self._now = check_name, metrics, now
        self._provided: set[tuple[str, str]] = set()
        """Cluster and UID of the copies that have what they need beside them."""

    async def perform(self, step: plan.Step, job: Object | None, sites: Sequence[Site]) -> None:
        """Raises KubeError, Conflict: nothing is done, or a part that is done again without harm."""
        if isinstance(step, plan.Record):
            assert job is not None
            await self._here(partial(apply.patch_annotations, self._kube, job, step.change))
            return
        worker = self._fleet.worker(step.cluster)
        site = next(s for s in sites if s.cluster == step.cluster)
        where = {"cluster": step.cluster}
        if isinstance(step, plan.Hand):
            assert site.job is not None
            await worker.run(partial(apply.patch_annotations, worker.kube, site.job, step.change))
            log.info("handed to cluster %s: %s", step.cluster, ", ".join(sorted(step.change)), extra=where)
        elif isinstance(step, plan.Drop):
            assert site.job is not None
            await worker.run(partial(apply.drop_finalizer, worker.kube, site.job))
            log.info("Job %s: its records are here, cluster %s may delete it", _name(site.job), step.cluster)
        elif isinstance(step, plan.End):
            assert site.job is not None
            for pod in step.pods:
                await worker.run(partial(_delete, worker.kube, str(site.job["metadata"]["namespace"]), pod))
            log.info("Job %s: ending its pods in cluster %s", _name(site.job), step.cluster, extra=where)
        elif isinstance(step, plan.Remove):
            assert site.job is not None
            await worker.run(partial(_remove, worker.kube, site.job))
            log.info("Job %s: left behind in cluster %s, removed", _name(site.job), step.cluster, extra=where)
        elif isinstance(step, plan.Say):
            await self._answer(worker, site, Wait(message=step.message))
        elif isinstance(step, plan.Back):
            await self._answer(worker, site, step.action)
        else:
            if job is not None and step.answer.job_annotations:
                await self._here(partial(apply.patch_annotations, self._kube, job, step.answer.job_annotations))
            await self._answer(worker, site, replace(step.answer, job_annotations={}))

    async def _answer(self, worker: Worker, site: Site, action: Action) -> None:
        assert site.workload is not None
        about = {"metadata": site.workload["metadata"]}
        told = (worker.kube, action, about, site.workload, self._check_name, self._metrics, self._now())
        await worker.run(partial(apply.perform, *told))

    async def provide(self, job: Object | None, sites: Sequence[Site]) -> None:
        """Make what the copy's pods need beside it: the job's Service and ConfigMaps. The copy owns them there."""
        for site in sites:
            copy = site.job
            if job is None or copy is None or copy["metadata"].get("deletionTimestamp") or not site.reachable:
                continue
            key = (site.cluster, str(copy["metadata"]["uid"]))
            if key in self._provided:
                continue
            worker = self._fleet.worker(site.cluster)
            for kind, name in companions.needed(job):
                found = await self._here(partial(self._kube.find, kind, str(job["metadata"]["namespace"]), name))
                if found is not None:
                    await worker.run(partial(companions.create, worker.kube, companions.made_for(found, copy)))
            if len(self._provided) >= 10_000:
                self._provided.clear()  # they are made again, which changes nothing
            self._provided.add(key)


def _delete(kube: Kube, namespace: str, pod: str) -> None:
    with contextlib.suppress(NotFound):
        kube.delete(POD, namespace, pod)


def _remove(kube: Kube, job: Object) -> None:
    meta = job["metadata"]
    with contextlib.suppress(NotFound):
        kube.delete(JOB, meta["namespace"], meta["name"], uid=meta["uid"], resource_version=meta.get("resourceVersion"))


def _name(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"
