"""The nodes themselves: are they there, and do they take new pods. To change that is an administrator's right."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import annotation_values, job_names
from ..errors import Forbidden, NotFound, PlatformError, SpecError
from ..kube.api import Kube
from ..kube.resources import NODE, Object, is_true

RIGHTS = "drain needs the verbs get, list and patch on nodes, which an administrator has"


def found(kube: Kube, names: Sequence[str]) -> list[Object]:
    """The nodes of these names. Raises SpecError (no such node), PlatformError (no permission), KubeError."""
    nodes = []
    for name in names:
        try:
            nodes.append(kube.get(NODE, None, name))
        except NotFound:
            raise SpecError([("node", name, "is not a node of this cluster; see `kubectl get nodes`")]) from None
        except Forbidden as error:
            raise PlatformError(f"{RIGHTS}: {error}") from None
    return nodes


def cordoned(node: Object) -> bool:
    """Whether it takes no new pods."""
    return bool((node.get("spec") or {}).get("unschedulable"))


NOT_THERE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node that does not answer: nothing can be saved there any more."""


def marked(node: Object) -> bool:
    """Whether it has the taint of the planner's policy health."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return any(taint.get("key") == job_names.TAINT_UNHEALTHY for taint in taints)


def marked_at(node: Object) -> float:
    """When the planner's policy health has tainted it the last time, Unix seconds; 0 for never."""
    return annotation_values.readable(annotation_values.moment(node, job_names.NODE_TAINTED_AT), None) or 0.0


def leaving(node: Object, conditions: Sequence[str] = (), taints: Sequence[str] = ()) -> str:
    """Why jobs should leave a node that still works, "" for any other.

    It is about to go (see `ending`), is cordoned, has a taint with effect NoExecute, or one of `conditions` is True.
    """
    if soon := ending(node, taints):
        return soon
    if not is_true(node, "Ready"):
        return ""
    evict = [t for t in (node.get("spec") or {}).get("taints") or () if t.get("effect") == "NoExecute"]
    if any(t.get("key") in NOT_THERE for t in evict):
        return ""
    if cordoned(node):
        return "is cordoned"
    if evict:
        return f"has the taint {evict[0].get('key')} (NoExecute)"
    bad = next((name for name in conditions if is_true(node, name)), None)
    return f"reports {bad}" if bad is not None else ""


def ending(node: Object, taints: Sequence[str]) -> str:
    """Why the node will be gone within minutes, "" for any other: one of `taints` is on it, whatever its effect."""
    if not is_true(node, "Ready"):
        return ""
    keys = [str(taint.get("key")) for taint in (node.get("spec") or {}).get("taints") or ()]
    found = next((key for key in keys if key in taints), None)
    return "" if found is None or any(key in NOT_THERE for key in keys) else f"is about to go (taint {found})"


def cordon(kube: Kube, node: Object) -> bool:
    """Let `node` take no new pods, as `kubectl cordon` does. Whether that was a change.

    Raises PlatformError (no permission; nothing was changed), KubeError.
    """
    if cordoned(node):
        return False
    try:
        kube.patch(NODE, None, node["metadata"]["name"], {"spec": {"unschedulable": True}})
    except Forbidden as error:
        text = f"{RIGHTS}, or ask one to cordon the node and use --no-cordon: {error}"
        raise PlatformError(text) from None
    return True
