"""Arithmetic on Kueue's quotas: what a ClusterQueue has, what Workloads use of it, what would fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ..kube import devices as accelerators
from ..kube import quantities
from ..kube.resources import Object, condition

Amounts = Mapping[tuple[str, str], Fraction]
"""(flavor, resource) -> amount."""
Room = dict[tuple[str, str], Fraction]
"""The same, made by whoever returns it."""
NONE = Fraction(0)
PODS = "pods"
"""A resource that no pod asks for. Kueue counts pods where a queue covers it."""


@dataclass(frozen=True)
class Group:
    """A resource group: `flavors` in order of preference."""

    covered: Sequence[str]
    flavors: Sequence[str]
    nominal: Amounts
    most_borrowed: Amounts = field(default_factory=dict)
    """borrowingLimit, and lendingLimit; what is not in them has no limit."""
    most_lent: Amounts = field(default_factory=dict)


# --- out of Kueue's objects -----------------------------------------------------------------------------------------
def groups(queue: Object) -> list[Group]:
    """Of a ClusterQueue."""
    found = []
    for group in (queue.get("spec") or {}).get("resourceGroups") or ():
        flavors = group.get("flavors") or ()
        nominal, borrowed, lent = (
            {
                (str(flavor["name"]), str(resource["name"])): quantities.parse(resource[limit])
                for flavor in flavors
                for resource in flavor.get("resources") or ()
                if limit == "nominalQuota" or resource.get(limit) is not None
            }
            for limit in ("nominalQuota", "borrowingLimit", "lendingLimit")
        )
        covered, names = list(group.get("coveredResources") or ()), [str(f["name"]) for f in flavors]
        found.append(Group(covered, names, nominal, borrowed, lent))
    return found


def stopped(queue: Object) -> bool:
    """Whether a ClusterQueue or a LocalQueue admits nobody: by its stopPolicy, or because it is not active."""
    policy = str((queue.get("spec") or {}).get("stopPolicy") or "None")
    return policy != "None" or (condition(queue, "Active") or {}).get("status") == "False"


def usage(workload: Object) -> dict[tuple[str, str], Fraction]:
    """What the Workload's reservation takes, without pods that are done for good (Kueue's reclaimablePods)."""
    status = workload.get("status") or {}
    done = {str(item["name"]): int(item.get("count") or 0) for item in status.get("reclaimablePods") or ()}
    used: dict[tuple[str, str], Fraction] = {}
    for item in (status.get("admission") or {}).get("podSetAssignments") or ():
        count = int(item.get("count") or 0)
        left = Fraction(max(0, count - done.get(str(item.get("name")), 0)), count) if count > 0 else Fraction(1)
        flavors = item.get("flavors") or {}
        for resource, amount in (item.get("resourceUsage") or {}).items():
            key = (str(flavors.get(resource, "")), str(resource))
            used[key] = used.get(key, NONE) + quantities.parse(amount) * left
    return used


def reported(queue: Object) -> dict[tuple[str, str], Fraction]:
    """The reservations that Kueue itself reports; it may know a Workload that we have not seen yet."""
    status = queue.get("status") or {}
    return {
        (str(flavor["name"]), str(resource["name"])): quantities.parse(resource.get("total", 0))
        for flavor in status.get("flavorsReservation") or status.get("flavorsUsage") or ()
        for resource in flavor.get("resources") or ()
    }


def requests(workload: Object) -> dict[str, Fraction]:
    """What a pending Workload asks for at least (partial admission counted), over all its podsets."""
    total: dict[str, Fraction] = {}
    for number, podset in enumerate((workload.get("spec") or {}).get("podSets") or ()):
        for resource, amount in (_with_claims(workload, podset) if not number else of_pod(podset)).items():
            total[resource] = total.get(resource, NONE) + amount * least(podset)
    return total


def pods(workload: Object) -> int:
    """How many pods a pending Workload has at least."""
    return sum(least(podset) for podset in (workload.get("spec") or {}).get("podSets") or ())


def least(podset: Object) -> int:
    """How many of its pods may start alone."""
    return int(podset.get("minCount") or podset.get("count") or 1)


def of_pod(podset: Object) -> dict[str, Fraction]:
    """What one pod of a podset asks for. As in Kubernetes, a limit without a request is a request too."""
    total: dict[str, Fraction] = {}
    spec = (podset.get("template") or {}).get("spec") or {}
    sidecars = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    for container in [*(spec.get("containers") or ()), *sidecars]:
        told = container.get("resources") or {}
        for resource, amount in {**(told.get("limits") or {}), **(told.get("requests") or {})}.items():
            total[resource] = total.get(resource, NONE) + quantities.parse(amount)
    return total


def devices(asks: Mapping[str, Fraction]) -> int:
    """Devices of a pod: a pod without any counts as one."""
    return max(1, accelerators.number(asks))


def devices_of(workload: Object) -> int:
    """`devices` of a pod of the Workload's first pod set; 1 without one.

    Devices that a pod claims (DRA) are in no pod: Kueue writes into the Workload what they count as.
    """
    return devices(_with_claims(workload, next(iter((workload.get("spec") or {}).get("podSets") or ()), {})))


def _with_claims(workload: Object, podset: Object) -> dict[str, Fraction]:
    """What a pod of the Workload's first pod set asks for, with what it claims."""
    asks = of_pod(podset)
    if ((podset.get("template") or {}).get("spec") or {}).get("resourceClaims"):
        asks |= {r: amount for r, amount in _claimed(workload, podset).items() if r not in asks and r != PODS}
    return asks


def _claimed(workload: Object, podset: Object) -> dict[str, Fraction]:
    """All that a pod asks for by Kueue's account: of its admission, else of its last try."""
    status = workload.get("status") or {}
    given = (status.get("admission") or {}).get("podSetAssignments") or [{}]
    tried = status.get("resourceRequests") or [{}]
    told = given[0].get("resourceUsage") or tried[0].get("resources") or {}
    pods = int(given[0].get("count") or podset.get("count") or 0)
    return {str(r): quantities.parse(amount) / max(1, pods) for r, amount in told.items()}


# --- with amounts ---------------------------------------------------------------------------------------------------
def added(parts: Iterable[Amounts]) -> dict[tuple[str, str], Fraction]:
    """The sum of all `parts`."""
    total: dict[tuple[str, str], Fraction] = {}
    for part in parts:
        for key, amount in part.items():
            total[key] = total[key] + amount if key in total else amount
    return total


def fits(wanted: Mapping[str, Fraction], groups: Sequence[Group], room: Mapping[tuple[str, str], Fraction]) -> bool:
    """Whether `wanted` fits into one flavor of each resource group."""
    return all(
        any(
            all(wanted[r] <= room.get((flavor, r), NONE) for r in group.covered if r in wanted)
            for flavor in group.flavors
        )
        for group in groups
    )
