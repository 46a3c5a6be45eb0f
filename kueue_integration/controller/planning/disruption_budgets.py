"""A PodDisruptionBudget for each job that would leave a node that goes: who empties the node waits for its checkpoint.

`kubectl drain` and the upgrades of managed clusters cordon a node, and then ask the Eviction API for its pods. The API
refuses them while a budget says so, and is asked again. Meanwhile the policy cordon has the job saved and moved, and
what ends its pods then is its suspend, which no budget delays. A job that cannot be moved has no budget, for it would
keep a drain waiting for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...contract import job_names, kinds
from ...errors import AlreadyExists, Forbidden, KubeError, NotFound
from ...job.unreadable import UnreadableAnnotation
from ...kube.client import Kube
from ...kube.resources import DISRUPTION_BUDGET, Object, label, selector
from ...planner.job import Job, JobKey
from ...planner.policies import cordon
from ...requests import placement
from ..narrow import listed
from .look import Seen
from .report import Report

Place = tuple[str, str]
"""Namespace and name of a budget."""


class DisruptionBudgets:
    """Not thread-safe. Whoever changes a budget of ours by hand has it so until the controller starts again."""

    def __init__(self, kube: Kube, report: Report, namespaces: Sequence[str] = ()) -> None:
        self._kube, self._report, self._namespaces = kube, report, namespaces
        self._stand: dict[Place, int] | None = None
        """The pods that each of our budgets keeps; None: not looked at yet."""
        self._left_out: dict[JobKey, tuple[str, int]] = {}
        """Jobs that have none, with UID and attempt of when that was found."""

    def keep(self, seen: Seen) -> None:
        """Have a budget for each job that would leave its node, and none for others. An error stops nothing else."""
        snapshot, wanted, stay = seen.snapshot, dict[Place, tuple[Job, int]](), set[Place]()
        for key, job in snapshot.jobs.items():
            if self._left_out.get(key) == (job.uid, job.attempt) or not cordon.would_leave(snapshot, job):
                continue
            place = (key[0], name_of(job))
            stay.add(place)
            if job.trains and job.given is not None:
                wanted[place] = (job, job.given.count)
        self._left_out = {key: of for key, of in self._left_out.items() if key in snapshot.jobs}
        self._carry_out(wanted, stay, snapshot.now)

    def withdraw(self, now: float) -> None:
        """Have none. Nothing is asked of the API server once that is so."""
        if self._stand != {}:
            self._carry_out({}, set(), now)

    def leave_out(self, job: Job) -> None:
        """Have none for this attempt of the job: it could not be asked to leave."""
        self._left_out[job.key] = (job.uid, job.attempt)

    def _carry_out(self, wanted: Mapping[Place, tuple[Job, int]], stay: set[Place], now: float) -> None:
        try:
            if self._stand is None:
                ours = selector(job_names.MADE_BY_CONTROLLER)
                found = listed(self._kube, DISRUPTION_BUDGET, self._namespaces, ours)
                self._stand = {_place(each): int(each["spec"].get("minAvailable") or 0) for each in found}
            for place in self._stand.keys() - stay:
                self._delete(place)
                del self._stand[place]
            for place, (job, pods) in wanted.items():
                if self._stand.get(place) != pods and self._write(place, job, pods):
                    self._stand[place] = pods
        except (KubeError, ValueError, LookupError, TypeError) as error:
            if isinstance(error, Forbidden) and not wanted:
                self._stand = {}  # by the role of a chart that has never made one
                return
            self._report.trouble(cordon.NAME, f"cannot keep disruption budgets: {error}", None, now)

    def _delete(self, place: Place) -> None:
        with contextlib.suppress(NotFound):  # the job was deleted, and its budget with it
            self._kube.delete(DISRUPTION_BUDGET, *place)

    def _write(self, place: Place, job: Job, pods: int) -> bool:
        """False: the job gets none."""
        raw = kinds.find(self._kube, *job.key)
        if raw is None or raw["metadata"]["uid"] != job.uid:
            return False
        if not movable(raw) or any(covers(each, pod_labels(raw)) for each in self._others(place[0])):
            self.leave_out(job)
            return False
        try:
            self._kube.create(budget(raw, place[1], pods))
        except AlreadyExists:
            self._kube.patch(DISRUPTION_BUDGET, *place, {"spec": {"minAvailable": pods}})
        return True

    def _others(self, namespace: str) -> list[Object]:
        """Budgets that are not ours. The Eviction API refuses a pod that two of them cover, with an error."""
        ours = set(job_names.MADE_BY_CONTROLLER.items())
        found = self._kube.list(DISRUPTION_BUDGET, namespace)
        return [each for each in found if not ours <= set((each["metadata"].get("labels") or {}).items())]


def name_of(job: Job) -> str:
    """By the job's UID: one that is made again under the same name has another budget."""
    return f"{job.key[1][:200]}-{job.uid[:8]}"


def _place(obj: Object) -> Place:
    return str(obj["metadata"]["namespace"]), str(obj["metadata"]["name"])


def budget(job: Object, name: str, pods: int) -> Object:
    """Return the budget that lets nobody evict one of `pods` healthy pods of the job; it goes with the job. Pure.

    A percentage or `maxUnavailable` would need a scale, which a Job does not have.
    """
    meta, key = job["metadata"], kinds.job_key(job)
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": meta["name"], "uid": meta["uid"]}
    labels = {**job_names.MADE_BY_CONTROLLER, job_names.LABEL_JOB: key}
    return {
        "apiVersion": DISRUPTION_BUDGET.api_version,
        "kind": DISRUPTION_BUDGET.name,
        "metadata": {
            "namespace": meta["namespace"], "name": name, "labels": labels, "ownerReferences": [owner],
        },
        "spec": {
            "minAvailable": pods, "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": kinds.pod_labels(key)},
        },
    }  # fmt: skip


def movable(job: Object) -> bool:
    """Return whether a request to leave a node would be taken up, as far as the job itself tells. Pure."""
    stands = placement.of(job)
    fits = not isinstance(stands, UnreadableAnnotation) and not placement.own_affinity(job)
    return fits and kinds.is_job(job) and label(job, job_names.MULTIKUEUE_ORIGIN_LABEL) is None


def pod_labels(job: Object) -> dict[str, str]:
    """Return the labels of the pods of a Job. Pure."""
    template = job["spec"].get("template") or {}
    return {**((template.get("metadata") or {}).get("labels") or {}), **kinds.pod_labels(kinds.job_key(job))}


def covers(other: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a budget is for pods with these labels; expressions that it has count as fulfilled. Pure."""
    selected = (other.get("spec") or {}).get("selector")
    wanted: Mapping[str, str] = (selected or {}).get("matchLabels") or {}
    return selected is not None and wanted.items() <= labels.items()
