"""Was it memory? What the container's cgroup says about kills and about the limit (cgroup v2 and v1)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from ..protocol.messages import EndCause, last_words

CGROUP: Final = Path("/sys/fs/cgroup")
TERMINATION_LOG: Final = Path("/dev/termination-log")
"""What is written here is `message` of the container's end in the pod's status."""
_NO_LIMIT: Final = 1 << 62
"""cgroup v1 has no value for "no limit", only a very large number."""


def oom_kills(cgroup: Path = CGROUP) -> int:
    """How often the kernel has killed a process in our memory cgroup, 0 if the kernel does not report it."""
    for path in (cgroup / "memory.events", cgroup / "memory/memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def kills_since(before: int, cgroup: Path = CGROUP) -> str:
    """A sentence where `oom_kills` has grown, else ""."""
    if oom_kills(cgroup) <= before:
        return ""
    return "The kernel killed processes of this container for memory: its limit is below what the ranks need"


def limit(cgroup: Path = CGROUP) -> int | None:
    """The container's memory limit in bytes; None: it has none, or it is unknown."""
    for path in (cgroup / "memory.max", cgroup / "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            value = int(path.read_text())
            return value if value < _NO_LIMIT else None
    return None


def sentence(cgroup: Path = CGROUP) -> str:
    """Why the kernel has killed, for people."""
    bytes_ = limit(cgroup)
    if bytes_ is None:
        return "out of memory: the kernel killed it; the container has no limit, so its node had no memory left"
    return f"out of memory: the kernel killed it, the limit of the container is {bytes_ / (1 << 20):.0f} MiB"


def note(text: str, cause: EndCause, path: Path = TERMINATION_LOG) -> None:
    """Leave `text` and `cause` for the pod's status, where there is a place for it."""
    with contextlib.suppress(OSError):
        if path.exists():
            path.write_text(last_words(text, cause))
