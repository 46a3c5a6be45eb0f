"""Control groups of a cluster's pods: one parent per node, in every hierarchy (v1) or in the one there is (v2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..config import ClusterConfig, Node
from ..errors import HostError
from ..shell import wait_until

CGROUP_ROOT = Path("/sys/fs/cgroup")
ASIDE = "init"
"""Where the processes of a container go that were in the root of its own tree (v2)."""

NEEDED = ("cpu", "cpuset", "memory", "pids")
V1_NEEDED = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids")


def version(root: Path = CGROUP_ROOT) -> int:
    """1 or 2.

    :raises HostError: neither is set up in a way that kubelet and runc can use
    """
    unified = root / "cgroup.controllers"
    if unified.exists():
        missing = [name for name in NEEDED if name not in unified.read_text().split()]
        if missing:
            raise HostError(
                f"{root} (cgroup v2) lacks the controllers {', '.join(missing)}: enable them for this machine, or "
                "start this container with its own full cgroup tree (Docker: --privileged --cgroupns=private)"
            )
        return 2
    missing = [name for name in V1_NEEDED if not (root / name).is_dir()]
    if missing:
        raise HostError(
            f"{root} has neither cgroup v2 nor the v1 hierarchies {', '.join(missing)}: mount them "
            "(for v2: mount -t cgroup2 none /sys/fs/cgroup)"
        )
    return 1


def hierarchies(root: Path = CGROUP_ROOT) -> list[Path]:
    """Roots below which a group has to be made or removed; links to them (cpu,cpuacct) left out."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def create(config: ClusterConfig, nodes: Sequence[Node], root: Path = CGROUP_ROOT) -> None:
    """The groups that kubelets take as their root; kubelet wants them to exist.

    :raises HostError: the kernel does not let us
    :raises NotReadyError: somebody starts processes in the root of the container's tree as fast as we move them
    """
    v2 = version(root) == 2
    try:
        for hierarchy in hierarchies(root):
            if v2:
                clear_root(hierarchy)
                _delegate(hierarchy)
            parent = hierarchy / config.cgroup
            for group in (parent, *(parent / node.name for node in nodes)):
                group.mkdir(exist_ok=True)
                if v2:
                    _delegate(group)
                elif (group / "cpuset.cpus").exists():
                    for name in ("cpuset.cpus", "cpuset.mems"):
                        (group / name).write_text((group.parent / name).read_text())
    except OSError as error:
        raise HostError(
            f"control group {error.filename} cannot be set up ({error.strerror}): run on a machine or container that "
            "owns its cgroup tree (Docker: --privileged --cgroupns=private)"
        ) from error


def clear_root(root: Path) -> None:
    """Move a container's processes out of the root of its own tree (v2).

    With a process in it, a group gives no controller to the groups below. Only the root of the whole machine may; it
    has no `cgroup.type`.

    :raises NotReadyError: see `create`
    """
    if (root / "cgroup.type").exists() and _members(root):
        (root / ASIDE).mkdir(exist_ok=True)
        wait_until(partial(_cleared, root), f"the processes in {root} are in {root / ASIDE}", timeout=20)


def _members(group: Path) -> list[str]:
    """Processes of a group. One that another container has put there reads as 0, and cannot be moved from here."""
    return [pid for pid in (group / "cgroup.procs").read_text().split() if pid != "0"]


def _cleared(root: Path) -> bool:
    for pid in _members(root):
        with contextlib.suppress(ProcessLookupError):
            (root / ASIDE / "cgroup.procs").write_text(pid)
    return not _members(root)


def _delegate(group: Path) -> None:
    """Cgroup v2: children get the controllers. A group with processes of its own refuses, but for the real root."""
    enabled = (group / "cgroup.subtree_control").read_text().split()
    wanted = [name for name in (group / "cgroup.controllers").read_text().split() if name not in enabled]
    if wanted:
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))


def remove(config: ClusterConfig, root: Path = CGROUP_ROOT) -> None:
    """Remove all of the cluster's groups, after its processes have ended.

    :raises NotReadyError: something still lives in one
    """
    for hierarchy in hierarchies(root):
        top = hierarchy / config.cgroup
        wait_until(partial(_removed, top), f"control group {top} is empty", timeout=20)


def _removed(top: Path) -> bool:
    if not top.exists():
        return True
    for directory, _, _ in os.walk(top, topdown=False):
        try:
            Path(directory).rmdir()
        except OSError:
            return False
    return True
