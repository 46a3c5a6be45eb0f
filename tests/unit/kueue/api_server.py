"""A real API server with its etcd, and nothing else of a cluster: for policies, which only an API server can evaluate.

    with api_server(folder) as server:
        server.kube(KUEUE).patch_job(...)        # as Kueue's controller
        server.kube("tenant", "edit").create(...)

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rendered import render

from kueue_integration.contract import job_names
from kueue_integration.errors import AlreadyExists, KubeError
from kueue_integration.kube import server_time
from kueue_integration.kube.client import MERGE_PATCH, ApiKube, connect
from kueue_integration.kube.resources import JOB, JOBSET, NAMESPACE, TRAINJOB, WORKLOAD, Kind, Object

ADMIN = "admin"
KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"
CONTROLLER = "system:serviceaccount:singularity-system:singularity-controller"
MULTIKUEUE = "system:serviceaccount:singularity-system:singularity-multikueue"
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
TENANT = "tenant"
OTHERS = (KUEUE, CONTROLLER, MULTIKUEUE, JOB_CONTROLLER, TENANT)
"""All of them may do the same: what stops one of them is a policy."""
ALLOWED = (
    "namespaces", "configmaps", "pods", "pods/status", "pods/ephemeralcontainers", "pods/exec", "pods/attach",
    "jobs", "jobs/status", "jobprogresses", "jobsets", "trainjobs", "workloads", "leases",
)  # fmt: skip
START_S = 90.0
TEAM = "team"
"""Its namespace."""
TRAINS = "trains"
"""One with the label that puts the guard of pods in force."""
_LABEL = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
NAMESPACES: dict[str, dict[str, str]] = {job_names.SYSTEM_NAMESPACE: {}, TEAM: {}, TRAINS: _LABEL, "before": {}}
_INSTALLED = (
    "CustomResourceDefinition", "Lease", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
)  # fmt: skip
"""Of the chart's objects: nothing else has a part in an admission."""


@dataclass(frozen=True)
class ApiServer:
    """`folder` holds the kubeconfigs."""

    url: str
    folder: Path
    _clients: dict[str, ApiKube] = field(default_factory=dict)

    def kubeconfig(self, user: str) -> Path:
        """Of one of ADMIN and OTHERS."""
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
def api_server(folder: Path, apiserver: str, etcd: str) -> Iterator[ApiServer]:
    """`apiserver`, `etcd`: the programs; `folder`: an empty one for all that they write."""
    port, client, peer = _free_ports(3)
    keys = [str(folder / "sa.key"), str(folder / "sa.pub")]
    _run("openssl", "genrsa", "-out", keys[0], "2048")
    _run("openssl", "rsa", "-in", keys[0], "-pubout", "-out", keys[1])
    users = [f'{_token(ADMIN)},{ADMIN},0,"system:masters"', *(f"{_token(u)},{u},{u}" for u in OTHERS)]
    (folder / "tokens.csv").write_text("\n".join(users) + "\n")
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
        ],
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process(words, folder / f"{name}.log")) for name, words in commands.items()]
        server = ApiServer(f"https://127.0.0.1:{port}", folder)
        _until_ready(server, processes)
        _allow(server.kube())
        yield server


def _allow(kube: ApiKube) -> None:
    rules = [{"apiGroups": ["*"], "resources": [*ALLOWED], "verbs": ["*"]}]
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user} for user in OTHERS]
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
    context = ssl._create_unverified_context()
    end = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.url}/readyz", timeout=5, context=context):
            return
        logs = "\n".join(path.read_text()[-2000:] for path in server.folder.glob("*.log"))
        assert all(process.poll() is None for process in processes), logs
        assert time.monotonic() < end, f"the API server is not ready after {START_S} s: {logs}"
        time.sleep(0.1)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


