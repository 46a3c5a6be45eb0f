"""Pods on nodes: which domains a topology level has, how many pods fit, and what is left when some are placed. Pure.

First fit by resources alone. Affinity, taints and the like are the scheduler's: a plan that they void costs a move.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from .job import Job, Workload
from .model import ClusterSnapshot
from .quota import NONE

HOSTNAME: Final = "kubernetes.io/hostname"
Room = Mapping[str, Fraction]
"""resource -> amount."""
Nodes = Mapping[str, Room]
"""Node -> what is free there."""


def nodes_of(snapshot: ClusterSnapshot, flavor: str) -> dict[str, Room]:
    """The nodes of a ResourceFlavor with what is free there; none where nobody has asked for it."""
    labels = snapshot.flavors.get(flavor)
    if labels is None:
        return {}
    return {n.name: n.free for n in snapshot.nodes.values() if not n.leaving and labels.items() <= n.labels.items()}


def domains(snapshot: ClusterSnapshot, flavor: str, level: str) -> dict[str, dict[str, Room]]:
    """Value of the label `level` -> nodes of the flavor. Values have to be unique, whatever the levels above."""
    found: dict[str, dict[str, Room]] = {}
    for name, room in nodes_of(snapshot, flavor).items():
        value = snapshot.nodes[name].labels.get(level)
        if value is not None:
            found.setdefault(value, {})[name] = room
    return found


def per_pod(workload: Workload) -> Room:
    """What each pod of a Workload asks for."""
    return {resource: amount for resource, amount in workload.per_pod.items() if amount > 0}


def count(nodes: Nodes, each: Room) -> int:
    """How many pods of `each` fit on `nodes`."""
    return sum(_fit(room, each) for room in nodes.values())


def _fit(room: Room, each: Room) -> int:
    return max(0, min((int(room.get(r, NONE) / n) for r, n in each.items()), default=0))


def freed(nodes: Nodes, node: str, job: Job) -> dict[str, Room]:
    """`nodes` when all pods of `job` have left `node`."""
    assert job.workload is not None and job.given is not None
    back = {r: n * job.given.count for r, n in per_pod(job.workload).items()}
    room = nodes[node]
    return {**nodes, node: {r: room.get(r, NONE) + back.get(r, NONE) for r in {*room, *back}}}


def placed(nodes: Nodes, job: Job) -> dict[str, Room] | None:
    """`nodes` when all pods of `job` have come to them, fullest first; None: they do not fit."""
    assert job.workload is not None and job.given is not None
    each, left, after = per_pod(job.workload), job.given.count, dict(nodes)
    for name in sorted(after, key=lambda n: (_fit(after[n], each), n)):
        here = min(left, _fit(after[name], each))
        if here:
            after[name] = {r: amount - each.get(r, NONE) * here for r, amount in after[name].items()}
            left -= here
    return None if left else after
