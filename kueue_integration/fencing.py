"""The fence of a ClusterQueue: our AdmissionCheck added to its checks, or taken away, and all else of it left alone.

A merge patch writes the whole list of checks, those of others, too. So the list is read, changed and written back on
condition that nobody has changed the queue meanwhile. Who applies a list without our check leaves ours in it.

`python -m kueue_integration.fencing` exits 1 while a queue is fenced: the chart asks before it is uninstalled.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .contract import job_names, kinds
from .errors import NotFound
from .kube import conflicts
from .kube.api import Kube
from .kube.credentials import connect
from .kube.resources import CLUSTER_QUEUE, LOCAL_QUEUE, admission_checks, finished, label

TRIES = 5
Checks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """What becomes of the checks of the ClusterQueue `name`; `after` is `before` if there is nothing to do."""

    name: str
    before: Checks
    after: Checks


def fenced(checks: Checks) -> Checks:
    """Return `checks` with ours for all flavors, at its place if it is there, else last. Pure."""
    ours = {"name": job_names.ADMISSION_CHECK_NAME}
    kept = [ours if _is_ours(item) else item for item in checks]
    return kept if ours in kept else [*kept, ours]


def unfenced(checks: Checks) -> Checks:
    """Return `checks` without ours. Pure."""
    return [item for item in checks if not _is_ours(item)]


def is_fenced(queue: Mapping[str, Any]) -> bool:
    """Return whether a ClusterQueue has our check. Pure."""
    return any(map(_is_ours, admission_checks(queue)))


def change(kube: Kube, name: str, fence: bool, dry_run: bool = False) -> Change:
    """Fence or unfence the ClusterQueue `name`. Raises NotFound, Conflict (others write all the time), KubeError."""

    def attempt() -> Change:
        queue = kube.get(CLUSTER_QUEUE, None, name)
        before = admission_checks(queue)
        after = fenced(before) if fence else unfenced(before)
        if not dry_run and after != before:
            body = {"spec": {"admissionChecksStrategy": {"admissionChecks": after} if after else None}}
            kube.patch(CLUSTER_QUEUE, None, name, body, queue["metadata"]["resourceVersion"])
        return Change(name, before, after)

    return conflicts.outlasted(TRIES, attempt)


def fenced_queues(kube: Kube) -> list[str]:
    """Return the names of all ClusterQueues that have our check."""
    return [str(q["metadata"]["name"]) for q in kube.list(CLUSTER_QUEUE) if is_fenced(q)]


def jobs_of(kube: Kube, queues: Collection[str]) -> dict[str, list[str]]:
    """Return the unfinished managed jobs in these ClusterQueues: queue -> NAMESPACE/NAME. They need the fence."""
    locals_ = {
        (str(q["metadata"]["namespace"]), str(q["metadata"]["name"])): str((q.get("spec") or {}).get("clusterQueue"))
        for q in kube.list(LOCAL_QUEUE)
    }
    found: dict[str, list[str]] = {}
    for job in kinds.list_managed(kube, None):
        namespace = str(job["metadata"]["namespace"])
        queue = locals_.get((namespace, label(job, job_names.KUEUE_QUEUE_LABEL) or ""))
        if queue in queues and finished(job) is None:
            found.setdefault(str(queue), []).append(f"{namespace}/{kinds.job_key(job)}")
    return found


def _is_ours(item: Mapping[str, Any]) -> bool:
    return item.get("name") == job_names.ADMISSION_CHECK_NAME


def still_fenced(kube: Kube) -> str:
    """Return the sentence that keeps the chart from being uninstalled, "" if nothing does. Raises KubeError."""
    try:
        names = fenced_queues(kube)
    except NotFound:  # Kueue is gone already
        return ""
    if not names:
        return ""
    return (
        f"ClusterQueues {', '.join(names)} have admission check {job_names.ADMISSION_CHECK_NAME}: without our"
        " controller Kueue starts no job there, of any kind. First: singularityctl unfence --all"
    )


if __name__ == "__main__":
    sys.exit(still_fenced(connect()) or 0)
