"""Where volumes may be mounted: one form of a path, for the operator, the adoption and the guard policies. Pure.

The API server takes any text. The kubelet makes it absolute and the container runtime cleans it, so that
`//singularity/agent`, `singularity/agent` and `/x/../singularity/agent` are mounted at `/singularity/agent`. Rules
compare texts. So a path has to be clean before a rule looks at it.
"""

from __future__ import annotations

import json
import re

from singularity_proxy.protocol import names

_PART = r"/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)"
FORM = rf"^({_PART})+/?$"
"""Of a clean path, one `/` at its end allowed. The syntax is RE2, which CEL has, and Python's."""
FIX = "must be absolute and have no empty, '.' or '..' part, as /data/sets has none"
DRIVER = r"/(lib(cuda|nvidia)[^/]*|[^/]*nvidia[^/]*)/?$"
"""What the launcher could take for NVIDIA's driver (`singularity_proxy.launcher.device.libraries`)."""
DRIVER_FIX = "looks like a part of NVIDIA's driver, which the container runtime mounts; use another path"


def clean(path: str) -> bool:
    return re.fullmatch(FORM.strip("^$"), path) is not None


def below(path: str, folder: str) -> bool:
    """Whether a clean path is `folder`, or in it."""
    return f"{path}/".startswith(f"{folder}/")


def cel_below(path: str, folder: str) -> str:
    """`below` in CEL; `path` is an expression."""
    return f"({path} == '{folder}' || {path}.startsWith('{folder}/'))"


def cel(path: str) -> str:
    """Whether `problem` has something to say, in CEL; `path` is an expression."""
    unclean, driver = f"!{path}.matches({json.dumps(FORM)})", f"{path}.matches({json.dumps(DRIVER)})"
    return f"({unclean} || {cel_below(path, names.ROOT)} || {driver})"


def problem(path: str) -> str:
    """Why nobody but the platform may mount a volume there; "" if anybody may."""
    if not clean(path):
        return FIX
    if below(path, names.ROOT):
        return f"{names.ROOT} is mounted by the platform; use another path"
    return DRIVER_FIX if re.search(DRIVER, path) else ""
