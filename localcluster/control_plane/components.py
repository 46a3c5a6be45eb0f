"""etcd, API server, controller manager and scheduler: their command lines (flags: kubernetes.io reference). Pure."""

from __future__ import annotations

from ..config import (
    APISERVER_PORT,
    CONTROLLER_MANAGER_PORT,
    ETCD_PEER_PORT,
    ETCD_PORT,
    SCHEDULER_PORT,
    ClusterConfig,
)
from ..images.gobuild import Binaries
from ..namespaces.processes import Part
from .pki import FRONT_PROXY

ETCD_URL = f"http://127.0.0.1:{ETCD_PORT}"
"""Inside the sandbox's own network namespace: nobody on the host reaches it."""


def etcd(config: ClusterConfig, binaries: Binaries) -> Part:
    peer = f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return Part(
        "etcd",
        [
            binaries["etcd"],
            f"--data-dir={config.root / 'etcd'}",
            f"--listen-client-urls={ETCD_URL}",
            f"--advertise-client-urls={ETCD_URL}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
            # A cluster that is thrown away need not survive a power cut, and fsync is most of etcd's time here.
            "--unsafe-no-fsync",
        ],
    )


def apiserver(config: ClusterConfig, binaries: Binaries) -> Part:
    pki = config.pki
    return Part(
        "kube-apiserver",
        [
            binaries["kube-apiserver"],
            f"--etcd-servers={ETCD_URL}",
            "--bind-address=0.0.0.0",
            f"--secure-port={APISERVER_PORT}",
            f"--advertise-address={config.address}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            # Node names resolve nowhere on this machine: without this, logs and exec fail.
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            f"--service-cluster-ip-range={config.service_subnet}",
            # Aggregated APIs (Kueue's visibility): who may say for whom a request is, and where they listen.
            f"--requestheader-client-ca-file={pki / 'ca.crt'}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
            f"--proxy-client-key-file={pki / 'front-proxy.key'}",
            "--enable-aggregator-routing=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--profiling=false",
        ],
    )


def controller_manager(config: ClusterConfig, binaries: Binaries) -> Part:
    pki = config.pki
    return Part(
        "kube-controller-manager",
        [
            binaries["kube-controller-manager"],
            f"--kubeconfig={pki / 'controller-manager.kubeconfig'}",
            f"--bind-address={config.address}",
            f"--secure-port={CONTROLLER_MANAGER_PORT}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--profiling=false",
            # Its own role may not read the configmap that the look-up wants.
            "--authentication-skip-lookup=true",
        ],
    )


def scheduler(config: ClusterConfig, binaries: Binaries) -> Part:
    return Part(
        "kube-scheduler",
        [
            binaries["kube-scheduler"],
            f"--kubeconfig={config.pki / 'scheduler.kubeconfig'}",
            f"--bind-address={config.address}",
            f"--secure-port={SCHEDULER_PORT}",
            "--leader-elect=false",
            "--profiling=false",
            "--authentication-skip-lookup=true",
        ],
    )
