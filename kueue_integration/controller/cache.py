"""The controller's copies of the cluster's objects, with queries on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from ..contract import attempt_records, job_names, kinds
from ..contract.record_types import Preemptor
from ..job import states
from ..kube.client import Kube
from ..kube.resources import (
    CLUSTER_QUEUE,
    JOB,
    JOBSET,
    KUEUE_JOB_UID_LABEL,
    LOCAL_QUEUE,
    POD,
    PROGRESS,
    TRAINJOB,
    WORKLOAD,
    Kind,
    Object,
    label,
)
from ..planner import quota
from ..requests import placement
from . import kept, preemptor
from .copies import Copies
from .forever import Skips
from .informer import Informer
from .machines.nodes import Nodes
from .metrics import Metrics
from .narrow import Copy, follow
from .notes import Notes
from .snapshot import Pod

Changed = Callable[[Object, bool], None]
_MANAGED = f"{job_names.LABEL_MANAGED}=true"


def _ignore(obj: Object, deleted: bool) -> None:
    return None


def _workload_index(workload: Object) -> Iterable[Hashable]:
    """Its Job (`workload_of`), its own UID and its Job's (`preemptor`)."""
    yield str(workload["metadata"]["namespace"]), states.owner_job(workload)
    yield from {workload["metadata"].get("uid"), label(workload, KUEUE_JOB_UID_LABEL)} - {None}


def _pod_owner(pod: Object) -> tuple[str, str | None]:
    return str(pod["metadata"]["namespace"]), job_of(pod)


def _pod_index(pod: Object) -> Iterable[Hashable]:
    return (_pod_owner(pod),)


def job_of(pod: Object) -> str | None:
    """The name of the pod's job. Labels only: `identity` checks who really owns the pod."""
    return kinds.key_of_pod(pod)


