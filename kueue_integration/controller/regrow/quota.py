"""Arithmetic on Kueue's quotas: what a ClusterQueue has, what Workloads use of it, what would fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ...kube import quantities
from ...kube.resources import Object

Amounts = dict[tuple[str, str], Fraction]
"""(flavor, resource) -> amount."""
NONE = Fraction(0)


@dataclass(frozen=True)
class Queues:
    """The quota around one ClusterQueue: the queue itself, its cohort's queues, and the Workloads that hold quota in
    them."""

    queue: Object
    cohort: Sequence[Object]
    """All ClusterQueues of the cohort, this one included."""
    reserved: Sequence[Object]
    """Workloads that hold quota in these queues."""
    pending: Sequence[Object]
    """Active Workloads that wait for quota in these queues."""


@dataclass(frozen=True)
class Group:
    """A resource group: `flavors` in order of preference."""

    covered: Sequence[str]
    flavors: Sequence[str]
    nominal: Amounts


def groups(queue: Object) -> list[Group]:
    found = []
    for group in (queue.get("spec") or {}).get("resourceGroups") or ():
        flavors = group.get("flavors") or ()
        nominal = {
            (str(flavor["name"]), str(resource["name"])): quantities.parse(resource["nominalQuota"])
            for flavor in flavors
            for resource in flavor.get("resources") or ()
        }
        found.append(Group(list(group.get("coveredResources") or ()), [str(f["name"]) for f in flavors], nominal))
    return found


def nominal(queue: Object) -> Amounts:
    return {key: amount for group in groups(queue) for key, amount in group.nominal.items()}


def usage(workload: Object) -> Amounts:
    """What the Workload's reservation takes."""
    used: Amounts = {}
    for item in ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ():
        flavors = item.get("flavors") or {}
        for resource, amount in (item.get("resourceUsage") or {}).items():
            key = (str(flavors.get(resource, "")), str(resource))
            used[key] = used.get(key, NONE) + quantities.parse(amount)
    return used


def reported(queue: Object) -> Amounts:
    """The reservations that Kueue itself reports; it may know a Workload that we have not seen yet."""
    status = queue.get("status") or {}
    return {
        (str(flavor["name"]), str(resource["name"])): quantities.parse(resource.get("total", 0))
        for flavor in status.get("flavorsReservation") or status.get("flavorsUsage") or ()
        for resource in flavor.get("resources") or ()
    }


def free(queues: Queues) -> Amounts:
    """Free nominal quota of the queue, limited by the free quota of its cohort. The planner never counts on borrowed
    quota."""
    name = queues.queue["metadata"]["name"]
    in_queue: Amounts = {}
    in_cohort: Amounts = {}
    total: Amounts = {}
    for workload in queues.reserved:
        for key, amount in usage(workload).items():
            in_cohort[key] = in_cohort.get(key, NONE) + amount
            if workload["status"]["admission"].get("clusterQueue") == name:
                in_queue[key] = in_queue.get(key, NONE) + amount
    for queue in queues.cohort:
        for key, amount in nominal(queue).items():
            total[key] = total.get(key, NONE) + amount
    told = reported(queues.queue)
    return {
        key: min(
            amount - max(in_queue.get(key, NONE), told.get(key, NONE)),
            total.get(key, amount) - in_cohort.get(key, NONE),
        )
        for key, amount in nominal(queues.queue).items()
    }


def requests(workload: Object) -> dict[str, Fraction]:
    """What a pending Workload asks for at least (partial admission counted), over all its podsets."""
    total: dict[str, Fraction] = {}
    for podset in (workload.get("spec") or {}).get("podSets") or ():
        count = int(podset.get("minCount") or podset.get("count") or 1)
        spec = (podset.get("template") or {}).get("spec") or {}
        sidecars = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
        for container in [*(spec.get("containers") or ()), *sidecars]:
            for resource, amount in ((container.get("resources") or {}).get("requests") or {}).items():
                total[resource] = total.get(resource, NONE) + quantities.parse(amount) * count
    return total


def fits(wanted: Mapping[str, Fraction], queue: Object, room: Mapping[tuple[str, str], Fraction]) -> bool:
    """Whether `wanted` fits into one flavor of each resource group."""
    return all(
        any(
            all(wanted[r] <= room.get((flavor, r), NONE) for r in group.covered if r in wanted)
            for flavor in group.flavors
        )
        for group in groups(queue)
    )
