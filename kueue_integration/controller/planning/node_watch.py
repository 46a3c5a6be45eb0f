"""Nodes that begin to leave are told at once: a spot notice leaves half a minute, and plans look at nodes rarely."""

from __future__ import annotations

from collections.abc import Callable

from ...drain import nodes as drained
from ...kube.resources import Object
from ...planner.settings import Cordon


class NodeWatch:
    """`hurry()` is called whenever a node has another reason to be left than before."""

    def __init__(self, settings: Cordon, hurry: Callable[[], None]) -> None:
        self._settings, self._hurry = settings, hurry
        self._reasons: dict[str, str] = {}

    def changed(self, node: Object, deleted: bool) -> None:
        """Take a node as it is now."""
        name = str(node["metadata"]["name"])
        why = "" if deleted else drained.leaving(node, self._settings.conditions, self._settings.taints)
        before = self._reasons.pop(name, "")
        if why:
            self._reasons[name] = why
            if why != before:
                self._hurry()
