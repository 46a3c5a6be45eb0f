"""Many jobs at once: as few objects as their lines need, and no request of its own for any job."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from ..contract import job_names, kinds, progress_objects
from ..kube.api import Kube
from ..kube.resources import POD, Object, selector
from .lines import JobLine
from .phase import Phase

L = TypeVar("L", bound=JobLine)

STARTS = (Phase.STARTING, Phase.RESTORING)
"""Pods say more only of jobs in these phases: why one of them does not start."""
NAMED = 100
"""Pods of so many jobs are asked for by the jobs' names; of more, all pods of ours are read."""


def all_jobs(kube: Kube, namespace: str | None, labels: str | None, of_job: Callable[..., L]) -> list[L]:
    """What `of_job` says of every managed job of `namespace` (None: of all), by name. Raises KubeError.

    :param labels: a selector that the jobs match, too
    :param of_job: takes the Job, its Workload and its pods
    """
    with _uncollected():
        jobs = _jobs(kube, namespace, labels)
        workloads = kube.workloads_by_job(namespace, jobs)
        shown = [of_job(job, workloads.get(job["metadata"]["uid"]), []) for job in jobs]
        starting = [(at, line) for at, line in enumerate(shown) if line.phase in STARTS]
        pods = _pods(kube, namespace, {line.name for _, line in starting})
        for at, line in starting:
            if its := pods.get((line.namespace, line.name)):
                shown[at] = of_job(jobs[at], workloads.get(jobs[at]["metadata"]["uid"]), its)
        return shown


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: in a hundred megabytes of JSON, which has no cycles, it takes most of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _jobs(kube: Kube, namespace: str | None, labels: str | None) -> list[Object]:
    """Jobs with their newest progress."""
    jobs = progress_objects.all_shown(kube, namespace, kinds.list_managed(kube, namespace, labels))
    if namespace is None:
        jobs.sort(key=lambda job: (job["metadata"]["namespace"], kinds.job_key(job)))
    return jobs


def _pods(kube: Kube, namespace: str | None, jobs: set[str]) -> Mapping[tuple[str, str], Sequence[Object]]:
    """Pods by namespace and job."""
    if not jobs:
        return {}
    some = f"{job_names.LABEL_JOB} in ({','.join(sorted(jobs))})"
    found: dict[tuple[str, str], list[Object]] = {}
    for pod in kube.list(POD, namespace, some if len(jobs) <= NAMED else selector({job_names.LABEL_MANAGED: "true"})):
        meta = pod["metadata"]
        found.setdefault((meta["namespace"], meta["labels"].get(job_names.LABEL_JOB, "")), []).append(pod)
    return found
