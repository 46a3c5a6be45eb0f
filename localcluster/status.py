"""What of a cluster runs: one row per part, and where its log is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import registry
from .config import (
    APISERVER_PORT,
    CONTROLLER_MANAGER_PORT,
    DNS_READY_PORT,
    KUBE_PROXY_HEALTH_PORT,
    KUEUE_HEALTH_PORT,
    NODES,
    SCHEDULER_PORT,
    ClusterConfig,
)
from .control_plane.probe import http_ok
from .errors import ConfigError
from .namespaces import processes, sandbox
from .namespaces.procfs import host_pids, resident_bytes
from .nodes import node


@dataclass(frozen=True)
class PartStatus:
    """:param pid: on the host, None when the part does not run
    :param ready: its health address answers; None for parts that have none
    :param memory: resident bytes
    """

    name: str
    pid: int | None
    ready: bool | None
    memory: int
    log: Path


def health_urls(config: ClusterConfig) -> dict[str, str]:
    """Health address of every part that has one."""
    base = config.address
    urls = {
        "kube-apiserver": f"https://{base}:{APISERVER_PORT}/readyz",
        "kube-controller-manager": f"https://{base}:{CONTROLLER_MANAGER_PORT}/healthz",
        "kube-scheduler": f"https://{base}:{SCHEDULER_PORT}/healthz",
        "kube-proxy": f"http://{base}:{KUBE_PROXY_HEALTH_PORT}/healthz",
        "coredns": f"http://{base}:{DNS_READY_PORT}/ready",
        "kueue": f"http://{base}:{KUEUE_HEALTH_PORT}/readyz",
    }
    for member in NODES:
        urls[node.kubelet_name(member)] = f"http://{base}:{member.health_port}/healthz"
    return urls


def part_names() -> list[str]:
    control_plane = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    return [
        *control_plane,
        *("kueue", "kube-proxy", "coredns"),
        *(name(member) for member in NODES for name in (node.containerd_name, node.kubelet_name)),
    ]


def status(name: str = "default", probe: Callable[[str], bool] = http_ok) -> list[PartStatus] | None:
    """Every part of cluster `name`; None when there is no such cluster."""
    config = registry.find(name)
    if config is None:
        return None
    box = sandbox.find(config)
    numbers = host_pids(box.holder.pid) if box else {}
    urls = health_urls(config)
    rows = []
    for part in part_names():
        process = processes.running(box, part) if box else None
        pid = numbers.get(process.pid) if process else None
        ready = probe(urls[part]) if part in urls and pid is not None else None if part not in urls else False
        memory = resident_bytes(Path("/proc"), pid) if pid is not None else 0
        rows.append(PartStatus(part, pid, ready, memory, config.logs / f"{part}.log"))
    return rows


def find_log(name: str, part: str) -> Path:
    """Log file of a part.

    :raises ConfigError: no such cluster, part or log
    """
    config = registry.find(name)
    if config is None:
        raise ConfigError(f"cluster {name!r} does not exist: `singularityctl local up --name {name}` makes it")
    log = config.logs / f"{part}.log"
    if part != Path(part).name or not log.exists():
        known = ", ".join(sorted(path.stem for path in config.logs.glob("*.log")))
        raise ConfigError(f"part = {part!r}: cluster {name} has no log of that name; there are: {known}")
    return log
