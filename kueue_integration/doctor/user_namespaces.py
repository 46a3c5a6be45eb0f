"""Say by flavor which nodes can give training pods a user namespace, from what kubelets report: no pod is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..kube.api import Kube
from ..kube.resources import NODE, RESOURCE_FLAVOR, Object, is_true
from ..kube.user_namespaces import unable
from ..spec import platform_config
from ..spec.platform_config import AUTO, USER_NAMESPACE, PlatformConfig
from .check import FAIL, OK, REPAIR, Check, listing


def flavors(kube: Kube, config: PlatformConfig) -> Iterator[Check]:
    """Give a finding per ResourceFlavor with ready nodes: a failure where one cannot and the platform wants it to."""
    ready = [node for node in kube.list(NODE) if is_true(node, "Ready")]
    for flavor in kube.list(RESOURCE_FLAVOR):
        labels = ((flavor.get("spec") or {}).get("nodeLabels") or {}).items()
        nodes = [node for node in ready if labels <= (node["metadata"].get("labels") or {}).items()]
        if nodes:
            yield _flavor(str(flavor["metadata"]["name"]), nodes, config.privileges)


_ABLE = {
    platform_config.NODE: "training pods could have one (chart value pods.privileges=auto)",
    AUTO: "new jobs of its queues have one, where their other flavors can, too",
    USER_NAMESPACE: "training pods have one",
}
_UNABLE = {
    platform_config.NODE: "training pods have none",
    AUTO: "jobs of its queues get capabilities on the node, and say why",
}


def _flavor(name: str, nodes: Sequence[Object], setting: str) -> Check:
    title = f"user namespaces on {name}"
    cannot = unable(nodes)
    if not cannot:
        return Check(title, OK, f"its {len(nodes)} ready nodes can give one; {_ABLE[setting]}")
    words = f"{len(cannot)} of its {len(nodes)} ready nodes cannot: {listing(f'{node}: {why}' for node, why in cannot)}"
    if setting in _UNABLE:
        return Check(title, OK, f"{words}; {_UNABLE[setting]}")
    fix = "No training pod starts there. Keep training off these nodes by nodeLabels of the ResourceFlavor, or:"
    return Check(title, FAIL, words, f"{fix}\n{REPAIR} \\\n  --set pods.privileges=node")
