"""What the API server tells for both commands: nodes, and the requests of a tenant from the records of its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..drain.look import at_work, node_of
from ..drain.nodes import cordoned
from ..errors import Forbidden, PlatformError
from ..kube import quantities
from ..kube.api import Kube
from ..kube.resources import NODE, POD, Object, is_true
from ..overview.model import Cluster, Training
from ..planner import measure, quota
from .binding import LABEL, owner
from .description import Description
from .replay import Machine, Request, Verdict, verdicts


@dataclass(frozen=True)
class Nodes:
    """By name."""

    labels: Mapping[str, Mapping[str, str]]
    capacity: Mapping[str, Mapping[str, Fraction]]
    """What each can give to pods of jobs: the rest belongs to pods that every such node has."""
    broken: Mapping[str, str]
    """Why no cell may have the node."""


@dataclass(frozen=True)
class Checked:
    """The promise to one tenant."""

    tenant: str
    nodes: int
    verdicts: Sequence[Verdict]
    others: int
    """Requests that are bound to no topology: they have no promise, and take nodes all the same."""


def nodes(kube: Kube) -> Nodes:
    """Raises PlatformError: they, or the pods on them, may not be listed."""
    try:
        found = kube.list(NODE)
        return read(found, (pod for page, _ in kube.pages(POD) for pod in page))
    except Forbidden as error:
        raise PlatformError(f"the right to list nodes, and pods of all namespaces, is missing ({error})") from error


def read(found: Sequence[Object], pods: Iterable[Object] = ()) -> Nodes:
    """Of Node objects, and of pods, of which those count that belong to their nodes."""
    taken: dict[str, dict[str, Fraction]] = {}
    for pod in pods:
        if at_work(pod) and _stays(pod):
            held = taken.setdefault(node_of(pod), {})
            for resource, amount in quota.of_pod({"template": pod}).items():
                held[resource] = held.get(resource, quota.NONE) + amount
    labels: dict[str, Mapping[str, str]] = {}
    capacity: dict[str, Mapping[str, Fraction]] = {}
    broken: dict[str, str] = {}
    for node in found:
        name = str(node["metadata"]["name"])
        labels[name] = node["metadata"].get("labels") or {}
        whole, held = (node.get("status") or {}).get("allocatable") or {}, taken.get(name, {})
        amounts = {str(r): quantities.parse(text) - held.get(r, quota.NONE) for r, text in whole.items()}
        capacity[name] = {resource: max(quota.NONE, amount) for resource, amount in amounts.items()}
        if not is_true(node, "Ready"):
            broken[name] = "it is not ready"
        elif cordoned(node):
            broken[name] = "it is cordoned"
    return Nodes(labels, capacity, broken)


def _stays(pod: Object) -> bool:
    """Whether no job can ever have its place: it is of a DaemonSet, or of the node itself."""
    return any(owner.get("kind") in ("DaemonSet", "Node") for owner in pod["metadata"].get("ownerReferences") or ())


def checked(said: Description, cluster: Cluster, there: Nodes, since: float) -> list[Checked]:
    """The promise to each tenant since then, on the nodes that have its label now. Raises SpecError: see `verdicts`."""
    found = []
    for tenant in said.tenants:
        mark = owner(said, tenant.name)
        machines = [
            Machine(name, labels, there.capacity[name])
            for name, labels in sorted(there.labels.items())
            if labels.get(LABEL) == mark
        ]
        jobs = [job for job in cluster.trainings or () if _queue(cluster, job) == mark]
        asked = [request for job in jobs for request in requests(cluster, job, since)]
        told = verdicts(asked, machines, said.labels, cluster.at)
        found.append(Checked(tenant.name, len(machines), told, len(asked) - len(told)))
    return found


def requests(cluster: Cluster, job: Training, since: float) -> list[Request]:
    """Every wait of the job that had not ended before `since`."""
    claim = next((c for c in cluster.claims or () if c.training and c.uid == job.uid), None)
    name = f"{job.namespace}/{job.name}"
    found = []
    for record in job.attempts:
        holds = record is job.attempts[-1] and claim is not None and claim.holds is not None
        ended = None if holds else record.admitted_at + measure.held_s(record, None)
        queued = min(record.admitted_at, record.queued_at if record.queued_at is not None else record.admitted_at)
        if ended is None or ended >= since:
            size = max(1, record.pods)
            found.append(Request(name, queued, record.admitted_at, ended, size, job.pod_asks, job.required_topology))
    if claim is not None and claim.holds is None and claim.active and claim.since is not None:
        found.append(Request(name, claim.since, None, None, claim.pods, job.pod_asks, job.required_topology))
    return found


def _queue(cluster: Cluster, job: Training) -> str:
    return (cluster.local_queues or {}).get((job.namespace, job.local_queue), "")
