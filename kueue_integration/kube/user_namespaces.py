"""Whether nodes can give pods a user namespace, from what their kubelets report. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .resources import Object

KERNEL = (6, 3)
"""The first whose tmpfs can be mounted with mapped ids: a pod's Secrets, tokens and /dev/shm are such mounts."""
_NO_RUNTIME = "its container runtime says nothing of user namespaces: containerd 2 with runc 1.2 or crun 1.9 is needed"


def lacking(node: Object) -> str:
    """Say why pods with a user namespace cannot run on the node; "" if nothing speaks against it."""
    kernel = info(node, "kernelVersion")
    if release(kernel) < KERNEL:
        return f"Linux {kernel} is older than {'.'.join(map(str, KERNEL))}"
    handlers = (node.get("status") or {}).get("runtimeHandlers") or ()
    usual = [handler.get("features") or {} for handler in handlers if not handler.get("name")]
    return "" if any(features.get("userNamespaces") for features in usual) else _NO_RUNTIME


def unable(nodes: Sequence[Object]) -> list[tuple[str, str]]:
    """Name of each node that cannot, and why."""
    return [(str(node["metadata"]["name"]), why) for node in nodes if (why := lacking(node))]


def info(node: Object, key: str) -> str:
    """Return what the kubelet says of the node, "unknown" where it says nothing."""
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get(key) or "unknown")


def release(text: str) -> tuple[int, int]:
    """Leading `major.minor` of a version such as `33+` or `6.18.0-cloud`, (0, 0) when there is none."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
