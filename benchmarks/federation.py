"""A MultiKueue manager and its worker clusters as bare API servers, with the manager's part of the controller.

The API servers, their etcds and the reconciler are real. Objects are what Kueue would have made; nobody runs pods.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.controller.cache import World
from kueue_integration.controller.metrics import Metrics
from kueue_integration.errors import NotFound
from kueue_integration.kube.client import ApiKube
from kueue_integration.kube.resources import (
    CLUSTER_PROFILE,
    JOB,
    MULTIKUEUE_CLUSTER,
    PROGRESS,
    WORKLOAD,
    Object,
)
from kueue_integration.multikueue.access import AccessProvider
from kueue_integration.multikueue.reconciler import MultiKueueReconciler
from localcluster.api_server import ApiServer, any_of, api_server

NAMESPACE, KUEUE = "team", "kueue-system"
CHECK = job_names.ADMISSION_CHECK_NAME
LIMIT_S = 120.0
_TOKEN = "token-of-admin"


def kubeconfig(server: ApiServer, url: str = "") -> Mapping[str, Any]:
    """Return a kubeconfig with everything in it. `url`: where the server is reached, its own without one."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url or server.url, "certificate-authority-data": ca(server)}}],
        "users": [{"name": "u", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def ca(server: ApiServer) -> str:
    """Return the certificate that `server` shows, as a kubeconfig has it."""
    return base64.b64encode((server.folder / "certs" / "apiserver.crt").read_bytes()).decode()


@dataclass
class Federation:
    """`reconciler` runs between `start` and the end of `federation`."""

    manager: ApiServer
    workers: Mapping[str, ApiServer]
    providers: Sequence[AccessProvider] = ()
    reconciler: MultiKueueReconciler | None = field(default=None, init=False)
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(self.here)

    @property
    def here(self) -> ApiKube:
        return self.manager.kube()

    def kube(self, cluster: str) -> ApiKube:
        """The client of whoever plays Kueue there."""
        return self.workers[cluster].kube()

    def start(self) -> None:
        """Start the manager's part of the controller. All declared clusters that answer are known when it returns."""
        self.world.start()
        self.reconciler = MultiKueueReconciler(
            self.here, self.world, KUEUE, CHECK, Metrics(), lambda: True, providers=self.providers
        )
        self.reconciler.start()

    def fresh(self, *clusters: str) -> bool:
        """Whether the objects of these clusters are known."""
        assert self.reconciler is not None
        return set(clusters) <= {worker.name for worker in self.reconciler.fleet.workers() if worker.fresh}

    # --- what people and Kueue do ---------------------------------------------------------------------------------
    def declare(self, cluster: str, source: Mapping[str, Any]) -> None:
        """Make the MultiKueueCluster with that `clusterSource`."""
        self.here.create(_kueue(MULTIKUEUE_CLUSTER.name, {"name": cluster}, {"clusterSource": dict(source)}))

    def by_secret(self, cluster: str, content: Mapping[str, Any]) -> None:
        """Declare a cluster that is reached with a kubeconfig in a Secret."""
        text = base64.b64encode(json.dumps(content).encode()).decode()
        meta = {"name": cluster, "namespace": KUEUE}
        self.here.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"kubeconfig": text}})
        self.declare(cluster, {"kubeConfig": {"locationType": "Secret", "location": cluster}})

    def submit(self, name: str) -> None:
        """Make a training job with the manager's quota."""
        labels = {job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: "global"}
        meta = {"name": name, "namespace": NAMESPACE, "labels": labels,
                "annotations": {job_names.ANN_HOLD: job_names.HOLD_ARMED}}  # fmt: skip
        pod = {"restartPolicy": "Never", "containers": [{"name": "train", "image": "any:1"}]}
        spec = {"suspend": True, "managedBy": job_names.MULTIKUEUE_CONTROLLER, "template": {"spec": pod}}
        job = self.here.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        self._workload(self.here, name, {"ownerReferences": [owner]}, checks=False)

    def reserve(self, cluster: str, name: str) -> None:
        """Copy the job's Workload into the cluster and give it quota there."""
        self._workload(
            self.kube(cluster), name, {"labels": {job_names.MULTIKUEUE_ORIGIN_LABEL: "manager"}}, checks=True
        )

    def leave(self, cluster: str, name: str) -> None:
        """Take the Workload out of the cluster: the job has not started there, or has ended."""
        self.kube(cluster).delete(WORKLOAD, NAMESPACE, workload_of(name))

    def check(self, cluster: str, name: str) -> Mapping[str, Any]:
        """Return the fence's answer there."""
        found = self.kube(cluster).get(WORKLOAD, NAMESPACE, workload_of(name))
        return next(c for c in found["status"]["admissionChecks"] if c["name"] == CHECK)

    def let_in(self, cluster: str, names: Sequence[str]) -> None:
        """Wait until the fence of `cluster` is open for all of these jobs."""
        open_to_all = lambda: all(self.check(cluster, name)["state"] == "Ready" for name in names)  # noqa: E731
        until(open_to_all, "the waiting jobs are let in", 180.0)

    def job(self, name: str) -> Object:
        return self.here.get(JOB, NAMESPACE, name)

    @staticmethod
    def _workload(kube: ApiKube, name: str, meta: Mapping[str, Any], checks: bool) -> None:
        container = {"name": "train", "resources": {"requests": {"cpu": "1"}}}
        podset = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
        made = kube.create(
            _kueue(WORKLOAD.name, {"name": workload_of(name), "namespace": NAMESPACE, **meta},
                   {"queueName": "global", "podSets": [podset]})
        )  # fmt: skip
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        given = {"name": "main", "count": 1, "flavors": {"cpu": "any"}, "resourceUsage": {"cpu": "1"}}
        reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": ""}
        status = {
            "admission": {"clusterQueue": "training", "podSetAssignments": [given]},
            "conditions": [{**reserved, "lastTransitionTime": now}],
        }
        if checks:
            ours = {"name": CHECK, "state": "Pending", "message": "", "lastTransitionTime": now}
            status["admissionChecks"] = [ours]
        kube.patch_workload_status(NAMESPACE, str(made["metadata"]["name"]), {"status": status})

    def admitted(self, cluster: str, name: str) -> float:
        """Return the seconds from quota in `cluster` for the new job `name` to the fence's answer there."""
        self.submit(name)
        began = time.monotonic()
        self.reserve(cluster, name)
        until(lambda: self.check(cluster, name)["state"] == "Ready", f"{name} is let into {cluster}")
        return time.monotonic() - began


