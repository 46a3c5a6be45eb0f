"""Where a pending Workload stands in its queue: Kueue's visibility API, which a cluster may or may not serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..errors import KubeError, NotFound
from ..kube.api import Kube
from ..kube.resources import is_true

GROUP = "visibility.kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
LIMIT = 1000


@dataclass(frozen=True)
class Position:
    """Places are counted from 1. `pending`: Workloads that wait in the LocalQueue, at most LIMIT."""

    queue: str
    place: int
    pending: int
    cluster_queue_place: int

    def __str__(self) -> str:
        many = f"{self.pending}" + (" or more" if self.pending >= LIMIT else "")
        return f"place {self.place} of {many} in queue {self.queue}, {self.cluster_queue_place} in its cluster queue"


def position(kube: Kube, workload: Mapping[str, Any] | None) -> Position | None:
    """None when the Workload does not wait, or nobody tells: API not served, no permission, no answer. Never raises."""
    if workload is None or is_true(workload, "QuotaReserved") or is_true(workload, "Finished"):
        return None
    namespace = str(workload["metadata"]["namespace"])
    queue = str((workload.get("spec") or {}).get("queueName") or "")
    if not queue:
        return None
    try:
        return find(_pending(kube, _local(namespace, queue)), workload, queue)
    except KubeError:
        return None


def places(kube: Kube, queue: str, namespace: str | None = None) -> dict[tuple[str, str], Position]:
    """`(namespace, Workload)` -> place, of all that wait in a ClusterQueue, or in a LocalQueue of `namespace`.

    Raises KubeError: NotFound where the API is not served, Forbidden.
    """
    where = f"clusterqueues/{quote(queue, safe='')}" if namespace is None else _local(namespace, queue)
    return placed(_pending(kube, where))


def placed(summary: Mapping[str, Any]) -> dict[tuple[str, str], Position]:
    """The same of a PendingWorkloadsSummary. Pure."""
    items = summary.get("items") or []
    keys = [(str((i.get("metadata") or {}).get("namespace")), str(i.get("localQueueName") or "")) for i in items]
    many = Counter(keys)
    return {
        (key[0], str((item.get("metadata") or {}).get("name"))): _position(item, key[1], many[key])
        for key, item in zip(keys, items, strict=True)
    }


def _local(namespace: str, queue: str) -> str:
    return f"namespaces/{quote(namespace, safe='')}/localqueues/{quote(queue, safe='')}"


def _pending(kube: Kube, where: str) -> Mapping[str, Any]:
    for version in VERSIONS[:-1]:
        try:
            return kube.get_path(f"/apis/{GROUP}/{version}/{where}/pendingworkloads?limit={LIMIT}")
        except NotFound:
            continue
    return kube.get_path(f"/apis/{GROUP}/{VERSIONS[-1]}/{where}/pendingworkloads?limit={LIMIT}")


def _position(item: Mapping[str, Any], queue: str, pending: int) -> Position:
    local, cluster = int(item.get("positionInLocalQueue") or 0), int(item.get("positionInClusterQueue") or 0)
    return Position(queue, local + 1, pending, cluster + 1)


def find(summary: Mapping[str, Any], workload: Mapping[str, Any], queue: str) -> Position | None:
    """The Workload's place in a PendingWorkloadsSummary, None when it is not in it. Pure."""
    items = summary.get("items") or []
    for item in items:
        meta = item.get("metadata") or {}
        if meta.get("name") == workload["metadata"]["name"]:
            return _position(item, queue, len(items))
    return None
