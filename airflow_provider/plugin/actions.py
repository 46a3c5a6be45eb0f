"""From a task instance to its Job in the cluster: live status, and the verbs of the buttons. Blocking."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.jobs import queue_position
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, selector

from ..exceptions import SingularityProviderError
from ..identity import Claim, TaskKey
from ..lineage import document
from . import connection

LIVE_FOR_S = 2.0
"""Open tabs of the same task share one look at the cluster."""
MAX_CONNECTIONS = 32


class NotTheJobError(SingularityProviderError):
    """The Job is gone, or it is not the one of this task instance."""


class Clusters:
    """One client per connection for the life of the api-server, and answers that are seconds old at most."""

    def __init__(self, connect: Callable[[str], tuple[Kube, str]] = connection.connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._known: dict[str, Kube] = {}
        self._seen: dict[TaskKey, tuple[float, dict[str, Any]]] = {}

    def kube(self, conn_id: str) -> Kube:
        """Raises what the connection's hook raises."""
        with self._lock:
            known = self._known.get(conn_id)
        if known is None:
            known, _ = self._connect(conn_id)
            with self._lock:
                if len(self._known) >= MAX_CONNECTIONS:
                    self._known.clear()
                self._known[conn_id] = known
        return known

    def forget(self, conn_id: str) -> None:
        """After an error: the connection may have been edited, its credentials renewed."""
        with self._lock:
            self._known.pop(conn_id, None)

    def live(self, key: TaskKey, claim: Mapping[str, Any]) -> dict[str, Any]:
        """The lineage document as the cluster knows it now. Raises NotTheJobError, KubeError."""
        with self._lock:
            at, seen = self._seen.get(key, (0.0, {}))
        if time.monotonic() - at < LIVE_FOR_S:
            return seen
        kube = self.kube(claim["conn_id"])
        job = find(kube, key, claim)
        pods = kube.list_pods(claim["namespace"], selector({job_names.LABEL_JOB: claim["name"]}))
        workload = kube.get_workload_for_job(job)
        found = document(summarise(job, workload, pods, queue_position.position(kube, workload)))
        with self._lock:
            self._seen = {k: v for k, v in self._seen.items() if time.monotonic() - v[0] < LIVE_FOR_S}
            self._seen[key] = (time.monotonic(), found)
        return found


clusters = Clusters()
"""Of this process."""


def find(kube: Kube, key: TaskKey, claim: Mapping[str, Any]) -> Any:
    """The Job of `claim`. The Job's own record of its owner is checked, not only what Airflow has stored about it.
    Otherwise, whoever may write the task's state could point a button at somebody else's Job."""
    job = kube.find(JOB, claim["namespace"], claim["name"])
    if job is None or job["metadata"]["uid"] != claim["uid"]:
        raise NotTheJobError(f"Job {claim['namespace']}/{claim['name']} does not exist any more")
    own = Claim.of_job(job)
    if own is None or own.key != key or own.deployment != claim.get("deployment", ""):
        raise NotTheJobError(f"Job {claim['namespace']}/{claim['name']} does not belong to this task instance")
    return job
