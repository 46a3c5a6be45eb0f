"""A real API server with its etcd, and nothing else of a cluster: for what only these two can tell.

    with api_server(folder, apiserver, etcd) as server:
        server.kube().create(...)

It starts in a few seconds. Nothing runs the pods, no controller and no garbage collector is there.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kueue_integration.kube.client import ApiKube
from kueue_integration.kube.credentials import connect
from kueue_integration.kube.resources import Kind, Object

from .errors import LocalClusterError

ADMIN = "admin"
START_S = 180.0


@dataclass(frozen=True)
class ApiServer:
    """`folder` holds the kubeconfigs; `etcd` is the URL of its store; `pid` and `etcd_pid` are the two processes."""

    url: str
    folder: Path
    etcd: str
    etcd_pid: int
    pid: int
    command: Sequence[str]
    _clients: dict[str, ApiKube] = field(default_factory=dict)

    def kubeconfig(self, user: str) -> Path:
        """Of ADMIN, or one of the others."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "certs" / "apiserver.crt")}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "unit", "cluster": cluster}],
                    "users": [{"name": "unit", "user": {"token": _token(user)}}],
                    "contexts": [{"name": "unit", "context": {"cluster": "unit", "user": "unit"}}],
                    "current-context": "unit",
                }
            )
        )
        return path

    def kube(self, user: str = ADMIN) -> ApiKube:
        if user not in self._clients:
            self._clients[user] = connect(str(self.kubeconfig(user)))
        return self._clients[user]


def _token(user: str) -> str:
    return f"token-of-{user.replace(':', '-')}"


@contextlib.contextmanager
def api_server(
    folder: Path, apiserver: str, etcd: str, users: Sequence[str] = (), allowed: Sequence[str] = (), *options: str
) -> Iterator[ApiServer]:
    """Start both and end them.

    :param folder: an empty one for all that they write
    :param apiserver, etcd: the programs; `options` are more of the former
    :param users: whom it knows beside ADMIN; all of them may do the same, with the resources `allowed`
    """
    port, client, peer = _free_ports(3)
    keys = [str(folder / "sa.key"), str(folder / "sa.pub")]
    _run("openssl", "genrsa", "-out", keys[0], "2048")
    _run("openssl", "rsa", "-in", keys[0], "-pubout", "-out", keys[1])
    tokens = [f'{_token(ADMIN)},{ADMIN},0,"system:masters"', *(f"{_token(user)},{user},{user}" for user in users)]
    (folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
    store = f"http://127.0.0.1:{client}"
    mate = f"http://127.0.0.1:{peer}"
    commands = {
        "etcd": [
            etcd, f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={store}", f"--advertise-client-urls={store}",
            f"--listen-peer-urls={mate}", f"--initial-advertise-peer-urls={mate}", f"--initial-cluster=default={mate}",
            "--unsafe-no-fsync", "--log-level=warn",
        ],
        "kube-apiserver": [
            apiserver, f"--etcd-servers={store}", f"--secure-port={port}", "--bind-address=127.0.0.1",
            f"--cert-dir={folder / 'certs'}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={keys[1]}",
            f"--service-account-signing-key-file={keys[0]}", "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC", "--allow-privileged=true", "--profiling=false",
            *options,
        ],
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process(words, folder / f"{name}.log")) for name, words in commands.items()]
        pids = processes[0].pid, processes[1].pid
        server = ApiServer(f"https://127.0.0.1:{port}", folder, store, *pids, commands["kube-apiserver"])
        _until_ready(server, processes)
        if users:
            _allow(server.kube(), users, allowed)
        yield server


@contextlib.contextmanager
def started_again(server: ApiServer) -> Iterator[None]:
    """Start an API server that was killed once more, and end it. Its store has run on."""
    with _process(server.command, server.folder / "kube-apiserver-again.log") as process:
        _until_ready(server, [process])
        yield


def _allow(kube: ApiKube, users: Sequence[str], allowed: Sequence[str]) -> None:
    rules = [{"apiGroups": ["*"], "resources": [*allowed], "verbs": ["*"]}]
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user} for user in users]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "unit"}
    base = "/apis/rbac.authorization.k8s.io/v1"
    meta = {"name": "unit"}
    kube._json("POST", f"{base}/clusterroles", body={"metadata": meta, "rules": rules})
    kube._json("POST", f"{base}/clusterrolebindings", body={"metadata": meta, "roleRef": role, "subjects": subjects})


@contextlib.contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def _until_ready(server: ApiServer, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    context = ssl.create_default_context(cafile=None)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its certificate is not there yet
    end = time.monotonic() + START_S
    while True:
        ready = urllib.request.Request(f"{server.url}/readyz")  # noqa: S310 - https, to ourselves
        with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=5, context=context):  # noqa: S310
            return
        logs = "\n".join(path.read_text()[-2000:] for path in server.folder.glob("*.log"))
        if any(process.poll() is not None for process in processes) or time.monotonic() >= end:
            raise LocalClusterError(f"the API server is not ready after {START_S:.0f} s: {logs}")
        time.sleep(0.1)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def any_of(kind: Kind) -> Object:
    """Return a definition of `kind` that any object at all satisfies."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": kind.group,
        "names": {"kind": kind.name, "plural": kind.plural},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "versions": [version],
    }
    meta = {"name": f"{kind.plural}.{kind.group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}
