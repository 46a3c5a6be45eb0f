"""From a task instance to its Job in the cluster, for the buttons and the live status. Blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from kueue_integration.kube.api import Kube
from kueue_integration.kube.resources import JOB, Object

from ..exceptions import SingularityProviderError
from ..identity import Claim, TaskKey
from . import connection

MAX_CONNECTIONS = 32


class NotTheJobError(SingularityProviderError):
    """The Job is gone, or it is not the one of this task instance."""


class Clients(Protocol):
    """Who has a client for each connection: `Clusters`."""

    def kube(self, conn_id: str) -> Kube: ...

    def forget(self, conn_id: str) -> None: ...


class Clusters:
    """One client per connection for the life of the api-server."""

    def __init__(self, connect: Callable[[str], tuple[Kube, str]] = connection.connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._known: dict[str, Kube] = {}

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


clusters = Clusters()
"""Of this process."""


def find(kube: Kube, key: TaskKey, claim: Mapping[str, object]) -> Object:
    """The Job of `claim`. Raises NotTheJobError, KubeError."""
    return checked(kube.find(JOB, str(claim["namespace"]), str(claim["name"])), key, claim)


def checked(job: Object | None, key: TaskKey, claim: Mapping[str, object]) -> Object:
    """`job`, if it is the one of `claim`. Raises NotTheJobError.

    The Job's own record of its owner is checked, not only what Airflow has stored about it. Otherwise, whoever may
    write the task's state could point a button at somebody else's Job.
    """
    if job is None or job["metadata"]["uid"] != claim["uid"]:
        raise NotTheJobError(f"Job {claim['namespace']}/{claim['name']} does not exist any more")
    own = Claim.of_job(job)
    if own is None or own.key != key or own.deployment != claim.get("deployment", ""):
        raise NotTheJobError(f"Job {claim['namespace']}/{claim['name']} does not belong to this task instance")
    return job
