"""A cluster that is large for the controller: running jobs with all their pods, jobs that wait, long nodes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kueue_integration.errors import KubeError, NotFound
from kueue_integration.job.pods import INDEX_ANNOTATION
from kueue_integration.kube import server_time
from kueue_integration.kube.client import ApiKube
from kueue_integration.kube.resources import KUEUE_GROUP, KUEUE_VERSION, NODE, POD, RESOURCE_FLAVOR, Object
from localcluster.api_server import ApiServer, any_of

from .running_jobs import CREATORS, Cluster
from .running_objects import NAMESPACES, QUEUE, job, namespace_of, pod, pod_status, workload

PODS = 4
"""Of each running job."""
HEARTBEAT_S = 300.0
"""A kubelet writes the status of its node so often, though nothing has changed."""
FLAVORS = ("a3-highgpu", "cheap")
WAITING = 50_000
"""Number of the first job that waits."""
SERVED_S = 60.0


def node(number: int) -> Object:
    """One as a cloud makes it: 18 kB, most of it names of images."""
    at = server_time.to_text(time.time())
    labels = {f"cloud.example.com/label-{n}": f"value-{n}-of-node" for n in range(30)}
    kinds = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "KernelDeadlock", "FrequentContainerdRestart")
    told = {"lastHeartbeatTime": at, "lastTransitionTime": at, "reason": "KubeletReady", "message": "it is " * 8}
    images = [
        {"names": [f"registry.example.com/team/image-{n}@sha256:{n:064d}", f"registry.example.com/team/image-{n}:v{n}"],
         "sizeBytes": 123_456_789}
        for n in range(50)
    ]  # fmt: skip
    amounts = {"cpu": "208", "memory": "1800Gi", "nvidia.com/gpu": "8", "pods": "110", "ephemeral-storage": "5Ti"}
    conditions = [{"type": kind, "status": "True" if kind == "Ready" else "False", **told} for kind in kinds]
    return {
        "apiVersion": "v1",
        "kind": NODE.name,
        "metadata": {"name": f"node-{number:05d}", "labels": {"flavor": FLAVORS[number % 2], **labels}},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": conditions, "images": images},
    }


def waiting(number: int, uid: str) -> Object:
    """The Workload of a job that has no quota yet."""
    made = workload(number, uid)
    return {**made, "status": {}}


class Large(Cluster):
    """Running jobs with all their pods, nodes, and jobs that wait."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.kube: ApiKube = server.kube()
        self.nodes = self.queued = self.full = 0
        self._post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", any_of(RESOURCE_FLAVOR))
        for flavor in FLAVORS:
            self._kueue(RESOURCE_FLAVOR.name, {"name": flavor}, {"nodeLabels": {"flavor": flavor}})
        amounts = [{"name": "cpu", "nominalQuota": "16000"}, {"name": "memory", "nominalQuota": "1Pi"}]
        quotas = [{"name": flavor, "resources": amounts} for flavor in FLAVORS]
        groups = [{"coveredResources": ["cpu", "memory"], "flavors": quotas}]
        self._kueue("ClusterQueue", {"name": "bench"}, {"resourceGroups": groups})
        for namespace in map(namespace_of, range(NAMESPACES)):
            self._kueue("LocalQueue", {"name": QUEUE, "namespace": namespace}, {"clusterQueue": "bench"})

    def _kueue(self, kind: str, meta: Mapping[str, str], spec: Mapping[str, Any]) -> None:
        """Make an object of Kueue's, as soon as its kind is served."""
        version, end = f"{KUEUE_GROUP}/{KUEUE_VERSION}", time.monotonic() + SERVED_S
        while True:
            try:
                self.kube.create({"apiVersion": version, "kind": kind, "metadata": dict(meta), "spec": dict(spec)})
                return
            except NotFound:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def reach(self, jobs: int, nodes: int) -> None:
        """Have so many running jobs, half as many that wait, and nodes."""
        self.grow(jobs)
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(self._rest_of, range(self.full, jobs)))
            list(pool.map(self._node, range(self.nodes, nodes)))
            list(pool.map(self._waiting, range(WAITING + self.queued, WAITING + jobs // 2)))
        self.full, self.nodes, self.queued = jobs, nodes, jobs // 2

    def _rest_of(self, number: int) -> None:
        """The other pods of a job."""
        name, where = str(job(number)["metadata"]["name"]), namespace_of(number)
        made = self.kube.get_job(where, name)
        for index in range(1, PODS):
            its = pod(number, made)
            meta = its["metadata"]
            notes = {**meta["annotations"], INDEX_ANNOTATION: str(index)}
            its = {**its, "metadata": {**meta, "name": f"{name}-{index}", "annotations": notes}}
            self.kube.create(its)
            self.kube.patch(POD, where, f"{name}-{index}", {"status": pod_status()}, subresource="status")

    def _node(self, number: int) -> None:
        made = node(number)
        self.kube.create(made)
        self.beat(number)

    def beat(self, number: int) -> None:
        """Write the status of a node, as its kubelet does."""
        made = node(number)
        self.kube.patch(NODE, None, made["metadata"]["name"], {"status": made["status"]}, subresource="status")

    def _waiting(self, number: int) -> None:
        made = job(number)
        made["spec"]["suspend"] = True
        made["metadata"]["annotations"] = {
            k: v for k, v in made["metadata"]["annotations"].items() if k.startswith(("singularity.dev/hold", "kueue"))
        }
        self.kube.create(waiting(number, self.kube.create(made)["metadata"]["uid"]))


@contextlib.contextmanager
def heartbeats(cluster: Large) -> Iterator[None]:
    """The nodes' kubelets write, evenly."""
    stop = threading.Event()

    def run() -> None:
        number, began = 0, time.monotonic()
        while cluster.nodes and not stop.wait(
            max(0.0, began + number * HEARTBEAT_S / cluster.nodes - time.monotonic())
        ):
            with contextlib.suppress(KubeError):
                cluster.beat(number % cluster.nodes)
            number += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
