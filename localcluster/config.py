"""What a cluster of a given name and index is made of: paths, addresses, ports, nodes. Pure.

Every cluster has namespaces of its own (see `sandbox`), so its ports are the usual ones and cannot be taken. Clusters
share the host's address space; the index keeps them apart there.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

STATE_ROOT = Path("/var/lib/singularity-local")
"""One directory per cluster, plus the registry of indices."""
MAX_CLUSTERS = 16
NAME_PATTERN = re.compile(r"[a-z]([-a-z0-9]{0,22}[a-z0-9])?")

APISERVER_PORT = 6443
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
KUBE_PROXY_HEALTH_PORT = 10256
KUEUE_WEBHOOK_PORT = 9443
KUEUE_HEALTH_PORT = 8081
KUEUE_METRICS_PORT = 8443
KUEUE_VISIBILITY_PORT = 8082
JOBSET_WEBHOOK_PORT = 9444
JOBSET_HEALTH_PORT = 8083
TRAINER_WEBHOOK_PORT = 9445
TRAINER_HEALTH_PORT = 8084
DNS_PORT = 53
DNS_READY_PORT = 8181
CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Node:
    """One node: a containerd and a kubelet.

    :param port: the kubelet's HTTPS port on the cluster's address
    :param health_port: its `/healthz`, plain HTTP on the cluster's address
    """

    name: str
    flavor: str
    port: int
    health_port: int


NODE_COUNT_VARIABLE = "SINGULARITY_LOCAL_NODES"
_ALL_NODES = (
    Node("ondemand-0", "ondemand", 10250, 10348),
    Node("ondemand-1", "ondemand", 10350, 10448),
    Node("spot-0", "spot", 10450, 10548),
)


def nodes(environ: Mapping[str, str]) -> tuple[Node, ...]:
    """All three, or the first so many as $SINGULARITY_LOCAL_NODES says: several clusters at once on a small machine.

    :raises ConfigError: the variable holds something else than 1, 2 or 3
    """
    text = environ.get(NODE_COUNT_VARIABLE) or str(len(_ALL_NODES))
    if text not in [str(count) for count in range(1, len(_ALL_NODES) + 1)]:
        raise ConfigError(f"{NODE_COUNT_VARIABLE} = {text!r}: give 1, 2 or {len(_ALL_NODES)}")
    return _ALL_NODES[: int(text)]


NODES = nodes(os.environ)


@dataclass(frozen=True)
class ClusterConfig:
    """Everything that follows from a cluster's name and index (0 .. MAX_CLUSTERS - 1)."""

    name: str
    index: int
    state_root: Path = STATE_ROOT

    @property
    def root(self) -> Path:
        return self.state_root / self.name

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def bin(self) -> Path:
        """Links to the programs, for people."""
        return self.root / "bin"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def shared(self) -> Path:
        """Mounted into training pods: checkpoint store and data volume of the cluster."""
        return self.root / "shared"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def run(self) -> Path:
        """Pid files; what is in it means something only while the sandbox lives."""
        return self.root / "run"

    def node_dir(self, node: Node) -> Path:
        return self.root / "nodes" / node.name

    @property
    def containerd_state(self) -> Path:
        """Inside the sandbox, where /run is a file system of its own: gone with the processes, as after a reboot."""
        return Path("/run/singularity-local")

    @property
    def link(self) -> str:
        """Name of the host's end of the link to the cluster (at most 15 characters)."""
        return f"sgl{self.index}"

    @property
    def uplink(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"10.199.{self.index}.0/30")

    @property
    def host_address(self) -> str:
        """The host, as seen from the cluster."""
        return str(self.uplink[1])

    @property
    def address(self) -> str:
        """The cluster, as seen from the host; API server, nodes and DNS listen here."""
        return str(self.uplink[2])

    @property
    def pod_subnet(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"10.{200 + self.index}.0.0/16")

    @property
    def service_subnet(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"10.{230 + self.index}.0.0/16")

    @property
    def server(self) -> str:
        return f"https://{self.address}:{APISERVER_PORT}"

    @property
    def cgroup(self) -> str:
        """Parent of all pods' control groups, below the root of each hierarchy."""
        return f"singularity-local-{self.name}"


def check_name(name: str) -> str:
    """:raises ConfigError: `name` cannot name a cluster"""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"cluster name = {name!r}: use 1 to 24 lower-case letters, digits and '-', beginning with a letter"
        )
    return name


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder for everything downloaded or built: $SINGULARITY_CACHE, else below $XDG_CACHE_HOME or ~/.cache.

    :raises ConfigError: the variable holds a relative path
    """
    own = environ.get("SINGULARITY_CACHE")
    if own:
        path = Path(own)
    elif environ.get("XDG_CACHE_HOME"):
        path = Path(environ["XDG_CACHE_HOME"]) / "singularity"
    else:
        path = Path(environ.get("HOME") or "/root") / ".cache" / "singularity"
    if not path.is_absolute():
        raise ConfigError(f"SINGULARITY_CACHE = {own!r}: give an absolute path")
    return path
