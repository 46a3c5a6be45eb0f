"""Where a job may run, in the one language that Kueue and the scheduler both read: required node affinity.

Kueue compares the affinity of a Workload's pods with the node labels of each ResourceFlavor, the scheduler with the
nodes. `resolve` turns what a user says (a flavor, a node to leave) into such terms, or says why that cannot be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import job_names
from ..contract.record_types import NodeRequirement, Placement
from ..errors import ChartError, Forbidden, PlatformError, SpecError
from ..job import states
from ..job.unreadable import UnreadableAnnotation
from ..job.view import ANYWHERE as ANYWHERE
from ..job.view import Job
from ..kube.api import Kube
from ..kube.resources import CLUSTER_QUEUE, LOCAL_QUEUE, NODE, RESOURCE_FLAVOR, Kind, Object, is_true, label
from ..manifests import pod_placement
from ..spec import platform_config, privileges
from ..spec.platform_config import USER_NAMESPACE

HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor of the job's queue."""

    name: str
    labels: Mapping[str, str]
    topology: bool = False
    """Whether Kueue places pods of this flavor by a Topology."""


def of(job: Mapping[str, Any]) -> Placement | UnreadableAnnotation:
    """The placement that stands in the Job."""
    return Job.parse(job).placement


def own_affinity(job: Mapping[str, Any]) -> Any:
    """The affinity that the user has given the pods, None for none, or for one that a placement has made.

    Once a placement stands in the Job, its affinity is the controller's. A job with one of its own gets no placement.
    The Job follows its placement only at its next start: until then its affinity may be that of an earlier one.
    """
    if Job.parse(job).placed:
        return None
    return (((job["spec"].get("template") or {}).get("spec")) or {}).get("affinity") or None


def affinity(placement: Placement) -> Object | None:
    """The pod's `affinity` for `placement`, None for anywhere."""
    found: Object = {}
    if placement.terms:
        terms = [{"matchExpressions": [dataclasses.asdict(r) for r in term]} for term in placement.terms]
        found["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if placement.shuns:
        others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in placement.shuns]
        found["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": 100, "preference": {"matchFields": others}}
        ]
    return {"nodeAffinity": found} if found else None


def make(
    flavors: Sequence[Flavor], allowed: Sequence[str], avoid_nodes: Sequence[str], hosts: Sequence[str]
) -> Placement:
    """`allowed` of `flavors`, away from `avoid_nodes`, whose values of HOSTNAME are `hosts`."""
    away = [NodeRequirement(HOSTNAME, "NotIn", sorted(hosts))] if hosts else []
    narrowed = len(allowed) < len(flavors)
    terms = [
        [NodeRequirement(key, "In", [value]) for key, value in sorted(flavor.labels.items())] + away
        for flavor in flavors
        if flavor.name in allowed
    ]
    if not narrowed:
        terms = [away] if away else []
    return Placement(sorted(allowed) if narrowed else [], sorted(avoid_nodes), terms)


def resolve(kube: Kube, job: Object, flavor: str | None, leave: Sequence[str], anywhere: bool) -> Placement:
    """What the job's placement becomes: `flavor` pins it, `leave` are more nodes to avoid, `anywhere` drops
    earlier wishes. Raises SpecError (unknown or impossible), PlatformError (may not look), KubeError.
    """
    before = ANYWHERE if anywhere else of(job)
    if isinstance(before, UnreadableAnnotation):
        raise SpecError([("placement", before.text, f"cannot be read: {before.why}")])
    if flavor is None and not leave:
        return before
    flavors = _flavors(kube, job)
    if flavor is not None:
        check_flavor(flavor, flavors)
        workload = kube.get_workload_for_job(job) or {}
        _check_wishes(_as_submitted(job, workload), flavor, flavors)
        _check_level(kube, states.privileges(job, workload), flavor)
    nodes = _list(kube, NODE) if leave or before.avoid_nodes else []
    known = {str(n["metadata"]["name"]): n for n in nodes}
    for node in leave:
        if node not in known:
            raise SpecError([("away_from_node", node, f"is not a node of this cluster; it has: {_names(known)}")])
    avoid = sorted({*before.avoid_nodes, *leave} & set(known))
    pinned = (
        [flavor] if flavor is not None else [f.name for f in flavors if not before.flavors or f.name in before.flavors]
    )
    allowed = pinned
    if avoid:
        left = [n for name, n in known.items() if name not in avoid and _usable(n)]
        allowed = [f.name for f in flavors if f.name in pinned and any(_on(f, n) for n in left)]
    if not allowed:
        field, value = ("away_from_node", ", ".join(leave)) if leave else ("flavor", flavor)
        fix = "name another flavor too, or drop earlier wishes with --anywhere"
        raise SpecError(
            [(field, value, f"no usable node of flavor {_names(pinned)} is left without {_names(avoid)}; {fix}")]
        )
    for name in allowed if len(allowed) < len(flavors) else ():
        check_flavor(name, flavors)
    hosts = [label(known[name], HOSTNAME) or name for name in avoid]
    return make(flavors, allowed, avoid, hosts)


