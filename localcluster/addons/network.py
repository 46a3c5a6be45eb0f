"""kube-proxy and CoreDNS: in-cluster addresses and names, as in any cluster. Pure, but for the Corefile."""

from __future__ import annotations

from typing import Any

from ..config import CLUSTER_DOMAIN, DNS_PORT, DNS_READY_PORT, KUBE_PROXY_HEALTH_PORT, NODES, ClusterConfig
from ..images.gobuild import Binaries
from ..namespaces.processes import Part


def kube_proxy(config: ClusterConfig, binaries: Binaries) -> Part:
    """One for all nodes, because they share a network namespace."""
    return Part(
        "kube-proxy",
        [
            binaries["kube-proxy"],
            "--proxy-mode=nftables",
            f"--kubeconfig={config.pki / 'kube-proxy.kubeconfig'}",
            f"--cluster-cidr={config.pod_subnet}",
            f"--hostname-override={NODES[0].name}",
            f"--healthz-bind-address={config.address}:{KUBE_PROXY_HEALTH_PORT}",
            "--metrics-bind-address=127.0.0.1:10249",
            # The limit belongs to the host's network namespace; ours may not change it.
            "--conntrack-max-per-core=0",
        ],
    )


def corefile(config: ClusterConfig) -> str:
    """Names outside the cluster are answered with an error at once: the cluster has no way out.

    Reverse look-ups of pod addresses are answered too; programs that ask for their peer's name stall otherwise.
    """
    return f""".:{DNS_PORT} {{
    errors
    health 127.0.0.1:8080
    ready {config.address}:{DNS_READY_PORT}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {config.pki / "coredns.kubeconfig"}
        pods insecure
        ttl 5
    }}
    cache 5
}}
"""


def coredns(config: ClusterConfig, binaries: Binaries) -> Part:
    path = config.root / "Corefile"
    path.write_text(corefile(config))
    return Part("coredns", [binaries["coredns"], "-conf", str(path)])


def coredns_rbac() -> list[dict[str, Any]]:
    """Permissions of CoreDNS' `kubernetes` plugin (its documentation, section "Permissions")."""
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    api = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": {"name": "system:coredns"}, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "system:coredns"},
            "subjects": [{"apiGroup": api, "kind": "User", "name": "system:coredns"}],
        },
    ]
