"""One node: configuration and command lines of its containerd and kubelet. Writes files, starts nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..config import CLUSTER_DOMAIN, ClusterConfig, Node
from ..images.gobuild import Binaries
from ..namespaces.processes import Part

SANDBOX_IMAGE = "localhost/singularity-pause:1"
CNI_PLUGINS = Path("/usr/lib/cni")
KUBELET_ROOT = "kubelet"
CDI = "cdi"
"""Folder of a node where drivers describe what a container with their device gets (Container Device Interface)."""


def socket(config: ClusterConfig, node: Node) -> Path:
    return config.node_dir(node) / "containerd.sock"


def containerd_name(node: Node) -> str:
    return f"containerd-{node.name}"


def kubelet_name(node: Node) -> str:
    return f"kubelet-{node.name}"


def base_spec(config: ClusterConfig, node: Node) -> Path:
    """What containers are made from, if it is not containerd's own: the file is there for an announced machine."""
    return config.node_dir(node) / "base-spec.json"


def containerd_toml(config: ClusterConfig, node: Node, runc: str) -> str:
    """containerd's configuration, version 3 of its format (containerd 2)."""
    directory = config.node_dir(node)
    state = config.containerd_state / node.name
    base = base_spec(config, node)
    from_base = f'  base_runtime_spec = "{base}"\n' if base.exists() else ""
    return f"""version = 3
root = "{directory / "containerd"}"
state = "{state}"
oom_score = 0
[grpc]
  address = "{socket(config, node)}"
[ttrpc]
  address = "{socket(config, node)}.ttrpc"
[plugins.'io.containerd.internal.v1.opt']
  path = "{directory / "opt"}"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{SANDBOX_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["{directory / CDI}"]
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
{from_base}[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{CNI_PLUGINS}"]
  conf_dir = "{directory / "cni"}"
"""


def cni_conflist(config: ClusterConfig) -> str:
    """Pods have routed links of their own (ptp), no bridge. So traffic between any two pods passes the sandbox's
    routing and kube-proxy's rules, and Services work without the br_netfilter module. All nodes share the network
    namespace and the address pool.
    """
    plugin = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": str(config.containerd_state / "ipam"),
            "ranges": [[{"subnet": str(config.pod_subnet)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}, indent=1)


def kubelet_config(config: ClusterConfig, node: Node) -> str:
    """KubeletConfiguration, as JSON."""
    directory = config.node_dir(node)
    endpoint = f"unix://{socket(config, node)}"
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(config.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "address": config.address,
        "port": node.port,
        "readOnlyPort": 0,
        "healthzBindAddress": config.address,
        "healthzPort": node.health_port,
        "containerRuntimeEndpoint": endpoint,
        "imageServiceEndpoint": endpoint,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{config.cgroup}/{node.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        # Three nodes share one disk, and images come from us: nothing that kubelet evicts would come back.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "clusterDNS": [config.address],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(config.root / "resolv.conf"),
        "localStorageCapacityIsolation": False,
        # Machines that are containers or small VMs lack CAP_SYS_RESOURCE; this makes kubelet go on without it.
        "featureGates": {"KubeletInUserNamespace": True},
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "podLogsDir": str(directory / "pod-logs"),
        "volumePluginDir": str(directory / "volume-plugins"),
    }
    return json.dumps(document, indent=1)


def write_files(config: ClusterConfig, node: Node, runc: str) -> None:
    """Everything that the two programs read."""
    directory = config.node_dir(node)
    for below in ("containerd", "cni", CDI, "opt", KUBELET_ROOT, "kubelet-certs", "pod-logs", "volume-plugins"):
        (directory / below).mkdir(parents=True, exist_ok=True)
    (directory / "containerd.toml").write_text(containerd_toml(config, node, runc))
    (directory / "cni" / "10-pods.conflist").write_text(cni_conflist(config))
    (directory / "kubelet.json").write_text(kubelet_config(config, node))
    (config.root / "resolv.conf").write_text("")


def containerd(config: ClusterConfig, node: Node, binaries: Binaries) -> Part:
    # containerd finds its shim on the PATH.
    path = f"{binaries.folders['containerd']}:/usr/sbin:/usr/bin:/sbin:/bin:{os.environ.get('PATH', '')}"
    command = [binaries["containerd"], "--config", str(config.node_dir(node) / "containerd.toml")]
    return Part(containerd_name(node), command, {"PATH": path})


def kubelet(config: ClusterConfig, node: Node, binaries: Binaries) -> Part:
    directory = config.node_dir(node)
    return Part(
        kubelet_name(node),
        [
            binaries["kubelet"],
            f"--config={directory / 'kubelet.json'}",
            f"--kubeconfig={config.pki / f'node-{node.name}.kubeconfig'}",
            f"--hostname-override={node.name}",
            f"--root-dir={directory / KUBELET_ROOT}",
            f"--cert-dir={directory / 'kubelet-certs'}",
            f"--node-ip={config.address}",
            f"--node-labels=flavor={node.flavor}",
        ],
    )