def check_flavor(name: str, flavors: Sequence[Flavor]) -> None:
    """Whether node labels can tell this flavor from the queue's others: nothing else steers Kueue."""
    found = next((f for f in flavors if f.name == name), None)
    if found is None:
        known = _names(f.name for f in flavors)
        raise SpecError([("flavor", name, f"is not a flavor of the job's queue; it has: {known}")])
    same = [f.name for f in flavors if f.name != name and found.labels.items() <= f.labels.items()]
    if same:
        raise SpecError(
            [
                (
                    "flavor",
                    name,
                    f"its nodeLabels do not tell it from {_names(same)}; give the ResourceFlavor labels of its own",
                )
            ]
        )


def _as_submitted(job: Object, workload: Object) -> Mapping[str, Any]:
    """The job's pod template without what Kueue has added for a flavor."""
    podsets = (workload.get("spec") or {}).get("podSets") or ()
    return (podsets[0] if podsets else job["spec"]).get("template") or {}


def _check_wishes(template: Mapping[str, Any], name: str, flavors: Sequence[Flavor]) -> None:
    """The flavor has the topology and the node labels that the pods ask for: else the job would wait for ever."""
    if pod_placement.asks_for_topology(template):
        good = [flavor.name for flavor in flavors if flavor.topology]
        if name not in good:
            fix = f"has no topology, which the job asks for; flavors of its queue that have one: {_names(good)}"
            raise SpecError([("flavor", name, fix)])
    known = {key for flavor in flavors for key in flavor.labels}
    selector = (template.get("spec") or {}).get("nodeSelector") or {}
    wanted = {key: value for key, value in selector.items() if key in known}
    good = [flavor.name for flavor in flavors if wanted.items() <= flavor.labels.items()]
    if name not in good:
        fix = f"does not have the labels of the job's node selector ({wanted}); flavors that have them: {_names(good)}"
        raise SpecError([("flavor", name, fix)])


def _check_level(kube: Kube, level: str, name: str) -> None:
    """A node of the flavor can give the user namespace that the job's pods have: they would not start there."""
    if level != USER_NAMESPACE:
        return
    try:
        why = privileges.lacking(platform_config.load(kube), name)
    except ChartError:
        return  # nobody knows, or not this user
    if why:
        fix = f"its pods have user namespaces, which no node of that flavor can give ({why}); a `fork` with"
        raise SpecError([("flavor", name, f"{fix} --privileges node goes on there, if the platform allows it")])


def _flavors(kube: Kube, job: Object) -> list[Flavor]:
    """Flavors of the job's queue, in its order of preference."""
    namespace, queue = job["metadata"]["namespace"], label(job, job_names.KUEUE_QUEUE_LABEL) or ""
    local = kube.find(LOCAL_QUEUE, namespace, queue)
    if local is None:
        raise SpecError([("queue", queue, f"is not a LocalQueue of namespace {namespace!r} any more")])
    name = str(local["spec"].get("clusterQueue", ""))
    found = next((q for q in _list(kube, CLUSTER_QUEUE) if q["metadata"]["name"] == name), None)
    if found is None:
        raise PlatformError(f"LocalQueue {queue!r} points to ClusterQueue {name!r}, which does not exist")
    order = flavor_names(found)
    specs: dict[str, Any] = {f["metadata"]["name"]: f.get("spec") or {} for f in _list(kube, RESOURCE_FLAVOR)}
    return [
        Flavor(name, spec.get("nodeLabels") or {}, bool(spec.get("topologyName")))
        for name, spec in ((name, specs.get(name, {})) for name in order)
    ]


def flavor_names(cluster_queue: Mapping[str, Any]) -> list[str]:
    """Flavors of a ClusterQueue, in its order of preference."""
    groups = (cluster_queue.get("spec") or {}).get("resourceGroups") or ()
    return list(dict.fromkeys(str(f["name"]) for group in groups for f in group.get("flavors") or ()))


def _list(kube: Kube, kind: Kind) -> list[Object]:
    try:
        return kube.list(kind)
    except Forbidden as error:
        raise PlatformError(
            f"migrate has to look at {kind.plural}: ask for permission to list them ({error})"
        ) from None


def _usable(node: Object) -> bool:
    return is_true(node, "Ready") and not (node.get("spec") or {}).get("unschedulable")


def _on(flavor: Flavor, node: Object) -> bool:
    return flavor.labels.items() <= (node["metadata"].get("labels") or {}).items()


def _names(values: Iterable[str]) -> str:
    return ", ".join(sorted(values)) or "none"
