"""Certificates that strict clients accept, with the users that Kubernetes and our policy know."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from pathlib import Path

import pytest

from localcluster.config import ClusterConfig
from localcluster.control_plane import pki


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ClusterConfig:
    config = ClusterConfig("unit", 5, tmp_path_factory.mktemp("state"))
    config.root.mkdir()
    pki.create(config)
    return config


def openssl(*arguments: str | Path) -> str:
    return subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def test_chain_is_valid_by_rfc_5280(config: ClusterConfig) -> None:
    """-x509_strict is what Python 3.13 and newer ask for by default."""
    for certificate in pki.certificates(config):
        path = config.pki / f"{certificate.name}.crt"
        assert "OK" in openssl("verify", "-x509_strict", "-CAfile", config.pki / "ca.crt", path)


def test_kueue_is_the_service_account_that_the_policy_matches(config: ClusterConfig) -> None:
    subject = openssl("x509", "-in", config.pki / "kueue.crt", "-noout", "-subject", "-nameopt", "multiline")
    assert "system:serviceaccount:kueue-system:kueue-controller-manager" in subject
    assert "system:serviceaccounts:kueue-system" in subject


def test_api_server_is_valid_for_every_way_to_it(config: ClusterConfig) -> None:
    names = openssl("x509", "-in", config.pki / "apiserver.crt", "-noout", "-ext", "subjectAltName")
    for wanted in ("127.0.0.1", config.address, str(config.service_subnet[1]), "kubernetes.default.svc"):
        assert wanted in names


def test_leaf_certificates_sign_nothing(config: ClusterConfig) -> None:
    for certificate in pki.certificates(config):
        text = openssl("x509", "-in", config.pki / f"{certificate.name}.crt", "-noout", "-ext", "basicConstraints")
        assert "CA:FALSE" in text


def test_kubeconfig_holds_everything(config: ClusterConfig, tmp_path: Path) -> None:
    document = json.loads(config.kubeconfig.read_text())
    user = document["users"][0]["user"]
    for name, data in (("crt", user["client-certificate-data"]), ("key", user["client-key-data"])):
        (tmp_path / name).write_bytes(base64.b64decode(data))
    ssl.create_default_context().load_cert_chain(tmp_path / "crt", tmp_path / "key")
    assert document["clusters"][0]["cluster"]["server"] == f"https://{config.address}:6443"
    assert config.kubeconfig.stat().st_mode & 0o077 == 0
    assert (config.pki / "ca.key").stat().st_mode & 0o077 == 0


def test_second_create_changes_nothing(config: ClusterConfig) -> None:
    before = {path.name: path.read_bytes() for path in config.pki.iterdir()}
    pki.create(config)
    assert {path.name: path.read_bytes() for path in config.pki.iterdir()} == before
