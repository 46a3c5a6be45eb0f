"""Say by flavor which nodes can give training pods a user namespace, from what kubelets report: no pod is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..kube.api import Kube
from ..kube.resources import NODE, RESOURCE_FLAVOR, Object, is_true
from ..spec.platform_config import USER_NAMESPACE, PlatformConfig
from .check import FAIL, OK, REPAIR, Check, listing
from .cluster import info, release

KERNEL = (6, 3)
"""The first whose tmpfs can be mounted with mapped ids: a pod's Secrets, tokens and /dev/shm are such mounts."""
_NO_RUNTIME = "its container runtime says nothing of user namespaces: containerd 2 with runc 1.2 or crun 1.9 is needed"


def flavors(kube: Kube, config: PlatformConfig) -> Iterator[Check]:
    """Give a finding per ResourceFlavor with ready nodes: a failure where one cannot and the platform wants it to."""
    ready = [node for node in kube.list(NODE) if is_true(node, "Ready")]
    for flavor in kube.list(RESOURCE_FLAVOR):
        labels = ((flavor.get("spec") or {}).get("nodeLabels") or {}).items()
        nodes = [node for node in ready if labels <= (node["metadata"].get("labels") or {}).items()]
        if nodes:
            yield _flavor(str(flavor["metadata"]["name"]), nodes, config.privileges == USER_NAMESPACE)


def lacking(node: Object) -> str:
    """Say why pods with a user namespace cannot run on the node; "" if nothing speaks against it. Pure."""
    kernel = info(node, "kernelVersion")
    if release(kernel) < KERNEL:
        return f"Linux {kernel} is older than {'.'.join(map(str, KERNEL))}"
    handlers = (node.get("status") or {}).get("runtimeHandlers") or ()
    usual = [handler.get("features") or {} for handler in handlers if not handler.get("name")]
    return "" if any(features.get("userNamespaces") for features in usual) else _NO_RUNTIME


def _flavor(name: str, nodes: Sequence[Object], given: bool) -> Check:
    title = f"user namespaces on {name}"
    unable = [(str(node["metadata"]["name"]), why) for node in nodes if (why := lacking(node))]
    if not unable:
        how = "training pods have one" if given else "training pods could have one (chart value pods.privileges=userns)"
        return Check(title, OK, f"its {len(nodes)} ready nodes can give one; {how}")
    words = f"{len(unable)} of its {len(nodes)} ready nodes cannot: {listing(f'{node}: {why}' for node, why in unable)}"
    if not given:
        return Check(title, OK, f"{words}; training pods have none")
    fix = "No training pod starts there. Keep training off these nodes by nodeLabels of the ResourceFlavor, or:"
    return Check(title, FAIL, words, f"{fix}\n{REPAIR} \\\n  --set pods.privileges=node")
