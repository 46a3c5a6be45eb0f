"""The level of a job: where its launcher's capabilities count, and why there. Pure.

    job says        platform node    platform auto                 platform userns
    nothing         node             as `auto`                     userns
    auto            node             userns where its nodes can    userns
    userns          userns           userns                        userns
    node            node             node                          refused

`userns` is refused where no node of a flavor can give a user namespace. It never becomes `node`. Where the platform
says `auto` and nobody asks for `userns`, a pod with a volume or device that may not go with one has `node`, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .platform_config import AUTO, NODE, PRIVILEGES, USER_NAMESPACE, PlatformConfig

WISHES = (AUTO, *PRIVILEGES)
CAN, WHY = "can", "why"
ALL, SOME, NONE, UNKNOWN = "all", "some", "none", "unknown"
"""Of `PlatformConfig.user_namespaces`: flavor -> {CAN: which of its ready nodes can, WHY: what the others lack}."""
ASKED = "the job asks for it"


@dataclass(frozen=True)
class Level:
    """:param name: NODE or USER_NAMESPACE :param why: a sentence without a capital and a full stop"""

    name: str
    why: str


def chosen(wish: str | None, platform: PlatformConfig, pod: Mapping[str, Any] | None = None) -> Level:
    """The level of a job with this wish, which must have no `problem`, and with such pods, if they are known."""
    if wish in PRIVILEGES:
        return Level(str(wish), ASKED)
    if platform.privileges == USER_NAMESPACE:
        return Level(USER_NAMESPACE, "the platform gives no other (chart value pods.privileges=userns)")
    if platform.privileges != AUTO:
        return Level(NODE, "the platform's default (chart value pods.privileges=node)")
    unable = {name: told for name, told in sorted(platform.user_namespaces.items()) if told.get(CAN) != ALL}
    if unable:
        name, told = next(iter(unable.items()))
        return Level(NODE, f"flavor {name} cannot give a user namespace to each pod: {told.get(WHY) or 'not known'}")
    if not platform.user_namespaces:
        return Level(NODE, "it is not known whether the nodes can give user namespaces")
    if text := untried(pod or {}):
        return Level(NODE, text + TRY)
    return Level(USER_NAMESPACE, f"all nodes of its flavors can ({', '.join(sorted(platform.user_namespaces))})")


MAPPED = ("configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret")
"""Volumes on disks and in the memory of the node. Of others nobody knows whether ids can be mapped: NFS cannot, and the
runtime would start no container. The guard allows a hostPath to the platform alone (`pods.volumes`)."""
DEVICE = "/"
"""In the names of devices, and of no other resource."""
NO_DEVICES = "devices have not been tried in a user namespace"
UNMAPPED = "volume {} may be one whose ids cannot be mapped"
TRY = "; ask for userns to try it"


def untried(pod: Mapping[str, Any]) -> str:
    """Say what in a pod spec may not go with a user namespace; "" if nothing does. Pure."""
    for volume in pod.get("volumes") or ():
        huge = str((volume.get("emptyDir") or {}).get("medium") or "").startswith("HugePages")
        if huge or not any(kind in volume for kind in MAPPED):
            return UNMAPPED.format(volume.get("name"))
    containers = [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]
    given = [(c.get("resources") or {}).get(kind) or {} for c in containers for kind in ("requests", "limits")]
    if pod.get("resourceClaims") or any(DEVICE in name for each in given for name in each):
        return NO_DEVICES
    return ""


def problem(wish: object, platform: PlatformConfig | None) -> str:
    """Why a job with this wish is refused, and what to do; "" if it is not."""
    if wish is not None and wish not in WISHES:
        return "must be 'auto', 'userns' or 'node'"
    if platform is None:
        return ""
    if wish == NODE and platform.privileges == USER_NAMESPACE:
        return (
            "the platform lets capabilities count on the node for no job (chart value pods.privileges=userns); "
            "leave it out, or use engine 'state'"
        )
    if chosen(None if wish is None else str(wish), platform).name != USER_NAMESPACE:
        return ""
    for name in sorted(platform.user_namespaces):
        if why := lacking(platform, name):
            fix = "use another queue, or engine 'state'"
            return f"no node of flavor {name} can give a pod a user namespace ({why}); {fix}"
    return ""


def lacking(platform: PlatformConfig, flavor: str) -> str:
    """Say what all nodes of the flavor lack for user namespaces; "" if one can give one, or nobody knows."""
    told = platform.user_namespaces.get(flavor) or {}
    return (told.get(WHY) or "not known") if told.get(CAN) == NONE else ""


def narrowed(platform: PlatformConfig, flavors: set[str]) -> PlatformConfig:
    """The platform with what is known of these flavors only."""
    unknown: Mapping[str, str] = {CAN: UNKNOWN, WHY: "no ready node has been seen"}
    return replace(platform, user_namespaces={n: platform.user_namespaces.get(n, unknown) for n in sorted(flavors)})
