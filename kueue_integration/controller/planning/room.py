"""The room on nodes, for policies that place pods: measured when a policy needs it, and not before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from ...drain.look import at_work, node_of
from ...drain.nodes import cordoned
from ...kube import quantities
from ...kube.client import Kube
from ...kube.resources import RESOURCE_FLAVOR, Object, is_true
from ...planner import model, quota
from ...planner.model import ClusterSnapshot


def with_room(
    kube: Kube, snapshot: ClusterSnapshot, nodes: Sequence[Object], pods: Iterable[Object]
) -> ClusterSnapshot:
    """`snapshot`, whose `nodes` these are, with flavors and what all `pods` of the cluster leave free on each node.

    Raises KubeError, and ValueError, LookupError or TypeError: an object is not as it should be.
    """
    flavors = {str(f["metadata"]["name"]): f.get("spec") or {} for f in kube.list(RESOURCE_FLAVOR)}
    places = measured(snapshot, nodes, pods)
    labels = {name: dict(spec.get("nodeLabels") or {}) for name, spec in flavors.items()}
    return replace(snapshot, nodes=places, flavors=labels)


def measured(snapshot: ClusterSnapshot, nodes: Sequence[Object], pods: Iterable[Object]) -> dict[str, model.Node]:
    """The nodes of `snapshot` with their labels and their room. A node that takes no pods has none. Pure."""
    taken: dict[str, dict[str, Fraction]] = {}
    for pod in pods:
        if at_work(pod):
            held = taken.setdefault(node_of(pod), {})
            for resource, amount in quota.of_pod({"template": pod}).items():
                held[resource] = held.get(resource, Fraction(0)) + amount
    found = dict(snapshot.nodes)
    for raw in nodes:
        name, meta = str(raw["metadata"]["name"]), raw["metadata"]
        if name not in found:
            continue
        usable = is_true(raw, "Ready") and not cordoned(raw)
        whole = (raw.get("status") or {}).get("allocatable") or {}
        amounts = {r: quantities.parse(text) - taken.get(name, {}).get(r, Fraction(0)) for r, text in whole.items()}
        free = amounts if usable else {}
        found[name] = replace(found[name], labels=dict(meta.get("labels") or {}), free=free)
    return found
