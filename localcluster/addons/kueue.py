"""Stock Kueue as a process: its configuration, custom resources, permissions and webhooks, all from its own module."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..config import (
    KUEUE_HEALTH_PORT,
    KUEUE_METRICS_PORT,
    KUEUE_VISIBILITY_PORT,
    KUEUE_WEBHOOK_PORT,
    ClusterConfig,
)
from ..control_plane.pki import KUEUE_ACCOUNT, KUEUE_NAMESPACE
from ..errors import BuildError
from ..images.gobuild import Binaries
from ..namespaces.processes import Part
from ..namespaces.sandbox import Sandbox

CERTIFICATE_DIRECTORY = "/etc/kueue/metrics/certs"
"""Hard-coded in Kueue's main program (cmd/kueue/main.go, v0.19)."""
VISIBILITY_DIRECTORY = "/visibility"
"""Hard-coded too (pkg/visibility/server.go)."""
CONCURRENCY = {
    "Job.batch": 5,
    "Workload.kueue.x-k8s.io": 10,
    "LocalQueue.kueue.x-k8s.io": 5,
    "ClusterQueue.kueue.x-k8s.io": 5,
}
RBAC_FILES = (
    "service_account.yaml",
    "role.yaml",
    "role_binding.yaml",
    "leader_election_role.yaml",
    "leader_election_role_binding.yaml",
    "manager_secrets_role.yaml",
    "manager_secrets_role_binding.yaml",
    "metrics_auth_role.yaml",
    "metrics_auth_role_binding.yaml",
)
SYSTEM_NAMESPACES = ("kube-system", KUEUE_NAMESPACE)


def configuration(config: ClusterConfig) -> dict[str, Any]:
    """Kueue's Configuration (config.kueue.x-k8s.io/v1beta2); what is not named here has Kueue's default."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": KUEUE_NAMESPACE,
        "health": {"healthProbeBindAddress": f"{config.address}:{KUEUE_HEALTH_PORT}"},
        "metrics": {"bindAddress": f"{config.address}:{KUEUE_METRICS_PORT}"},
        "webhook": {"host": "127.0.0.1", "port": KUEUE_WEBHOOK_PORT, "certDir": CERTIFICATE_DIRECTORY},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 300, "burst": 500},
        # As in Kueue's own installation; without it one Job waits for the other.
        "controller": {"groupKindConcurrency": CONCURRENCY},
        # A kind that is not served yet is waited for.
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob"]},
        "visibilityServer": {"bindAddress": config.address, "bindPort": KUEUE_VISIBILITY_PORT},
    }


def config_map(config: ClusterConfig) -> dict[str, Any]:
    """The configuration where Kueue's own installation has it, for whoever looks."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kueue-manager-config", "namespace": KUEUE_NAMESPACE},
        "data": {"controller_manager_config.yaml": json.dumps(configuration(config), indent=1)},
    }


def part(config: ClusterConfig, binaries: Binaries) -> Part:
    path = config.root / "kueue.json"
    path.write_text(json.dumps({**configuration(config), **changes(config)}, indent=1))
    kubeconfig = config.pki / "kueue.kubeconfig"
    return Part("kueue", [binaries["kueue"], f"--config={path}", f"--kubeconfig={kubeconfig}", "--zap-log-level=2"])


def changes(config: ClusterConfig) -> dict[str, Any]:
    """Top-level fields of the Configuration that differ in this cluster, as `change` has left them."""
    path = _changes_file(config)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def change(config: ClusterConfig, fields: Mapping[str, Any]) -> None:
    """What Kueue's next start adds to or replaces in its Configuration; none: nothing."""
    _changes_file(config).write_text(json.dumps(dict(fields)))


def _changes_file(config: ClusterConfig) -> Path:
    return config.root / "kueue-changes.json"


def install_certificates(sandbox: Sandbox) -> None:
    """Put the server certificate where Kueue looks; the sandbox has an /etc of its own."""
    pki = sandbox.config.pki
    script = f"""set -e
for folder in {CERTIFICATE_DIRECTORY} {VISIBILITY_DIRECTORY}; do
    mkdir -p $folder
    cp {pki / "kueue-server.crt"} $folder/tls.crt
    cp {pki / "kueue-server.key"} $folder/tls.key
done
"""
    sandbox.run(["sh", "-c", script])


def visibility(config: ClusterConfig) -> list[dict[str, Any]]:
    """Kueue's aggregated API (positions in the queues), as config/components/visibility of its module installs it.

    The Service has no selector but the address of the process.
    """
    rbac, name = "rbac.authorization.k8s.io", "visibility-server"
    meta = {"name": name, "namespace": KUEUE_NAMESPACE}
    group = "visibility.kueue.x-k8s.io"
    port = {"name": "https", "protocol": "TCP"}
    return [
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{name}-auth-reader", "namespace": "kube-system"},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "extension-apiserver-authentication-reader"},
            "subjects": [{"kind": "ServiceAccount", "name": KUEUE_ACCOUNT, "namespace": KUEUE_NAMESPACE}],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"ports": [{**port, "port": 443, "targetPort": KUEUE_VISIBILITY_PORT}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**meta, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [config.address], "conditions": {"ready": True}}],
            "ports": [{**port, "port": KUEUE_VISIBILITY_PORT}],
        },
        *(
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{version}.{group}"},
                "spec": {
                    "group": group,
                    "version": version,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": True,
                    "service": meta,
                },
            }
            for version in ("v1beta1", "v1beta2")
        ),
    ]


def write_kustomization(manifests: Path, target: Path) -> None:
    """Kueue's permissions under the names that its own installation gives them (prefix, namespace)."""
    target.mkdir(parents=True, exist_ok=True)
    for name in RBAC_FILES:
        (target / name).write_bytes((manifests / "rbac" / name).read_bytes())
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": KUEUE_NAMESPACE,
        "namePrefix": KUEUE_ACCOUNT.removesuffix("controller-manager"),
        "resources": list(RBAC_FILES),
    }
    (target / "kustomization.yaml").write_text(json.dumps(document, indent=1))


def webhooks(documents: Iterable[Mapping[str, Any]], ca: bytes) -> list[dict[str, Any]]:
    """Kueue's webhook configurations for the frameworks that run here, called by URL instead of through a Service.

    :raises BuildError: the module's manifests have none that we know
    """
    found = []
    for document in documents:
        kept = [_by_url(hook, ca) for hook in document["webhooks"] if _wanted(hook["clientConfig"]["service"]["path"])]
        if not kept:
            raise BuildError(f"Kueue's {document['kind']} has no webhook for batch/job or Kueue's own kinds")
        name = "kueue-" + document["metadata"]["name"]
        found.append({**document, "metadata": {"name": name}, "webhooks": kept})
    return found


def _wanted(path: str) -> bool:
    frameworks = ("-batch-v1-job", "-jobset-x-k8s-io-v1alpha2-jobset", "-trainer-kubeflow-org-v1alpha1-trainjob")
    return "-kueue-x-k8s-io-" in path or path.endswith(frameworks)


def _by_url(hook: Mapping[str, Any], ca: bytes) -> dict[str, Any]:
    path = hook["clientConfig"]["service"]["path"]
    url = f"https://127.0.0.1:{KUEUE_WEBHOOK_PORT}{path}"
    result = {**hook, "clientConfig": {"url": url, "caBundle": base64.b64encode(ca).decode()}}
    if path.endswith("-batch-v1-job"):
        # As Kueue's own installation has it (config/components/webhook/kustomization.yaml).
        expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(SYSTEM_NAMESPACES)}
        result["namespaceSelector"] = {"matchExpressions": [expression]}
    return result
