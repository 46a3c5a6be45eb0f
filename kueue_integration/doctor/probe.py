"""`doctor --probe`: one short-lived pod per flavor that writes to the store and lets CRIU look at the node."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ..errors import KubeError, PlatformError
from ..jobs import store_pod
from ..jobs.phase import NO_IDMAP
from ..kube.api import Kube
from ..kube.resources import RESOURCE_FLAVOR, Object
from ..manifests import criu_probe
from ..manifests.pod import for_criu, namespaces
from ..spec import privileges, store_access
from ..spec.platform_config import AUTO, PlatformConfig
from .check import FAIL, OK, REPAIR, WARN, Check

TOGETHER = 4


def flavors(kube: Kube, namespace: str, config: PlatformConfig, timeout_s: float) -> Iterator[Check]:
    """Two findings per ResourceFlavor; a node of it must take the pod within `timeout_s` seconds."""
    found = kube.list(RESOURCE_FLAVOR)
    with ThreadPoolExecutor(TOGETHER) as pool:
        for checks in pool.map(lambda flavor: _flavor(kube, namespace, config, flavor, timeout_s), found):
            yield from checks


def pod(namespace: str, config: PlatformConfig, flavor: Object, timeout_s: float) -> Object:
    """The pod for a flavor, with the level that its jobs have. Pure."""
    config = level(config, flavor)
    url = store_access.of(config, namespace).url
    made = store_pod.manifest(namespace, config, url, ["probe", namespace], timeout_s)
    made["spec"] |= nodes_of(flavor) | namespaces(config)
    # The guard lets nothing into that container: an identity of the cloud goes into the other one.
    made["metadata"]["annotations"] = {"eks.amazonaws.com/skip-containers": criu_probe.CRIU}
    made["spec"]["containers"].append(
        {
            "name": criu_probe.CRIU,
            "image": config.agent_image,
            "imagePullPolicy": config.image_pull_policy,
            "command": [*criu_probe.command(config.privileges)],
            "securityContext": for_criu(config),
        }
    )
    return made


def level(config: PlatformConfig, flavor: Object) -> PlatformConfig:
    """The platform for jobs that can only be on this flavor. Pure."""
    if config.privileges != AUTO:
        return config
    narrowed = privileges.narrowed(config, {str((flavor.get("metadata") or {}).get("name"))})
    return replace(config, privileges=privileges.chosen(None, narrowed, {"volumes": config.volumes}).name)


def nodes_of(flavor: Object) -> Object:
    """The part of a pod's spec that brings it to the nodes of a flavor. Pure."""
    spec = flavor.get("spec") or {}
    return {
        "nodeSelector": dict(spec.get("nodeLabels") or {}),
        "tolerations": [*(spec.get("tolerations") or ())],
    }


def _flavor(kube: Kube, namespace: str, config: PlatformConfig, flavor: Object, timeout_s: float) -> list[Check]:
    name = str(flavor["metadata"]["name"])
    try:
        lines = store_pod.carry_out(kube, pod(namespace, config, flavor, timeout_s), timeout_s)
    except (PlatformError, KubeError) as error:
        if NO_IDMAP in str(error):
            fix = f"No job of this flavor would start. Take the volume out of pods.volumes, or:\n{REPAIR} \\\n"
            return [Check(f"probe {name}", FAIL, str(error), f"{fix}  --set pods.privileges=node")]
        fix = f"See whether a node has the labels of ResourceFlavor {name} and room for a pod."
        return [Check(f"probe {name}", WARN, f"not probed: {error}", fix)]
    store, criu = lines[store_pod.CONTAINER], lines[criu_probe.CRIU]
    return [_store(name, config.store, store), _criu(name, criu, level(config, flavor).privileges)]


def _store(flavor: str, url: str, lines: list[str]) -> Check:
    said = store_pod.answer(lines) or {"error": " | ".join(lines[-3:]) or "it said nothing"}
    if "result" in said:
        return Check(f"store on {flavor}", OK, f"{url}: written and read back on a node of flavor {flavor}")
    fix = "Checkpoints fail there: correct store.url, its volume, or the credentials of the nodes."
    return Check(f"store on {flavor}", FAIL, str(said["error"]), fix)


def _criu(flavor: str, lines: list[str], given: str) -> Check:
    if f"{criu_probe.FEATURE[given]} is supported" in lines:
        return Check(f"node of {flavor}", OK, "CRIU finds what it needs, with the capabilities of training pods")
    words = " | ".join(line for line in lines if "rror" in line) or " | ".join(lines[-3:]) or "it said nothing"
    fix = "Preempt a small job there first; see the kernel's configuration for what CRIU names."
    return Check(f"node of {flavor}", WARN, f"CRIU check: {words}", fix)
