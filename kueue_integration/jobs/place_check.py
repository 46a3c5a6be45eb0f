"""Whether a cluster has the place and the devices that a TrainSpec asks for, before a job is created.

Kueue would keep such a job in the queue for ever. What the submitter may not read is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import Forbidden, NotFound, PlatformError
from ..kube.api import Kube
from ..kube.resources import DEVICE_CLASS, RESOURCE_CLAIM_TEMPLATE, RESOURCE_FLAVOR, TOPOLOGY, Object
from ..spec import pod_placement
from ..spec.train_spec import TrainSpec

Problem = tuple[str, object, str]


def problems(kube: Kube, spec: TrainSpec, queue: Object | None) -> list[Problem]:
    """What ClusterQueue `queue` (None: not known) and the cluster lack.

    Raises PlatformError (the cluster has no DRA at all), KubeError.
    """
    found = [*_devices(kube, spec)]
    if queue is None or (spec.topology is None and not spec.node_selector):
        return found
    try:
        flavors = {str(f["metadata"]["name"]): f.get("spec") or {} for f in kube.list(RESOURCE_FLAVOR)}
    except Forbidden:
        return found
    return [*found, *_topology(kube, spec, queue, flavors), *_node_selector(spec, queue, flavors)]


def _topology(kube: Kube, spec: TrainSpec, queue: Object, flavors: Mapping[str, Any]) -> Iterator[Problem]:
    if spec.topology is None:
        return
    name = str(queue["metadata"]["name"])
    topologies = {
        str(flavors[flavor]["topologyName"])
        for _, listed in groups(queue)
        for flavor in listed
        if flavors.get(flavor, {}).get("topologyName")
    }
    if not topologies:
        fix = f"no flavor of ClusterQueue {name!r} has a topology (topologyName); leave it out or use another queue"
        yield "topology", spec.topology, fix
        return
    wanted = pod_placement.level(spec.topology)
    if wanted is None:
        return
    try:
        there = {
            str(each.get("nodeLabel"))
            for topology in kube.list(TOPOLOGY)
            if topology["metadata"]["name"] in topologies
            for each in (topology.get("spec") or {}).get("levels") or ()
        }
    except (Forbidden, NotFound):
        return
    if wanted not in there:
        known = ", ".join(sorted(there)) or "none"
        fix = f"is not a level of the topologies of ClusterQueue {name!r}; they have: {known}"
        yield "topology", spec.topology, fix


def _node_selector(spec: TrainSpec, queue: Object, flavors: Mapping[str, Any]) -> Iterator[Problem]:
    """Kueue compares the selector with the flavors' labels, for those keys that any flavor of the group has."""
    for covered, listed in groups(queue):
        labels = [flavors.get(flavor, {}).get("nodeLabels") or {} for flavor in listed]
        keys = {key for each in labels for key in each}
        wanted = {key: value for key, value in spec.node_selector.items() if key in keys}
        if not wanted or not covered & set(spec.resources):
            continue
        if not any(wanted.items() <= each.items() for each in labels):
            have = "; ".join(f"{n}: {dict(each)}" for n, each in zip(listed, labels, strict=True))
            fix = f"no flavor of ClusterQueue {queue['metadata']['name']!r} has these labels; they have {have}"
            yield "node_selector", wanted, fix


def groups(queue: Object) -> Iterator[tuple[set[str], list[str]]]:
    """Covered resources and names of flavors of each resource group."""
    for group in (queue.get("spec") or {}).get("resourceGroups") or ():
        yield set(group.get("coveredResources") or ()), [str(f["name"]) for f in group.get("flavors") or ()]


def _devices(kube: Kube, spec: TrainSpec) -> Iterator[Problem]:
    if not spec.resource_claims:
        return
    try:
        classes: set[str] | None = {str(c["metadata"]["name"]) for c in kube.list(DEVICE_CLASS)}
    except Forbidden:
        classes = None
    except NotFound:
        raise PlatformError(
            f"resource_claims need {DEVICE_CLASS.api_version}, which this cluster does not serve: upgrade it to "
            "Kubernetes 1.34 or later, or ask for devices in resources"
        ) from None
    for number, claim in enumerate(spec.resource_claims):
        wanted, template = claim.get("device_class"), claim.get("template")
        if wanted is not None and classes is not None and wanted not in classes:
            known = f"use one of: {', '.join(sorted(classes))}" if classes else "it has none; install a DRA driver"
            where = f"resource_claims[{number}].device_class"
            yield where, wanted, f"is not a DeviceClass of this cluster; {known}"
        if template is not None and not _there(kube, spec.namespace, str(template)):
            where = f"resource_claims[{number}].template"
            yield where, template, f"is not a ResourceClaimTemplate of namespace {spec.namespace!r}; create it first"


def _there(kube: Kube, namespace: str, template: str) -> bool:
    try:
        return kube.find(RESOURCE_CLAIM_TEMPLATE, namespace, template) is not None
    except Forbidden:
        return True
