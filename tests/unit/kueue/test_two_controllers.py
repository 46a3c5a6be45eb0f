"""Two controllers as processes, with the chart's own rights, on a real API server: keys, and a leader that dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api_server import CONTROLLER, ApiServer, any_of, api_server
from rendered import HELM, NO_HELM, controller_env, render

from kueue_integration.adoption import admission_policy
from kueue_integration.contract import job_names
from kueue_integration.controller.key_keeper import server_names
from kueue_integration.errors import ChartError, KubeError
from kueue_integration.kube.client import ApiKube, connect
from kueue_integration.kube.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    LEASE,
    LOCAL_QUEUE,
    POD_TEMPLATE,
    SECRET,
    WORKLOAD,
    Kind,
    Object,
)
from kueue_integration.spec import platform_config

SYSTEM, NAME = job_names.SYSTEM_NAMESPACE, job_names.KEYS_SECRET
ROOT = Path(__file__).parents[3]
RBAC = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
WAIT_S = 120.0
pytestmark = [pytest.mark.skipif(HELM is None, reason=NO_HELM), pytest.mark.timeout(600)]


class Cluster:
    """The chart's objects, and controllers that are processes of this machine."""

    def __init__(self, server: ApiServer, folder: Path, objects: dict[tuple[str, str], Object]) -> None:
        self.kube = server.kube()
        self.config = server.kubeconfig(CONTROLLER)
        self.folder = folder
        self.env = {**os.environ, **controller_env(objects), "PYTHONPATH": f"{ROOT}:{ROOT / 'proxy'}"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}

    def start(self, name: str) -> None:
        api, health = free_ports(2)
        command = [
            *(sys.executable, "-m", "kueue_integration.serve", "--identity", name, "--kubeconfig", str(self.config)),
            *("--namespace", SYSTEM, "--api-port", str(api), "--health-port", str(health)),
        ]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self.env)
        self.ports[name] = api

    def kill(self, name: str) -> None:
        self.running.pop(name).send_signal(signal.SIGKILL)

    def leader(self) -> str:
        lease = self.kube.find(LEASE, SYSTEM, job_names.HOLD_LEASE) or {}
        return str((lease.get("spec") or {}).get("holderIdentity") or "")

    def bundle(self) -> str:
        try:
            return platform_config.load(self.kube).controller_ca
        except ChartError:
            return ""

    def reaches(self, trusted: str, name: str) -> bool:
        """Whether a pod that trusts `trusted` accepts the controller `name`."""
        host = server_names(SYSTEM)[0]
        try:
            with socket.create_connection(("127.0.0.1", self.ports[name]), timeout=10) as plain:
                ssl.create_default_context(cadata=trusted).wrap_socket(plain, server_hostname=host).close()
        except OSError:
            return False
        return True

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not holds():
            logs = {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.log")}
            assert time.monotonic() < end, f"not within {WAIT_S} s: {what}\n{logs}"
            time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    programs = [os.environ.get(f"SINGULARITY_{name}") for name in ("APISERVER", "ETCD")]
    if not all(programs):
        pytest.skip("no API server: `python -m localcluster.prepare --env` says where to find it")
    places = [tmp_path / name for name in ("server", "controllers")]
    for place in places:
        place.mkdir()
    objects = render("adoption.enabled=true", served=("admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",))
    with api_server(places[0], *map(str, programs)) as server:
        admin = server.kube()
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        for crd in map(any_of, (WORKLOAD, CLUSTER_QUEUE, LOCAL_QUEUE, ADMISSION_CHECK)):
            install(admin, crd)
        kinds = ("CustomResourceDefinition", "Secret", "ConfigMap", "Lease", *RBAC)
        for made in objects.values():
            if made["kind"] in kinds and "helm.sh/hook" not in (made["metadata"].get("annotations") or {}):
                install(admin, made)
        found = Cluster(server, places[1], objects)
        try:
            yield found
        finally:
            for process in found.running.values():
                process.terminate()
            for process in found.running.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                process.kill()


def install(admin: ApiKube, obj: Object) -> None:
    group, _, version = obj["apiVersion"].rpartition("/")
    plural = f"{obj['kind'].lower()}s"
    kind = Kind(obj["kind"], group, version, plural, "namespace" in obj["metadata"])
    admin._json("POST", kind.path(obj["metadata"].get("namespace")), body=obj)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def test_two_controllers_share_their_keys_over_deaths_rotations_and_deletions(cluster: Cluster) -> None:
    kube = cluster.kube
    for name in ("a", "b"):
        cluster.start(name)
    cluster.until(lambda: cluster.leader() and cluster.bundle(), "a leader has published keys and settings")
    old = cluster.bundle()
    for name in ("a", "b"):
        cluster.until(lambda name=name: cluster.reaches(old, name), f"{name} shows the same certificate")
    parts = kube.get(POD_TEMPLATE, SYSTEM, admission_policy.NAME)["template"]["spec"]
    assert any(e.get("value") == old for c in parts["initContainers"] for e in c.get("env") or ())

    first = cluster.leader()
    cluster.kill(first)
    other = {"a": "b", "b": "a"}[first]
    cluster.until(lambda: cluster.leader() == other, "the other one leads")
    assert cluster.bundle() == old
    cluster.start(first)
    cluster.until(lambda: cluster.reaches(old, first), "the one that died has the same keys again")

    kube.patch(SECRET, SYSTEM, NAME, {"metadata": {"annotations": {job_names.KEYS_ROTATE: "now"}}})
    cluster.until(lambda: cluster.bundle() != old, "the rotation is published")
    new = cluster.bundle()
    assert new.startswith(old)
    for name in ("a", "b"):
        assert cluster.reaches(old, name) and cluster.reaches(new, name)

    data = kube.get(SECRET, SYSTEM, NAME)["data"]
    kube.delete(SECRET, SYSTEM, NAME)
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME, "namespace": SYSTEM}})
    cluster.until(lambda: kube.get(SECRET, SYSTEM, NAME).get("data") == data, "the keys are written from memory")
    assert cluster.bundle() == new and all(cluster.reaches(old, name) for name in ("a", "b"))


def test_the_controllers_account_reads_no_other_secret(cluster: Cluster) -> None:
    kube = cluster.kube
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other", "namespace": SYSTEM}})
    account = connect(str(cluster.config))
    assert account.get(SECRET, SYSTEM, NAME)["metadata"]["name"] == NAME
    for act in (
        lambda: account.get(SECRET, SYSTEM, "other"),
        lambda: account.list(SECRET, SYSTEM),
        lambda: account.patch(SECRET, SYSTEM, "other", {"data": {}}),
        lambda: account.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "n", "namespace": SYSTEM}}),
    ):
        with pytest.raises(KubeError, match="403"):
            act()

