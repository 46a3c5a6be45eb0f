"""The nodes, and the machines of a ResourceFlavor: followed while somebody asks for them, and not at rest."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ...errors import Forbidden, NotFound, Unreachable
from ...kube.client import Kube
from ...kube.resources import NODE, RESOURCE_FLAVOR, Object
from .. import kept
from ..copies import SILENT_S
from ..informer import Informer, told
from . import FlavorMachines

log = logging.getLogger(__name__)

KEPT_S = 20.0
"""Many restores come at once. A new node of a flavor may stay unseen for this time."""
IDLE_S = 600.0
"""Without a question for so long the nodes are followed no more: their kubelets write even when nothing changes."""
FIRST_S = 20.0
"""The planner's longest wait for the first list."""
WORKER_S = 3.0
"""A worker's: holds wait for it."""


def _nobody_waits(node: Object, deleted: bool) -> None:
    """Do nothing: who asks looks again after a while."""


class Nodes:
    """Our copy of the cluster's nodes: made at the first question, given up when none has come for `IDLE_S`.

    `clock` gives seconds that only grow. `changed` hears of each change while there is a copy. Thread-safe.
    """

    def __init__(
        self,
        kube: Kube,
        skip: Callable[[str, str, Exception], None] = told,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[Object, bool], None] = _nobody_waits,
    ) -> None:
        self._kube, self._clock = kube, clock
        self._skip, self._changed = skip, changed
        self._lock = threading.Lock()
        self._informer: Informer | None = None
        self._asked = clock()
        self._began = 0.0
        """When the first list did."""

    @property
    def followed(self) -> bool:
        """Whether there is a copy now."""
        return self._informer is not None

    def all(self, patience_s: float = FIRST_S) -> Sequence[Object]:
        """Return all nodes. Raises KubeError: they cannot be followed now, or may not be read.

        `patience_s`: for their first list, from its beginning.
        """
        informer = self._followed()
        if not informer.synced.is_set():
            informer.tried.wait(max(0.0, self._began + patience_s - time.monotonic()))
        if informer.synced.is_set() and informer.silent_for() < SILENT_S:
            return informer.all()
        raise informer.error or Unreachable("the nodes have not been listed yet")

    def matching(self, labels: Mapping[str, str], patience_s: float = FIRST_S) -> Sequence[Object]:
        """Return those that have all of `labels`. Raises KubeError as `all`."""
        return [n for n in self.all(patience_s) if labels.items() <= (n["metadata"].get("labels") or {}).items()]

    def rest(self) -> None:
        """Give the copy up if nobody has asked for a while."""
        with self._lock:
            if self._informer is not None and self._clock() - self._asked >= IDLE_S:
                self.stop()

    def stop(self) -> None:
        """The thread ends with its current watch. A later question begins anew."""
        if self._informer is not None:
            self._informer.stop()
        self._informer = None

    def _followed(self) -> Informer:
        with self._lock:
            self._asked = self._clock()
            if self._informer is None:
                self._informer = Informer(self._kube, NODE, self._changed, keep=kept.node, skip=self._skip)
                self._began = time.monotonic()
                self._informer.start()
            return self._informer


class Machines:
    """`clock` gives seconds that only grow."""

    def __init__(self, kube: Kube, nodes: Nodes, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._nodes = kube, nodes
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, FlavorMachines | None]] = {}

    def of(self, flavor: str) -> FlavorMachines | None:
        """None when there is no such flavor, or we may not look. Raises KubeError."""
        with self._lock:
            found = self._kept.get(flavor)
        if found is None or self._clock() - found[0] >= KEPT_S:
            # Without the lock: a slow answer must not stop workers that ask for another flavor, or not at all.
            found = self._clock(), self._look(flavor)
            with self._lock:
                self._kept[flavor] = found
        return found[1]

    def _look(self, name: str) -> FlavorMachines | None:
        try:
            flavor = self._kube.get(RESOURCE_FLAVOR, None, name)
            labels = (flavor.get("spec") or {}).get("nodeLabels") or {}
            nodes = self._nodes.matching(labels, WORKER_S)
        except NotFound:
            return None
        except Forbidden as error:
            log.warning("flavor %s: its nodes are not compared with a checkpoint's needs: %s", name, error)
            return None
        shown = {str(node["metadata"]["name"]): dict(node["metadata"].get("labels") or {}) for node in nodes}
        return FlavorMachines(dict(labels), shown)