def workload_of(name: str) -> str:
    return f"job-{name}"


def until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(0.01)


def _kueue(kind: str, meta: Mapping[str, Any], spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": WORKLOAD.api_version, "kind": kind, "metadata": dict(meta), "spec": dict(spec)}


@contextlib.contextmanager
def federation(
    folder: Path, apiserver: str, etcd: str, names: Sequence[str], providers: Sequence[AccessProvider] = ()
) -> Iterator[Federation]:
    """Start the manager's API server and one for each of `names`, and end them. No cluster is declared."""
    with contextlib.ExitStack() as stack:

        def started(name: str) -> ApiServer:
            own = folder / name
            own.mkdir()
            return stack.enter_context(api_server(own, apiserver, etcd))

        with ThreadPoolExecutor(len(names) + 1) as pool:
            manager, *workers = pool.map(started, ["manager", *names])
        made = Federation(manager, dict(zip(names, workers, strict=True)), providers)
        for server in (manager, *workers):
            _furnish(server.kube())
        try:
            yield made
        finally:
            if made.reconciler is not None:
                made.reconciler.stop()
                made.world.stop()


def _furnish(kube: ApiKube) -> None:
    for kind in (WORKLOAD, MULTIKUEUE_CLUSTER, CLUSTER_PROFILE, PROGRESS):
        definition = any_of(kind)
        if kind == WORKLOAD:
            definition["spec"]["versions"][0]["subresources"] = {"status": {}}
        kube._json("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=definition)
    for namespace in (NAMESPACE, KUEUE):
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    until(lambda: _served(kube), "the definitions are served")


def _served(kube: ApiKube) -> bool:
    try:
        found = kube.get_path(f"/apis/{WORKLOAD.api_version}")["resources"]
    except NotFound:  # not even the group yet
        return False
    return {WORKLOAD.plural, MULTIKUEUE_CLUSTER.plural} <= {each["name"] for each in found}
