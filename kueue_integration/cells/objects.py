"""Kueue's objects for a binding: Topology, ResourceFlavors, Cohort, ClusterQueues, LocalQueues; labels of nodes. Pure.

Each tenant has a flavor of its own, which is its cells, and a ClusterQueue with all of their quota. The other flavors
are in the queue with no quota: it may borrow them while they are idle. Three fields make the promise:

- `flavorFungibility.whenCanPreempt: MayStopSearch`: a job within its quota takes its own cells first. It sends
  borrowers away, instead of looking elsewhere.
- `preemption.reclaimWithinCohort: Any`: whoever has borrowed gives way, whatever its priority.
- a topology in each flavor: Kueue gives a job all of one domain of its tenant's cells, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ..contract import job_names
from ..kube import quantities
from ..kube.resources import (
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NODE,
    RESOURCE_FLAVOR,
    TOPOLOGY,
    Kind,
    Object,
)
from .binding import LABEL, SPARE, Binding, owner
from .description import Description, Tenant

Amounts = Mapping[str, Fraction]
"""resource -> amount."""


def manifests(said: Description, binding: Binding, capacity: Mapping[str, Amounts]) -> list[Object]:
    """In an order in which they can be created. `capacity`: what each node can give to pods of jobs.

    The Nodes have their name and one label only: apply them, do not create them.
    """
    quota = {who: _sum(said, names, capacity) for who, names in binding.nodes.items()}
    spare = said.lend and bool(binding.nodes[SPARE])
    flavors = [tenant.name for tenant in said.tenants] + ([SPARE] if spare else [])
    made = [_node(name, owner(said, who)) for who in flavors for name in binding.nodes[who]]
    made.append(_object(TOPOLOGY, said.name, {"levels": [{"nodeLabel": label} for label in said.labels]}))
    made += [_flavor(said, owner(said, who)) for who in flavors]
    if said.lend:
        groups = [_group(said, [(SPARE, quota[SPARE])])] if spare else []
        made.append(_object(COHORT, said.name, {"resourceGroups": groups} if groups else {}))
    for tenant in said.tenants:
        made.append(_queue(said, tenant, quota, flavors))
        made += [
            _object(LOCAL_QUEUE, tenant.name, {"clusterQueue": owner(said, tenant.name)}, namespace)
            for namespace in tenant.namespaces
        ]
    return made


def _sum(said: Description, names: Sequence[str], capacity: Mapping[str, Amounts]) -> dict[str, Fraction]:
    return {r: sum((capacity[name].get(r, Fraction(0)) for name in names), Fraction(0)) for r in said.resources}


def _object(kind: Kind, name: str, spec: Mapping[str, Any], namespace: str = "") -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": dict(spec)}


def _node(name: str, mark: str) -> Object:
    return {"apiVersion": NODE.api_version, "kind": NODE.name, "metadata": {"name": name, "labels": {LABEL: mark}}}


def _flavor(said: Description, name: str) -> Object:
    return _object(RESOURCE_FLAVOR, name, {"nodeLabels": {LABEL: name}, "topologyName": said.name})


def _group(said: Description, quota: Sequence[tuple[str, Amounts]]) -> Object:
    """A resource group: flavors in the order in which Kueue tries them."""
    flavors = [
        {
            "name": owner(said, who),
            "resources": [{"name": r, "nominalQuota": quantities.text(amounts[r])} for r in said.resources],
        }
        for who, amounts in quota
    ]
    return {"coveredResources": list(said.resources), "flavors": flavors}


def _queue(said: Description, tenant: Tenant, quota: Mapping[str, Amounts], flavors: Sequence[str]) -> Object:
    nothing = dict.fromkeys(said.resources, Fraction(0))
    own = [(tenant.name, quota[tenant.name])]
    # Cells of nobody before those of others: who borrows these is sent away.
    others = [(who, nothing) for who in sorted(flavors, key=lambda who: who != SPARE) if who != tenant.name]
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": tenant.namespaces}
    spec: dict[str, Any] = {
        "namespaceSelector": {"matchExpressions": [chosen]} if tenant.namespaces else {},
        "admissionChecksStrategy": {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]},
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"},
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        "resourceGroups": [_group(said, [*own, *(others if said.lend else [])])],
    }
    if said.lend:
        spec["cohortName"] = said.name
    return _object(CLUSTER_QUEUE, owner(said, tenant.name), spec)
