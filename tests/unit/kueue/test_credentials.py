"""How a pod reaches its API server, and what a program imports for that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from api_server import ApiServer

from kueue_integration.errors import KubeError, PlatformError
from kueue_integration.kube import credentials
from kueue_integration.kube.resources import NAMESPACE

Pod = Callable[[str], Path]


@pytest.fixture
def pod(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    """Make this process one of a pod of `server`, with the token of the user that is named; returns its folder."""

    def start(user: str) -> Path:
        at = urlsplit(server.url)
        (tmp_path / "ca.crt").write_bytes((server.folder / "certs" / "apiserver.crt").read_bytes())
        (tmp_path / "token").write_text(f"token-of-{user}\n")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(at.hostname))
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(at.port))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setattr(credentials, "IN_POD", tmp_path)
        return tmp_path

    return start


def test_a_pod_reads_its_new_token(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pod("admin")
    kube = credentials.connect()
    assert kube.has_token and "default" in {n["metadata"]["name"] for n in kube.list(NAMESPACE)}
    (folder / "token").write_text("token-of-nobody")
    assert kube.list(NAMESPACE), "the old one is good for a while"
    monkeypatch.setattr(credentials, "TOKEN_READ_S", 0.0)
    with pytest.raises(KubeError, match="Unauthorized"):
        kube.list(NAMESPACE)
    (folder / "token").write_text("token-of-admin")
    assert kube.list(NAMESPACE)
    (folder / "token").write_text("")
    assert kube.list(NAMESPACE), "a file that is being written is no new token"
    (folder / "token").unlink()
    assert kube.list(NAMESPACE)


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_its_files_says_which(pod: Pod, missing: str) -> None:
    (pod("admin") / missing).unlink()
    with pytest.raises(PlatformError, match=missing):
        credentials.connect()


def test_the_controller_imports_no_models_of_the_kubernetes_client() -> None:
    """They take more memory than all its other code."""
    code = "import sys, kueue_integration.serve; print(sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "aiohttp" in done.stdout and "kubernetes" not in done.stdout
