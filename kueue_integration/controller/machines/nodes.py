"""The machines of a ResourceFlavor: read from the API server only before a restore, and cached for a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ...errors import Forbidden, NotFound
from ...kube.client import Kube
from ...kube.resources import NODE, RESOURCE_FLAVOR, selector
from . import FlavorMachines

log = logging.getLogger(__name__)

KEPT_S = 20.0
"""Many restores come at once. A new node of a flavor may stay unseen for this time."""


class Machines:
    """`clock` gives seconds that only grow."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, FlavorMachines | None]] = {}

    def of(self, flavor: str) -> FlavorMachines | None:
        """None when there is no such flavor, or we may not look. Raises KubeError."""
        with self._lock:
            found = self._kept.get(flavor)
            if found is None or self._clock() - found[0] >= KEPT_S:
                found = self._kept[flavor] = (self._clock(), self._look(flavor))
            return found[1]

    def _look(self, name: str) -> FlavorMachines | None:
        try:
            flavor = self._kube.get(RESOURCE_FLAVOR, None, name)
            labels = (flavor.get("spec") or {}).get("nodeLabels") or {}
            shown = {
                str(node["metadata"]["name"]): dict(node["metadata"].get("labels") or {})
                for nodes, _ in self._kube.pages(NODE, selector=selector(labels) or None)
                for node in nodes
            }
        except NotFound:
            return None
        except Forbidden as error:
            log.warning("flavor %s: its nodes are not compared with a checkpoint's needs: %s", name, error)
            return None
        return FlavorMachines(dict(labels), shown)
