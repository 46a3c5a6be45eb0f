"""`doctor --probe`: one short-lived pod per flavor that writes to the store and lets CRIU look at the node."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from .. import storepod
from ..errors import KubeError, PlatformError
from ..kube import Kube
from ..platform import PlatformConfig
from ..pod import for_criu
from ..resources import RESOURCE_FLAVOR, Object
from .check import FAIL, OK, WARN, Check

CRIU = "criu"
_FOLDER = "/opt/singularity/criu"
_LOADER = (f"{_FOLDER}/ld-linux-x86-64.so.2", "--library-path", f"{_FOLDER}/lib", f"{_FOLDER}/criu")
FEATURES = ("clone3_set_tid", "seccomp_suspend", "timerfd", "kcmp")
"""What dump and restore of ranks use. All that `criu check` looks for would be too much: tun devices, for one."""
TOGETHER = 4


def flavors(kube: Kube, namespace: str, config: PlatformConfig, timeout_s: float) -> Iterator[Check]:
    """Two findings per ResourceFlavor; a node of it must take the pod within `timeout_s` seconds."""
    found = kube.list(RESOURCE_FLAVOR)
    with ThreadPoolExecutor(TOGETHER) as pool:
        for checks in pool.map(lambda flavor: _flavor(kube, namespace, config, flavor, timeout_s), found):
            yield from checks


def pod(namespace: str, config: PlatformConfig, flavor: Object, timeout_s: float) -> Object:
    """The pod for a flavor. Pure."""
    made = storepod.manifest(namespace, config, config.store, ["probe"], timeout_s)
    spec = flavor.get("spec") or {}
    made["spec"]["nodeSelector"] = dict(spec.get("nodeLabels") or {})
    made["spec"]["tolerations"] = [*(spec.get("tolerations") or ())]
    made["spec"]["containers"].append(
        {
            "name": CRIU,
            "image": config.agent_image,
            "imagePullPolicy": config.image_pull_policy,
            "command": [*_LOADER, "check", *(word for feature in FEATURES for word in ("--feature", feature))],
            "securityContext": for_criu(),
        }
    )
    return made


def _flavor(kube: Kube, namespace: str, config: PlatformConfig, flavor: Object, timeout_s: float) -> list[Check]:
    name = str(flavor["metadata"]["name"])
    try:
        lines = storepod.carry_out(kube, pod(namespace, config, flavor, timeout_s), timeout_s)
    except (PlatformError, KubeError) as error:
        fix = f"See whether a node has the labels of ResourceFlavor {name} and room for a pod."
        return [Check(f"probe {name}", WARN, f"not probed: {error}", fix)]
    return [_store(name, config.store, lines[storepod.CONTAINER]), _criu(name, lines[CRIU])]


def _store(flavor: str, url: str, lines: list[str]) -> Check:
    said = storepod.answer(lines) or {"error": " | ".join(lines[-3:]) or "it said nothing"}
    if "result" in said:
        return Check(f"store on {flavor}", OK, f"{url}: written and read back on a node of flavor {flavor}")
    fix = "Checkpoints fail there: correct store.url, its volume, or the credentials of the nodes."
    return Check(f"store on {flavor}", FAIL, str(said["error"]), fix)


def _criu(flavor: str, lines: list[str]) -> Check:
    if any("Looks good" in line for line in lines):
        return Check(f"node of {flavor}", OK, "CRIU finds what it needs, with the capabilities of training pods")
    words = " | ".join(line for line in lines if "rror" in line) or " | ".join(lines[-3:]) or "it said nothing"
    fix = "Preempt a small job there first; see the kernel's configuration for what CRIU names."
    return Check(f"node of {flavor}", WARN, f"CRIU check: {words}", fix)