class Policies:
    """The chart's policies in force on `server`, with namespaces to try them in."""

    def __init__(self, server: ApiServer, *sets: str, values: str = "") -> None:
        self.server = server
        self.admin = server.kube()
        objects = render(*sets, values=values)
        for name, labels in NAMESPACES.items():
            self._make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
            account = {"name": "default", "namespace": name}
            self._make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})  # pods need it
        for made in (*(_crd(kind) for kind in (JOBSET, TRAINJOB, WORKLOAD)), *objects.values()):
            if made["kind"] in _INSTALLED:
                self._make(made)
        first = self.job("until-it-holds")
        self.eventually(lambda: self.suspend(first), "the hold is in force")
        self.eventually(lambda: self._refused(first), "the annotations are guarded")
        host = {"containers": [{"name": "c", "image": "c"}], "hostPID": True}
        bad = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad", "namespace": TRAINS}, "spec": host}
        job = {**first, "metadata": {"name": "bad", "namespace": TRAINS}, "spec": {"template": {"spec": host}}}
        job["spec"]["template"]["spec"] = {**host, "restartPolicy": "Never"}
        for manifest in (bad, job):
            self.eventually(lambda manifest=manifest: self._refuses(manifest), f"{manifest['kind']}s are guarded")

    def _refused(self, job: Object) -> bool:
        try:
            self.annotate(job, ADMIN, {job_names.ANN_ATTEMPT: "1"})
        except KubeError:
            return True
        return False

    def _refuses(self, manifest: Object) -> bool:
        try:
            self.admin.create(manifest, dry_run=True)
        except KubeError:
            return True
        return False

    def label(self, namespace: str) -> None:
        """From now on this namespace trains."""
        self.admin.patch(NAMESPACE, None, namespace, {"metadata": {"labels": _LABEL}})

    def _make(self, obj: Object) -> None:
        with contextlib.suppress(AlreadyExists):
            group, _, version = obj["apiVersion"].rpartition("/")
            where = obj["metadata"].get("namespace")
            kind = Kind(obj["kind"], group, version, _plural(obj["kind"]), where is not None)
            self.admin._json("POST", kind.path(where), body=obj)

    def eventually(self, holds: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
        """The API server reads policies and their parameters from copies that are a moment behind."""
        end = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
            time.sleep(0.05)

    # --- Jobs ---------------------------------------------------------------------------------------------------------
    def create(self, name: str, annotations: Mapping[str, str], user: str = ADMIN) -> Object:
        """A managed Job of `user` that runs."""
        labels = {job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: "q"}
        meta = {"name": name, "namespace": TEAM, "labels": labels, "annotations": dict(annotations)}
        container = {"name": "main", "image": "any:1", "command": ["true"]}
        pod = {"restartPolicy": "Never", "containers": [container]}
        manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": {"spec": pod}}}
        return self.server.kube(user).create(manifest)

    def annotate(self, job: Object, user: str, annotations: Mapping[str, str | None]) -> Object:
        """Patch the annotations of the Job as `user`; None removes one."""
        body = {"metadata": {"annotations": annotations}}
        return self.server.kube(user).patch_job(TEAM, job["metadata"]["name"], body)

    def apply(self, manifest: Object, user: str) -> Object:
        """Server-side apply of a Job, as `kubectl apply --server-side` does it."""
        path = JOB.path(TEAM, manifest["metadata"]["name"])
        query = {"fieldManager": "kubectl", "force": "true"}
        return self.server.kube(user)._json(
            "PATCH", path, body=manifest, query=query, content_type="application/apply-patch+yaml"
        )

    # --- the hold -----------------------------------------------------------------------------------------------------
    def renew(self, ago: float = 0.0, overdue: str = "") -> None:
        """The Lease as the controller writes it, `ago` seconds ago."""
        lease = self.admin.get_lease(job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE)
        lease["metadata"]["annotations"] = {job_names.ANN_OVERDUE: overdue} if overdue else {}
        lease["spec"] = {"renewTime": server_time.to_micro(time.time() - ago), "leaseDurationSeconds": 10}
        self.admin.update_lease(lease)

    def job(self, name: str, **annotations: str) -> Object:
        """A managed Job that runs and is held."""
        self.renew()
        with contextlib.suppress(AlreadyExists):
            self.create(name, {job_names.ANN_HOLD: job_names.HOLD_ARMED})
        return self.annotate({"metadata": {"name": name}}, CONTROLLER, annotations)

    def suspend(self, job: Object, user: str = KUEUE) -> str:
        """What the API server says to the suspend; "" when it goes through. Nothing is written."""
        path = JOB.path(TEAM, job["metadata"]["name"])
        try:
            self.server.kube(user)._json(
                "PATCH", path, body={"spec": {"suspend": True}}, query={"dryRun": "All"}, content_type=MERGE_PATCH
            )
        except KubeError as error:
            return str(error)
        return ""


def _plural(kind: str) -> str:
    return f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"


def _crd(kind: Kind) -> Object:
    """Any object at all may be one of this kind."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": kind.group,
        "names": {"kind": kind.name, "plural": kind.plural},
        "scope": "Namespaced",
        "versions": [version],
    }
    meta = {"name": f"{kind.plural}.{kind.group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}
