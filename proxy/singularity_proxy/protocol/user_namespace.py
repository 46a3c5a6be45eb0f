"""Find out whether this container has a user namespace of its own: then its capabilities count in there only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LABEL: Final = "privileges"
"""Of a checkpoint's manifest, process engine: where the capabilities of the pod that saved it count."""
NODE: Final = "node"
USER_NAMESPACE: Final = "userns"
"""On the node; or in the pod's own user namespace only, in which root is nobody on the node."""

WHOLE = ["0", "0", "4294967295"]
"""The map of the machine's own namespace: every uid is itself."""


def inside(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether uids in here are others on the node. Raises OSError: there is no /proc."""
    return uid_map.read_text().split() != WHOLE


def largest(id_map: Path = Path("/proc/self/uid_map")) -> int:
    """Return the largest uid that there is in here: a kubelet gives 65,536 to a pod. Raises OSError as `inside`."""
    lines = [[int(number) for number in line.split()] for line in id_map.read_text().splitlines()]
    return max((first + count - 1 for first, _, count in lines), default=0)


def level() -> str:
    """Name the place where capabilities of this container count. Raises OSError as `inside`."""
    return USER_NAMESPACE if inside() else NODE
