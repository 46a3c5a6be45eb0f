"""What the nodes of a flavor can hold while some of them take no pods. Kueue's quotas do not know of that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from ...drain import nodes as drained
from ...errors import NotFound
from ...kube import quantities
from ...kube.client import Kube
from ...kube.resources import RESOURCE_FLAVOR, Object, is_true
from ...planner.model import ClusterSnapshot
from ..machines.nodes import Nodes

KEPT_S = 20.0
"""A node that takes pods again, or none any more, may stay unseen for this time."""
Amounts = Mapping[str, Fraction]
"""resource -> amount."""


class Usable:
    """`clock` gives seconds that only grow. Not thread-safe."""

    def __init__(self, kube: Kube, nodes: Nodes, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._nodes, self._clock = kube, nodes, clock
        self._kept: dict[str, tuple[float, Amounts | None]] = {}

    def see(self, snapshot: ClusterSnapshot, leaving: Callable[[Object], bool]) -> ClusterSnapshot:
        """`snapshot` with what is usable of the flavors that its jobs could use.

        Flavors whose nodes all take pods are left out, and those without nodes: they may be scaled to none.

        :param leaving: whether a policy sends jobs away from a node, though it takes pods
        :raises KubeError: and ValueError, LookupError or TypeError: an object is not as it should be
        """
        used = {q.name: q for job in snapshot.jobs.values() if job.given and (q := snapshot.queue_of(job)) is not None}
        found: dict[str, Amounts] = {}
        for flavor in sorted({flavor for queue in used.values() for group in queue.groups for flavor in group.flavors}):
            kept = self._kept.get(flavor)
            if kept is None or self._clock() - kept[0] >= KEPT_S:
                kept = self._kept[flavor] = (self._clock(), self._look(flavor, leaving))
            if kept[1] is not None:
                found[flavor] = kept[1]
        return replace(snapshot, usable=found)

    def _look(self, name: str, leaving: Callable[[Object], bool]) -> Amounts | None:
        try:
            flavor = self._kube.get(RESOURCE_FLAVOR, None, name)
        except NotFound:
            return None
        labels = (flavor.get("spec") or {}).get("nodeLabels") or {}
        return held_by(self._nodes.matching(labels), leaving)


def held_by(nodes: Iterable[Object], leaving: Callable[[Object], bool]) -> Amounts | None:
    """What the `nodes` that take pods can allocate, None if all do. What no node has is not limited by nodes. Pure."""
    total, short = dict[str, Fraction](), False
    for node in nodes:
        good = takes_pods(node) and not leaving(node)
        short = short or not good
        for resource, text in ((node.get("status") or {}).get("allocatable") or {}).items():
            total[resource] = total.get(resource, Fraction(0)) + (quantities.parse(text) if good else 0)
    return total if short else None


def takes_pods(node: Object) -> bool:
    """It is ready, not cordoned, and does not have our taint. Other taints may be tolerated."""
    return is_true(node, "Ready") and not drained.cordoned(node) and not drained.marked(node)
