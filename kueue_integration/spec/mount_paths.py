"""Where volumes may be mounted: one form of a path, for the operator and `adopt`; the chart's guard has the same. Pure.

The API server takes any text. The kubelet makes it absolute and the container runtime cleans it, so that
`//singularity/agent`, `singularity/agent` and `/x/../singularity/agent` are mounted at `/singularity/agent`. Rules
compare texts. So a path has to be clean before a rule looks at it.

The runtime also follows symbolic links below the container's root while it mounts. A volume of the user's may have one,
so may the `/dev/shm` that all containers of a pod share, and `/proc/self/root` is one. So no volume is mounted below
another one, nor below these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from singularity_proxy.protocol import names

_PART = r"/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)"
FORM = rf"^({_PART})+/?$"
"""Of a clean path, one `/` at its end allowed. The syntax is RE2, which CEL has, and Python's."""
FIX = "must be absolute and have no empty, '.' or '..' part, as /data/sets has none"
DRIVER = r"/(lib(cuda|nvidia)[^/]*|[^/]*nvidia[^/]*)/?$"
"""What the launcher could take for NVIDIA's driver (`singularity_proxy.launcher.device.libraries`)."""
LINKED = r"^/proc(/|$)|^/dev/shm/."
LINKED_FIX = "is below /proc or /dev/shm, where a link could lead the volume elsewhere; use another path"
APART = "must not be below another mount's: a link there could lead the volume over the platform's programs"
DRIVER_FIX = "looks like a part of NVIDIA's driver, which the container runtime mounts; use another path"


def clean(path: str) -> bool:
    return re.fullmatch(FORM.strip("^$"), path) is not None


def below(path: str, folder: str) -> bool:
    """Whether a clean path is `folder`, or in it."""
    return f"{path}/".startswith(f"{folder}/")


def inside(path: str, others: Iterable[str]) -> bool:
    """Whether a clean path is below another one of them; one with a `/` more is."""
    return any(path != other and below(path, other.rstrip("/")) for other in others)


def nested(path: str, others: Iterable[str]) -> bool:
    """Whether a clean path is below one of the others, or one of them below it."""
    return inside(path, others) or any(inside(other, [path]) for other in others)


def problem(path: str) -> str:
    """Why nobody but the platform may mount a volume there; "" if anybody may."""
    if not clean(path):
        return FIX
    if below(path, names.ROOT):
        return f"{names.ROOT} is mounted by the platform; use another path"
    if re.search(LINKED, path):
        return LINKED_FIX
    return DRIVER_FIX if re.search(DRIVER, path) else ""
