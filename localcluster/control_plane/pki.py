"""Certificates of a cluster, made once by the openssl program (elliptic curve keys: a few milliseconds each)."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import CLUSTER_DOMAIN, NODES, ClusterConfig
from ..shell import run

DAYS = 365
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
FRONT_PROXY = "front-proxy-client"
"""As whom the API server speaks for a user to an aggregated API; the one name that may do so."""
KUEUE_NAMESPACE = "kueue-system"
KUEUE_ACCOUNT = "kueue-controller-manager"
KUEUE_USER = f"system:serviceaccount:{KUEUE_NAMESPACE}:{KUEUE_ACCOUNT}"


@dataclass(frozen=True)
class Certificate:
    """:param user: Kubernetes user (CN)
    :param groups: Kubernetes groups (O)
    :param names: subject alternative names
    """

    name: str
    user: str
    groups: Sequence[str] = ()
    names: Sequence[str] = ()

    @property
    def subject(self) -> str:
        return "".join(f"/O={group}" for group in self.groups) + f"/CN={self.user}"


def certificates(config: ClusterConfig) -> list[Certificate]:
    """Every certificate that the cluster's own CA signs. Users and groups: Kubernetes' default RBAC bindings."""
    service = str(config.service_subnet[1])
    local = ["IP:127.0.0.1", f"IP:{config.address}", "DNS:localhost"]
    domains = ("", ".default", ".default.svc", f".default.svc.{CLUSTER_DOMAIN}")
    kubernetes = [f"DNS:kubernetes{domain}" for domain in domains]
    return [
        Certificate("apiserver", "kube-apiserver", names=[*local, f"IP:{service}", *kubernetes]),
        Certificate("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"]),
        Certificate("front-proxy", FRONT_PROXY),
        Certificate("admin", "admin", ["system:masters"]),
        Certificate("controller-manager", "system:kube-controller-manager"),
        Certificate("scheduler", "system:kube-scheduler"),
        Certificate("kube-proxy", "system:kube-proxy"),
        Certificate("coredns", "system:coredns"),
        # Kueue runs as a process here, yet has to be known by the name that it has in a cluster: policies match it.
        Certificate("kueue", KUEUE_USER, ["system:serviceaccounts", f"system:serviceaccounts:{KUEUE_NAMESPACE}"]),
        Certificate("kueue-server", "kueue", names=local),
        *(Certificate(f"node-{node.name}", f"system:node:{node.name}", ["system:nodes"]) for node in NODES),
    ]


def create(config: ClusterConfig) -> None:
    """Keys, certificates and kubeconfigs below `config.pki`; what is there is kept.

    :raises CommandError: openssl fails
    """
    directory = config.pki
    if (directory / "complete").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    settings = directory / "openssl.cnf"
    settings.write_text("[req]\ndistinguished_name = dn\n[dn]\n")
    base: list[str | Path] = ["openssl", "req", "-new", "-x509", "-config", settings, "-days", str(DAYS), *NEW_KEY]
    run(
        [
            *base,
            *("-subj", "/CN=singularity-local-ca", "-addext", "basicConstraints=critical,CA:TRUE"),
            # Python 3.13 and newer refuse a chain without key usage and key identifiers (VERIFY_X509_STRICT).
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign"),
            *("-addext", "subjectKeyIdentifier=hash"),
            *("-keyout", directory / "ca.key", "-out", directory / "ca.crt"),
        ]
    )
    signer = ["-CA", str(directory / "ca.crt"), "-CAkey", str(directory / "ca.key")]
    for certificate in certificates(config):
        names = certificate.names or [f"DNS:{certificate.name}"]
        run(
            [
                *base,
                *signer,
                *("-subj", certificate.subject, "-addext", f"subjectAltName={','.join(names)}"),
                *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=critical,digitalSignature"),
                *("-addext", "subjectKeyIdentifier=hash", "-addext", "authorityKeyIdentifier=keyid"),
                *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
                *("-keyout", directory / f"{certificate.name}.key", "-out", directory / f"{certificate.name}.crt"),
            ]
        )
        write_kubeconfig(config, certificate.name, directory / f"{certificate.name}.kubeconfig")
    run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", directory / "sa.key"])
    run(["openssl", "pkey", "-in", directory / "sa.key", "-pubout", "-out", directory / "sa.pub"])
    write_kubeconfig(config, "admin", config.kubeconfig)
    (directory / "complete").touch()


def write_kubeconfig(config: ClusterConfig, name: str, path: Path) -> None:
    """Self-contained kubeconfig (JSON, which is YAML) for the certificate `name`."""

    def data(file: str) -> str:
        return base64.b64encode((config.pki / file).read_bytes()).decode()

    context = f"singularity-local-{config.name}"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": context, "cluster": {"server": config.server, "certificate-authority-data": data("ca.crt")}}
        ],
        "users": [
            {
                "name": context,
                "user": {
                    "client-certificate-data": data(f"{name}.crt"),
                    "client-key-data": data(f"{name}.key"),
                },
            }
        ],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1) + "\n")
