"""`local down` leaves nothing behind, also after parts of the cluster were killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster import cluster, registry, status
from localcluster.config import ClusterConfig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
NAME = "gone"
VICTIMS = ("kubelet", "containerd", "kube-apiserver", "etcd", "kueue")


@pytest.fixture
def config(say: Callable[[str], None]) -> Iterator[ClusterConfig]:
    cluster.down(NAME, progress=say)
    cluster.up(NAME, progress=say)
    found = registry.find(NAME)
    assert found is not None
    try:
        yield found
    finally:
        cluster.down(NAME, progress=say)


def processes(config: ClusterConfig) -> list[str]:
    """Command lines that name the cluster's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(config.root) in text:
                found.append(f"{entry.name} {text}")
    return found


def leftovers(config: ClusterConfig) -> list[str]:
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(config.root) in line]
    cgroups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{config.cgroup}")]
    cgroups += [str(path) for path in Path("/sys/fs/cgroup").glob(config.cgroup)]
    links = [link.name for link in Path("/sys/class/net").iterdir() if link.name == config.link]
    folders = [str(config.root)] if config.root.exists() else []
    return [*processes(config), *mounts, *cgroups, *links, *folders]


def test_down_after_kill_9_of_parts_leaves_nothing(config: ClusterConfig, say: Callable[[str], None]) -> None:
    assert len(leftovers(config)) > len(VICTIMS), "a cluster that is up must be seen by what looks for leftovers"
    killed = []
    for row in status.status(NAME) or ():
        if row.pid is not None and row.name.startswith(VICTIMS):
            os.kill(row.pid, signal.SIGKILL)
            killed.append(row.name)
    say(f"killed: {', '.join(killed)}")
    assert len(killed) >= len(VICTIMS)
    cluster.down(NAME, progress=say)
    assert leftovers(config) == []
    assert registry.find(NAME) is None


def test_down_of_nothing_is_no_error(say: Callable[[str], None]) -> None:
    cluster.down("never-made", progress=say)
