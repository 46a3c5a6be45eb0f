"""Nodes that begin to leave are told at once: a spot notice leaves half a minute, and plans look at nodes that rarely."""

from __future__ import annotations

from collections.abc import Callable

from ...drain import nodes as drained
from ...kube.client import Kube
from ...kube.resources import NODE, Object
from ...planner.settings import Cordon
from ..informer import Informer


class NodeWatch:
    """`hurry()` is called, from a thread of its own, whenever a node has another reason to be left than before.

    Of a node only what is asked here is kept. No hold depends on this copy.
    """

    def __init__(self, kube: Kube, settings: Cordon, hurry: Callable[[], None]) -> None:
        self._settings, self._hurry = settings, hurry
        self._said: dict[str, str] = {}
        self.informer = Informer(kube, NODE, self.changed, keep=self._kept)

    def changed(self, node: Object, deleted: bool) -> None:
        """Take a node as it is now."""
        name = str(node["metadata"]["name"])
        why = "" if deleted else drained.leaving(node, self._settings.conditions, self._settings.taints)
        before = self._said.pop(name, "")
        if why:
            self._said[name] = why
            if why != before:
                self._hurry()

    def _kept(self, node: Object) -> Object:
        spec, wanted = node.get("spec") or {}, {"Ready", *self._settings.conditions}
        found = (node.get("status") or {}).get("conditions") or ()
        told = [{key: one.get(key) for key in ("type", "status")} for one in found if one.get("type") in wanted]
        taints = [{key: one.get(key) for key in ("key", "effect")} for one in spec.get("taints") or ()]
        meta = {key: node["metadata"].get(key) for key in ("name", "resourceVersion")}
        kept = {"unschedulable": spec.get("unschedulable"), "taints": taints}
        return {"metadata": meta, "spec": kept, "status": {"conditions": told}}
