"""Which flavors' nodes can give pods a user namespace: published for those who submit, who may not read nodes.

What kubelets report is taken, and no pod is started to try it, as `doctor --probe` does: that needs a namespace, rights
and room on each flavor, and is out of date with the next node. What no node reports is the file system of a volume:
`spec.privileges` leaves out those that are not known to map ids.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from ..errors import Forbidden, KubeError, NotFound
from ..kube.client import Kube
from ..kube.resources import RESOURCE_FLAVOR, Object, is_true
from ..kube.user_namespaces import unable
from ..requests import placement
from ..spec import privileges
from .machines.nodes import Nodes

log = logging.getLogger(__name__)
LOOK_S = 15.0


class FlavorLevels:
    """`queues()` gives the ClusterQueues, whose flavors are looked at; `clock` seconds that only grow."""

    def __init__(
        self,
        kube: Kube,
        nodes: Nodes,
        queues: Callable[[], Iterable[Object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._nodes, self._queues, self._clock = kube, nodes, queues, clock
        self._looked = float("-inf")
        self._known: dict[str, dict[str, str]] = {}

    def known(self) -> Mapping[str, Mapping[str, str]]:
        """As in `PlatformConfig.user_namespaces`. A flavor without a ready node keeps what was known of it."""
        if not self._known or self._clock() - self._looked >= LOOK_S:
            try:
                self._known = dict(sorted(self._look().items()))
                self._looked = self._clock()
            except KubeError as error:
                log.warning("the flavors' nodes are not looked at for user namespaces: %s", error)
        return self._known

    def _look(self) -> dict[str, dict[str, str]]:
        found = {}
        for name in {flavor for queue in self._queues() for flavor in placement.flavor_names(queue)}:
            try:
                spec = self._kube.get(RESOURCE_FLAVOR, None, name).get("spec") or {}
            except (NotFound, Forbidden):
                continue
            nodes = [node for node in self._nodes.matching(spec.get("nodeLabels") or {}) if is_true(node, "Ready")]
            if nodes:
                bad = unable(nodes)
                which = privileges.SOME if len(bad) < len(nodes) else privileges.NONE
                # One node is enough of a reason; a count would change with each node that comes or goes.
                found[name] = (
                    {privileges.CAN: which, privileges.WHY: ": ".join(min(bad))}
                    if bad
                    else {privileges.CAN: privileges.ALL}
                )
            elif name in self._known:
                found[name] = self._known[name]
        return found
