"""Where a pending Workload stands in its queue: Kueue's visibility API, which a cluster may or may not serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..errors import KubeError
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
    where = f"namespaces/{quote(namespace, safe='')}/localqueues/{quote(queue, safe='')}/pendingworkloads"
    for version in VERSIONS:
        try:
            return find(kube.get_path(f"/apis/{GROUP}/{version}/{where}?limit={LIMIT}"), workload, queue)
        except KubeError as error:
            if error.status != 404:
                return None
    return None


def find(summary: Mapping[str, Any], workload: Mapping[str, Any], queue: str) -> Position | None:
    """The Workload's place in a PendingWorkloadsSummary, None when it is not in it. Pure."""
    items = summary.get("items") or []
    for item in items:
        meta = item.get("metadata") or {}
        if meta.get("name") == workload["metadata"]["name"]:
            local, cluster = int(item.get("positionInLocalQueue") or 0), int(item.get("positionInClusterQueue") or 0)
            return Position(queue, local + 1, len(items), cluster + 1)
    return None
