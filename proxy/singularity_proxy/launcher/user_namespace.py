"""Whether this container has a user namespace of its own: then its capabilities count in there only."""

from __future__ import annotations

from pathlib import Path

WHOLE = ["0", "0", "4294967295"]
"""The map of the machine's own namespace: every uid is itself."""


def inside(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether uids in here are others on the node. Raises OSError: there is no /proc."""
    return uid_map.read_text().split() != WHOLE
