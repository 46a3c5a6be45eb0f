"""The worker clusters: connected to with the kubeconfig Secrets that MultiKueue's own objects name."""

from __future__ import annotations

import base64
import binascii
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from ..contract import job_names, progress_objects
from ..contract.kinds import JOB_NAME_LABEL
from ..controller import kept
from ..controller.copies import Copies
from ..controller.informer import Informer
from ..controller.machines.nodes import Machines, Nodes
from ..errors import KubeError, NotFound, PlatformError
from ..job import states
from ..kube.api import Kube
from ..kube.client import connect_to
from ..kube.resources import JOB, MULTIKUEUE_CLUSTER, POD, PROGRESS, SECRET, WORKLOAD, Object, label, selector
from .plan import Site, prebuilt

log = logging.getLogger(__name__)

KUBECONFIG_KEY = "kubeconfig"
"""In the Secret (MultiKueueConfigSecretKey in Kueue's apis/kueue/v1beta2/multikueue_types.go)."""
_COPIES = job_names.MULTIKUEUE_ORIGIN_LABEL

Changed = Callable[[str, str], None]
"""`(namespace, name of the Workload)`, which is the same in all clusters."""
Noted = Callable[[str, str, str], None]
"""`(namespace, name of the Job, its newest progress)`."""


class Worker(Copies):
    """One worker cluster and our copies of what MultiKueue has made there."""

    def __init__(self, name: str, kube: Kube, changed: Changed, noted: Noted) -> None:
        self.name, self.kube = name, kube
        self._changed, self._noted = changed, noted
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

    def site(self, namespace: str, name: str, workload: str) -> Site:
        """What it has of the Job `name` with that Workload, by our copies."""
        pods = self.pods.indexed((namespace, name))
        job, copy = self.jobs.get(namespace, name), self.workloads.get(namespace, workload)
        return Site(self.name, self.fresh, job, copy, pods, self._machines.of)

    def look(self, namespace: str, name: str, workload: str) -> Site:
        """The same, asked of the cluster now. Pods come last: without a Job nothing makes more of them.

        Not reachable when it does not answer.
        """
        try:
            copy = self.kube.find(WORKLOAD, namespace, workload)
            job = self.kube.find(JOB, namespace, name)
            pods = self.kube.list(POD, namespace, selector({JOB_NAME_LABEL: name}))
        except KubeError as error:
            log.warning("cluster %s: %s", self.name, error)
            return Site(self.name, reachable=False)
        known = copy if copy is None or states.copied(copy) else None
        return Site(self.name, True, job, known, pods, self._machines.of)

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
    """The worker clusters of this manager. `namespace` is Kueue's own, where the Secrets are."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        changed: Changed,
        everything: Callable[[], None],
        connector: Callable[[Mapping[str, Any]], Kube] = connect_to,
        noted: Noted = lambda namespace, name, text: None,
    ) -> None:
        self._kube, self._namespace, self._changed, self._connector = kube, namespace, changed, connector
        self._noted = noted
        self._everything = everything
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self._made_of: dict[str, str] = {}
        self.declared = Informer(kube, MULTIKUEUE_CLUSTER, lambda obj, deleted: everything(), optional=True)

    def start(self) -> None:
        self.declared.start()

    def stop(self) -> None:
        self.declared.stop()
        with self._lock:
            for worker in self._workers.values():
                worker.stop()

    def refresh(self) -> None:
        """Connect to clusters that are new or have another kubeconfig, forget those that are declared no more."""
        if not self.declared.synced.is_set():
            return
        wanted = {str(obj["metadata"]["name"]): obj for obj in self.declared.all()}
        for name in [name for name in self._workers if name not in wanted]:
            self._forget(name)
        for name, declared in wanted.items():
            try:
                version, kubeconfig = self._kubeconfig(declared)
                if self._made_of.get(name) == version:
                    continue
                kube = self._connector(kubeconfig)
            except (KubeError, PlatformError) as error:
                log.error("MultiKueueCluster %s: %s", name, error)
                continue
            except Exception:  # what is wrong with one cluster must not cut the others off
                log.exception("MultiKueueCluster %s", name)
                continue
            self._forget(name)
            worker = Worker(name, kube, self._changed, self._noted)
            with self._lock:
                self._workers[name], self._made_of[name] = worker, version
            worker.start()
            log.info("connecting to worker cluster %s", name)

    def _forget(self, name: str) -> None:
        with self._lock:
            worker = self._workers.pop(name, None)
            self._made_of.pop(name, None)
        if worker is not None:
            worker.stop()
            log.info("worker cluster %s is not ours any more", name)

    def _kubeconfig(self, declared: Object) -> tuple[str, Mapping[str, Any]]:
        """Identity and content. Raises PlatformError, KubeError."""
        source = ((declared.get("spec") or {}).get("clusterSource") or {}).get("kubeConfig")
        if not source or source.get("locationType", "Secret") != "Secret":
            raise PlatformError("spec.clusterSource names no Secret: only kubeConfig with locationType Secret is read")
        try:
            secret = self._kube.get(SECRET, self._namespace, str(source["location"]))
        except NotFound:
            raise PlatformError(f"there is no Secret {source['location']} in namespace {self._namespace}") from None
        try:
            content = yaml.safe_load(base64.b64decode(secret["data"][KUBECONFIG_KEY], validate=True))
        except (KeyError, TypeError, ValueError, binascii.Error, yaml.YAMLError) as error:
            raise PlatformError(f"Secret {source['location']}: no kubeconfig under key kubeconfig: {error}") from None
        if not isinstance(content, dict):
            raise PlatformError(f"Secret {source['location']}: its kubeconfig is no mapping")
        return str(secret["metadata"]["uid"]) + str(secret["metadata"]["resourceVersion"]), content

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