class World(Copies):
    """Of Jobs and Pods: the managed ones only. Everything read here may be slightly out of date, and is no more than
    `kept` has left of it.

    `skips` is called with objects that cannot be read. `all_pods`: `pods` has those of others, too, with what each asks
    of its node. `namespaces`: the only ones that are followed, none for all.
    """

    def __init__(
        self,
        kube: Kube,
        on_job: Changed = _ignore,
        on_workload: Changed = _ignore,
        on_pod: Changed = _ignore,
        on_queue: Changed = _ignore,
        skips: Skips | None = None,
        all_pods: bool = False,
        on_node: Changed = _ignore,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._on_job, self._on_pod = on_job, on_pod
        self.namespaces = namespaces
        self._skips = skips or Skips(Metrics())
        skip = self._skips.note
        self._lost: dict[tuple[str, str | None], list[Object]] = {}
        self._lost_lock = threading.Lock()

        def copy(kind: Kind, changed: Changed, selector: str | None = None, **more: Any) -> Copy:
            return follow(kube, kind, changed, selector, skip=skip, namespaces=namespaces, **more)

        def jobs(kind: Kind, optional: bool) -> Copy:
            return copy(kind, self._job_changed, _MANAGED, optional=optional, keep=kept.job)

        self.jobs, self.jobsets, self.trainjobs = jobs(JOB, False), jobs(JOBSET, True), jobs(TRAINJOB, True)
        asked, keep = (None, kept.pod_with_asks) if all_pods else (_MANAGED, kept.pod)
        self.pods = copy(POD, self._pod_changed, asked, index=_pod_index, keep=keep)
        self.workloads = copy(WORKLOAD, on_workload, index=_workload_index, keep=kept.workload)
        self.cluster_queues = Informer(kube, CLUSTER_QUEUE, on_queue, skip=skip)
        self.local_queues = copy(LOCAL_QUEUE, on_queue)
        self.notes = Notes(kube)
        self.progress = copy(PROGRESS, self.notes.seen, optional=True, keep=kept.note)
        self.beside = (self.progress,)
        self.nodes = Nodes(kube, skip, changed=on_node)
        self._of_kind = {JOB: self.jobs, JOBSET: self.jobsets, TRAINJOB: self.trainjobs}
        self.informers = (*self._of_kind.values(), self.pods, self.workloads, self.cluster_queues, self.local_queues)

    def stop(self) -> None:
        super().stop()
        self.nodes.stop()

    def job(self, namespace: str, key: str) -> Object | None:
        """Our copy of the managed job that is called `key`, seen as a Job, with its newest progress."""
        found = self.stored_job(namespace, key)
        return None if found is None else self.notes.over(found)

    def stored_job(self, namespace: str, key: str) -> Object | None:
        """The same as the API server has it."""
        kind, name = kinds.kind_and_name(key)
        found = self._of_kind[kind].get(namespace, name)
        return None if found is None else kinds.as_job(found)

    def all_jobs(self, which: Callable[[Object], bool] = lambda obj: True) -> Sequence[Object]:
        """Every managed job that `which` is true of, seen as a Job."""
        found = []
        for kind, informer in self._of_kind.items():
            for job in filter(which, informer.all()):
                with self._skips.over(kind.name, _name(job)):
                    found.append(self.notes.over(kinds.as_job(job)))
        return found

    def workload_of(self, namespace: str, job: str) -> Object | None:
        """The Job's Workload; the youngest when an old one is on its way out."""
        found = self.workloads.indexed((namespace, job))
        alive = [w for w in found if not w["metadata"].get("deletionTimestamp")]
        return max(alive or found, key=states.created, default=None)

    def pods_of(self, namespace: str, job: str) -> Sequence[Object]:
        return self.pods.indexed((namespace, job))

    def lost_of(self, namespace: str, job: str) -> Sequence[Object]:
        """Pods of the Job's youngest attempt that were seen to go away unfinished, as if they had failed."""
        with self._lost_lock:
            return list(self._lost.get((namespace, job), ()))

    def _pod_changed(self, pod: Object, deleted: bool) -> None:
        key, own = _pod_owner(pod), Pod.parse(pod).attempt_word
        job = self.job(key[0], key[1] or "")
        if deleted and states.phase(pod) != "Succeeded" and job is not None and not _resting(job):
            status = {**(pod.get("status") or {}), "phase": "Failed"}  # the rest of it says how it ended
            ghost = {**pod, "metadata": {**pod["metadata"], "finalizers": []}, "status": status}
            with self._lost_lock:
                same = [old for old in self._lost.get(key, ()) if Pod.parse(old).attempt_word == own]
                self._lost[key] = [*same, ghost]
        self._on_pod(pod, deleted)

    def _job_changed(self, job: Object, deleted: bool) -> None:
        if deleted:
            self.notes.forget(str(job["metadata"].get("uid")))
            attempt_records.forget(job)
        # All pods of a suspended Job go away, and the next attempt has other pods.
        if deleted or _resting(kinds.as_job(job)):
            with self._lost_lock:
                self._lost.pop(kinds.place(job), None)
        self._on_job(self.notes.over(job), deleted)

    def preemptor(self, uid: str) -> Preemptor | None:
        """Who the Workload with this UID is, or the one of the Job with this UID."""
        found = self.workloads.indexed(uid)
        return preemptor.of(found[0]) if found else None

    # --- queues -------------------------------------------------------------------------------------------------------
    def flavors_of(self, job: Object) -> Sequence[str] | None:
        """Flavors of the Job's queue, None while the queue is not known."""
        queue = label(job, job_names.KUEUE_QUEUE_LABEL) or ""
        local = self.local_queues.get(str(job["metadata"]["namespace"]), queue)
        found = self.cluster_queues.get("", str((local or {}).get("spec", {}).get("clusterQueue", "")))
        return placement.flavor_names(found) if found is not None else None

    def cluster_queue_of(self, workload: Object) -> str | None:
        """The ClusterQueue of the Workload's LocalQueue, None if there is no such LocalQueue."""
        local = self._local_queue_of(workload)
        return str((local.get("spec") or {}).get("clusterQueue")) if local else None

    def stopped(self, workload: Object) -> bool:
        """Whether the Workload's LocalQueue admits nobody, or is gone."""
        local = self._local_queue_of(workload)
        return local is None or quota.stopped(local)

    def _local_queue_of(self, workload: Object) -> Object | None:
        name = (workload.get("spec") or {}).get("queueName") or ""
        return self.local_queues.get(str(workload["metadata"]["namespace"]), name)


def _name(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _resting(job: Object) -> bool:
    return states.suspended(job) or states.finished(job) is not None or bool(job["metadata"].get("deletionTimestamp"))
