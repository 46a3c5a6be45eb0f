"""The level of a job: where its launcher's capabilities count, and why there. Pure.

    job says        platform node    platform auto                 platform userns
    nothing         node             as `auto`                     userns
    auto            node             userns where its nodes can    userns
    userns          userns           userns                        userns
    node            node             node                          refused

`userns` is refused where no node of a flavor can give a user namespace. It never becomes `node`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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


def chosen(wish: str | None, platform: PlatformConfig) -> Level:
    """The level of a job with this wish, which must have no `problem`."""
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
    return Level(USER_NAMESPACE, f"all nodes of its flavors can ({', '.join(sorted(platform.user_namespaces))})")


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
    for name, told in sorted(platform.user_namespaces.items()):
        if told.get(CAN) == NONE:
            return (
                f"no node of flavor {name} can give a pod a user namespace ({told.get(WHY)}); use another queue, "
                "or engine 'state'"
            )
    return ""


def resolved(platform: PlatformConfig, wish: str | None) -> PlatformConfig:
    """The platform for a job with this wish: its `privileges` is a level, and not `auto`."""
    return replace(platform, privileges=chosen(wish, platform).name)


def narrowed(platform: PlatformConfig, flavors: set[str]) -> PlatformConfig:
    """The platform with what is known of these flavors only."""
    unknown: Mapping[str, str] = {CAN: UNKNOWN, WHY: "no ready node has been seen"}
    return replace(platform, user_namespaces={n: platform.user_namespaces.get(n, unknown) for n in sorted(flavors)})
