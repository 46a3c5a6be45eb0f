"""Topologies of the namespace's queues, and whether Kueue counts the devices of each DeviceClass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import Forbidden, NotFound
from ..kube.api import Kube
from ..kube.resources import CLUSTER_QUEUE, DEVICE_CLASS, LOCAL_QUEUE, RESOURCE_FLAVOR, TOPOLOGY, Object
from ..requests.placement import flavor_names
from . import gates
from .check import FAIL, OK, WARN, Check, listing


def topologies(kube: Kube, namespace: str) -> Iterator[Check]:
    """What jobs with `topology` meet in each ClusterQueue of the namespace. Nothing where no flavor has a topology."""
    targets = {str((q.get("spec") or {}).get("clusterQueue", "")) for q in kube.list(LOCAL_QUEUE, namespace)}
    flavors = {str(f["metadata"]["name"]): f.get("spec") or {} for f in kube.list(RESOURCE_FLAVOR)}
    if not any(spec.get("topologyName") for spec in flavors.values()):
        return
    levels = {str(t["metadata"]["name"]): _levels(t) for t in kube.list(TOPOLOGY)}
    for target in sorted(targets):
        queue = kube.find(CLUSTER_QUEUE, None, target)
        if queue is not None:
            yield from _queue(target, flavor_names(queue), flavors, levels)


def _queue(
    target: str, names: list[str], flavors: Mapping[str, Any], levels: Mapping[str, list[str]]
) -> Iterator[Check]:
    name = f"topology {target}"
    has = {flavor: str(topology) for flavor in names if (topology := flavors.get(flavor, {}).get("topologyName"))}
    if not has:
        return
    for flavor, topology in has.items():
        if topology not in levels:
            text = f"flavor {flavor} names topology {topology}, which does not exist: its ClusterQueue is not active"
            yield Check(name, FAIL, text, f"Create the Topology, see `kubectl explain topologies.spec` ({topology}).")
    without = [flavor for flavor in names if flavor not in has]
    if without:
        text = (
            f"flavor {listing(without)} has no topology, {listing(has)} has: jobs with `topology` never get the former,"
            " jobs without never the latter"
        )
        fix = "Give all flavors of the queue a topologyName, or say so to those who submit."
        yield Check(name, WARN, text, fix)
        return
    known = sorted({level for topology in has.values() for level in levels.get(topology, ())})
    yield Check(name, OK, f"all flavors have one; levels {listing(known, 5)}")


def _levels(topology: Object) -> list[str]:
    return [str(level.get("nodeLabel")) for level in (topology.get("spec") or {}).get("levels") or ()]


def device_classes(kube: Kube) -> Iterator[Check]:
    """Kueue admits no job with a claim of a DeviceClass that it has no mapping for. Nothing where there is no class."""
    try:
        classes = sorted(str(c["metadata"]["name"]) for c in kube.list(DEVICE_CLASS))
    except (NotFound, Forbidden):
        return
    if not classes:
        return
    config = gates.configuration(kube)
    if config is None:
        yield Check("device classes", OK, f"{listing(classes)}: Kueue's configuration may not be read, not checked")
        return
    if (config.get("featureGates") or {}).get("KueueDRAIntegration") is False:
        text = "featureGates.KueueDRAIntegration is off: Kueue admits no job with resource_claims"
        yield Check("device classes", WARN, text, _edit())
        return
    mapped = _mapped(config)
    missing = [name for name in classes if name not in mapped]
    if missing:
        text = f"Kueue has no mapping for {listing(missing)}: a job that claims such a device is never admitted"
        yield Check("device classes", WARN, text, _mapping(missing[0]))
        return
    uncounted = sorted({mapped[name] for name in classes} - _covered(kube))
    if uncounted:
        text = f"no ClusterQueue covers {listing(uncounted)}: a job that claims such a device is never admitted"
        yield Check("device classes", WARN, text, "Add the resource to coveredResources, with a quota per flavor.")
        return
    yield Check("device classes", OK, listing(f"{name} counts as {mapped[name]}" for name in classes))


def _mapped(config: Mapping[str, Any]) -> dict[str, str]:
    """DeviceClass -> the resource that it counts as."""
    mappings = (config.get("resources") or {}).get("deviceClassMappings") or ()
    return {str(name): str(each.get("name")) for each in mappings for name in each.get("deviceClassNames") or ()}


def _covered(kube: Kube) -> set[str]:
    groups = [g for q in kube.list(CLUSTER_QUEUE) for g in (q.get("spec") or {}).get("resourceGroups") or ()]
    return {str(resource) for group in groups for resource in group.get("coveredResources") or ()}


def _mapping(name: str) -> str:
    return (
        f"{_edit()} For example:\n"
        "resources:\n"
        "  deviceClassMappings:\n"
        "    - name: devices/gpu\n"
        f"      deviceClassNames: [{name}]"
    )


def _edit() -> str:
    return f"Change it in ConfigMap {gates.KUEUE_CONFIG}, restart Kueue, and give ClusterQueues a quota for it."
