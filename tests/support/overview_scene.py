"""Queues, Workloads and training jobs for the tests of the overview, as Kueue and our controller leave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.controller.planning.report import event, sentence
from kueue_integration.kube import server_time
from kueue_integration.kube.resources import KUEUE_JOB_UID_LABEL, Object
from kueue_integration.planner.arbiter import Ruling
from kueue_integration.planner.proposals import Action, Proposal
from singularity_proxy.protocol.messages import to_json

KUEUE = "kueue.x-k8s.io/v1beta2"
NOW = 10_000.0
Quota = Mapping[tuple[str, str], str]
"""(flavor, resource) -> quantity."""


def _groups(quota: Quota, limits: Mapping[str, str] | None) -> list[Object]:
    flavors: dict[str, list[Object]] = {}
    for (flavor, resource), amount in quota.items():
        flavors.setdefault(flavor, []).append({"name": resource, "nominalQuota": amount, **(limits or {})})
    covered = sorted({resource for _, resource in quota})
    return [{"coveredResources": covered, "flavors": [{"name": f, "resources": r} for f, r in flavors.items()]}]


def cluster_queue(
    name: str,
    quota: Quota,
    cohort: str = "",
    reserved: Quota | None = None,
    limits: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    told: dict[str, list[Object]] = {}
    for (flavor, resource), amount in (reserved or {}).items():
        told.setdefault(flavor, []).append({"name": resource, "total": amount})
    own = {"cohortName": cohort} if cohort else {}
    return {
        "apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name},
        "spec": {"resourceGroups": _groups(quota, limits), **own, **spec},
        "status": {"flavorsReservation": [{"name": f, "resources": r} for f, r in told.items()]},
    }  # fmt: skip


def cohort(name: str, quota: Quota | None = None, parent: str = "") -> Object:
    spec: Object = {"resourceGroups": _groups(quota, None)} if quota else {}
    spec |= {"parentName": parent} if parent else {}
    return {"apiVersion": KUEUE, "kind": "Cohort", "metadata": {"name": name}, "spec": spec}


def local_queue(name: str, target: str, namespace: str = "default") -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": meta, "spec": {"clusterQueue": target}}


def workload(
    owner: str,
    *,
    queue: str = "training",
    holds: tuple[str, Quota] | None = None,
    pods: int = 1,
    cpu: str = "1",
    namespace: str = "default",
    priority: int = 10,
    since: float = NOW - 60,
    why: tuple[str, str] = ("Pending", ""),
    kind: str = "Job",
    **more: Any,
) -> Object:
    """`holds`: (ClusterQueue, what it takes of it); without it it waits, for the reason and message of `why`."""
    reason, message = ("QuotaReserved", "") if holds else why
    stamp = server_time.to_whole(since)
    reserved = {"type": "QuotaReserved", "status": "True" if holds else "False", "reason": reason, "message": message,
                "lastTransitionTime": stamp}  # fmt: skip
    status: Object = {"conditions": [reserved]}
    if holds:
        flavors = {resource: flavor for flavor, resource in holds[1]}
        usage = {resource: amount for (_, resource), amount in holds[1].items()}
        item = {"name": "main", "count": pods, "flavors": flavors, "resourceUsage": usage}
        status["admission"] = {"clusterQueue": holds[0], "podSetAssignments": [item]}
        status["conditions"].append({"type": "Admitted", "status": "True", "reason": "Admitted"})
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
    meta: Object = {
        "name": f"job-{owner}", "namespace": namespace, "creationTimestamp": stamp,
        "labels": {KUEUE_JOB_UID_LABEL: f"uid-{owner}"},
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True},
        ],
    }  # fmt: skip
    spec = {"queueName": queue, "priority": priority, "active": True,
            "podSets": [{"name": "main", "count": pods, "template": template}]}  # fmt: skip
    return {"apiVersion": KUEUE, "kind": "Workload", "metadata": meta, "spec": {**spec, **more.pop("spec", {})},
            "status": {**status, **more}}  # fmt: skip


def training(
    name: str,
    history: Sequence[AttemptRecord] = (),
    *,
    queue: str = "training",
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    suspend: bool = False,
    conditions: Sequence[Mapping[str, str]] = (),
) -> Object:
    """A managed Job with these records."""
    notes = {job_names.ANN_HISTORY: to_json(list(history))} if history else {}
    labels = {job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: queue}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {**meta, "annotations": {**notes, **(annotations or {})}},
        "spec": {"suspend": suspend, "parallelism": 1}, "status": {"conditions": list(conditions), "ready": 1},
    }  # fmt: skip


def record(number: int = 1, **changes: Any) -> AttemptRecord:
    """An attempt of one pod on ondemand."""
    values: dict[str, Any] = {
        "attempt": number, "reservation": f"r{number}", "flavor": "ondemand", "pods": 1, "ranks": 1,
        "admitted_at": 1000.0 * number,
    }  # fmt: skip
    return AttemptRecord(**{**values, **changes})


def planner_event(
    name: str,
    at: float,
    why: str,
    *,
    action: Action = "pause",
    policy: str = "timeSharing",
    reason: str = job_names.EVENT_PLANNER_DONE,
    namespace: str = "default",
) -> Object:
    """The Event of a policy that has done something to this job, or with another `reason` would have."""
    ruling = Ruling(Proposal(action, (namespace, name), why, 0.0, policy), True, "costs about 9 device-seconds")
    about = {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}, "kind": "Job"}
    return event(ruling, about, reason, sentence(ruling, ruling.why), at)
