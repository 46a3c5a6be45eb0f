"""A simulated workload as objects of a real Kueue, and what its player does when Kueue acts. Pure.

One Workload without a Job stands for each job, and one CPU for each device. The player is the owner of the Workloads.
It trains, saves and leaves in compressed time, as the simulator does. So the two differ in Kueue only. Topology is left
out: fake nodes have no speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from kueue_integration.kube.resources import KUEUE_GROUP, KUEUE_VERSION, Object, is_true

from .active import Active, State
from .measures import percentile
from .model import Cluster, Costs, Job

API = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
RESOURCE = "cpu"


def cluster_objects(cluster: Cluster, namespace: str) -> list[Object]:
    """Namespace, ResourceFlavors, and a ClusterQueue and a LocalQueue for each tenant in one cohort."""
    made: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    for flavor in cluster.flavors:
        made.append({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": flavor.name}, "spec": {}})
    for tenant in range(len(cluster.shares)):
        name = queue_name(namespace, tenant)
        local = {"name": name, "namespace": namespace}
        spec = queue_spec(cluster, tenant, namespace, RESOURCE)
        made.append({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec})
        made.append({"apiVersion": API, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": name}})
    return made


def queue_name(namespace: str, tenant: int) -> str:
    return f"{namespace}-{tenant}"


def queue_spec(cluster: Cluster, tenant: int, cohort: str, device: str) -> dict[str, Any]:
    """Of a tenant's ClusterQueue; `device` is the resource that stands for one."""
    flavors = []
    for flavor in cluster.flavors:
        nominal = cluster.nominal(flavor)[tenant]
        limit = int(cluster.borrow * (flavor.devices - nominal))
        resource = {"name": device, "nominalQuota": str(nominal), "borrowingLimit": str(limit)}
        flavors.append({"name": flavor.name, "resources": [resource]})
    return {
        "namespaceSelector": {},
        "cohortName": cohort,
        "queueingStrategy": "StrictFIFO" if cluster.strict else "BestEffortFIFO",
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        "resourceGroups": [{"coveredResources": [device], "flavors": flavors}],
    }


def workload(job: Job, namespace: str, classes: bool) -> Object:
    """A Workload of `job.workers` pods, or as few as `job.least` where it is elastic."""
    container = {"name": "main", "image": "none", "resources": {"requests": {RESOURCE: "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    podset: dict[str, Any] = {"name": "main", "count": job.workers, "template": template}
    if job.least < job.workers:
        podset["minCount"] = job.least
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": f"job-{job.id}", "namespace": namespace},
        "spec": {
            "active": True,
            "queueName": queue_name(namespace, job.tenant),
            "priority": job.tier.priority if classes else 0,
            "podSets": [podset],
        },
    }


def job_of(name: str) -> int:
    """:raises ValueError: not a name that `workload` gives"""
    return int(name.removeprefix("job-"))


@dataclass(frozen=True)
class Due:
    """:param after_s: seconds of the simulation from now until it is to be done
    :param body: merge patch of the Workload's status
    """

    after_s: float
    body: Object


def look(active: Active, seen: Object, now: float, costs: Costs) -> Sequence[Due]:
    """What is to be written because of a Workload's new state; enters it in the book of the job."""
    if active.holds and is_true(seen, "Evicted") and active.state is not State.LEAVING:
        trained = active.state is State.RUNNING and now >= active.run_since
        # It comes until `run_since`; only what lies behind that was training.
        active.since = min(max(active.since, active.run_since), now)
        active.account(now, 0.0)
        if trained:
            active.lose(now, costs)
        active.preempted += 1
        active.state = State.LEAVING
        return [Due(costs.leaving(active.job, active.devices) if trained else costs.evict_s, _left(seen))]
    if active.state is State.WAITING and is_true(seen, "Admitted") and not is_true(seen, "Evicted"):
        (assigned,) = seen["status"]["admission"]["podSetAssignments"]
        active.devices, active.flavor = int(assigned["count"]), str(assigned["flavors"][RESOURCE])
        active.first_admitted = now if active.first_admitted is None else active.first_admitted
        active.attempts += 1
        active.state, active.began_s = State.RUNNING, active.done_s
        active.run_since = active.since = now + costs.coming(active.job, active.devices, active.done_s == 0)
        active.rate = active.job.rate(active.devices, active.flavor, True) * costs.slowdown(active.job)
        ends = active.run_since - now + active.left_s / active.rate
        return [
            Due(0.0, _with(seen, "PodsReady", "True", "Started")),
            Due(ends, _with(seen, "Finished", "True", "JobFinished")),
        ]
    return ()


def left(active: Active) -> None:
    """Its quota was given back."""
    active.state, active.devices = State.WAITING, 0


def _left(seen: Object) -> Object:
    """What the owner of an evicted Workload writes when its last pod is gone."""
    body = _with(seen, "QuotaReserved", "False", "Pending")
    for name, status, reason in (("Admitted", "False", "NoReservation"), ("Requeued", "True", "Preempted")):
        body = _with({"status": body["status"]}, name, status, reason)
    return {"status": {**body["status"], "admission": None}}


def _with(seen: Object, name: str, status: str, reason: str) -> Object:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    others = [one for one in seen["status"].get("conditions") or () if one["type"] != name]
    made = {"type": name, "status": status, "reason": reason, "message": "replay", "lastTransitionTime": now}
    return {"status": {"conditions": [*others, made]}}


@dataclass(frozen=True)
class Agreement:
    """Kueue's figure over the simulator's, less 1; and the evictions of both."""

    completion_mean: float
    completion_median: float
    completion_p95: float
    makespan: float
    job_median: float
    evictions: tuple[int, int]


def agreement(real: Sequence[Active], simulated: Sequence[Active]) -> Agreement:
    """:raises ValueError: not the same jobs, or one is not done"""
    pairs = list(zip(real, simulated, strict=True))
    if not pairs or any(a.job.id != b.job.id or a.finished_at is None or b.finished_at is None for a, b in pairs):
        raise ValueError("agreement: give the same jobs of both, all of them done")
    ours, theirs = ([(one.finished_at or 0.0) - one.job.arrival_s for one in side] for side in (simulated, real))
    end, start = max(b.finished_at or 0.0 for _, b in pairs), min(job.job.arrival_s for job in simulated)
    return Agreement(
        completion_mean=sum(theirs) / sum(ours) - 1,
        completion_median=percentile(theirs, 0.5) / percentile(ours, 0.5) - 1,
        completion_p95=percentile(theirs, 0.95) / percentile(ours, 0.95) - 1,
        makespan=(max(a.finished_at or 0.0 for a, _ in pairs) - start) / (end - start) - 1,
        job_median=percentile([abs(b / a - 1) for a, b in zip(ours, theirs, strict=True)], 0.5),
        evictions=(sum(one.preempted for one in real), sum(one.preempted for one in simulated)),
    )
