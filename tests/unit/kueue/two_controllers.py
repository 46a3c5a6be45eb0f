"""Two controllers as processes, with the chart's own rights and the hold's policy, on a real API server.

    with two_controllers(folder) as cluster:
        cluster.start("a")
        cluster.start("b")
        cluster.until_led()
        cluster.kill(cluster.leader())

Nothing runs pods. See `held_jobs` for jobs that run there as far as the controllers can tell.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from api_server import CONTROLLER, ApiServer, any_of, api_server, plural
from rendered import HELM, NO_HELM, controller_env, render, rendered
from waits import until

from kueue_integration.adoption.review import PATH
from kueue_integration.contract import job_names
from kueue_integration.controller.key_keeper import server_names
from kueue_integration.errors import ChartError
from kueue_integration.kube.client import ApiKube
from kueue_integration.kube.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    LEASE,
    LOCAL_QUEUE,
    WORKLOAD,
    Kind,
    Object,
)
from kueue_integration.spec import platform_config

SYSTEM = job_names.SYSTEM_NAMESPACE
ROOT = Path(__file__).parents[3]
INSTALLED = (
    "CustomResourceDefinition", "Secret", "ConfigMap", "Lease", "ClusterRole", "ClusterRoleBinding", "Role",
    "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingWebhookConfiguration",
)  # fmt: skip
"""Of the chart's objects; of the policies the hold's alone: guards would want to see whole pods."""
SHIFTED = """
import runpy, sys, time
ahead, right = float(sys.argv.pop(1)), time.time
time.time = lambda: right() + ahead
runpy.run_module("kueue_integration.serve", run_name="__main__")
"""


class Cluster:
    """The chart's objects, and controllers that are processes of this machine."""

    def __init__(self, server: ApiServer, folder: Path, objects: dict[tuple[str, str], Object]) -> None:
        self.server, self.kube = server, server.kube()
        self.config = server.kubeconfig(CONTROLLER)
        self.folder = folder
        self.env = {**os.environ, **controller_env(objects), "PYTHONPATH": f"{ROOT}:{ROOT / 'proxy'}"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        """Of those that run, and of the one that was killed last."""

    def start(self, name: str, ahead_s: float = 0.0) -> None:
        """:param ahead_s: of the time, for its clock"""
        api, health = free_ports(2)
        program = ("-c", SHIFTED, str(ahead_s)) if ahead_s else ("-m", "kueue_integration.serve")
        command = [
            *(sys.executable, *program, "--identity", name, "--kubeconfig", str(self.config)),
            *("--namespace", SYSTEM, "--api-port", str(api), "--health-port", str(health)),
        ]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self.env)
        self.ports[name] = api

    def kill(self, name: str) -> None:
        """As the kernel does it: no handler runs, and the Lease is not given up."""
        self.ports = {known: port for known, port in self.ports.items() if known in self.running}
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(120)

    def until_led(self) -> None:
        """Every controller that runs answers pods, and one of them leads."""
        self.until(lambda: self.leader() in self.running and self.bundle(), "a leader has published keys and settings")
        for name in self.running:
            self.until(lambda name=name: self.reaches(self.bundle(), name), f"{name} answers")

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

    def adopts(self, trusted: str, name: str, job: Object) -> Object:
        """What the controller `name` answers when the API server, which trusts `trusted`, asks it to adopt a Job."""
        review = {"request": {"uid": "u", "namespace": job["metadata"]["namespace"], "object": job}}
        host = server_names(SYSTEM)[0]
        with socket.create_connection(("127.0.0.1", self.ports[name]), timeout=10) as plain:
            asking = http.client.HTTPConnection(host)
            asking.sock = ssl.create_default_context(cadata=trusted).wrap_socket(plain, server_hostname=host)
            asking.request("POST", PATH, body=json.dumps(review))
            answer: Object = json.loads(asking.getresponse().read())["response"]
            asking.close()
        return answer

    def until(self, holds: Callable[[], object], what: str) -> None:
        logs = lambda: str({path.name: path.read_text()[-2000:] for path in self.folder.glob("*.log")})  # noqa: E731
        until(holds, what, pace_s=0.1, detail=logs)


@contextlib.contextmanager
def two_controllers(folder: Path, *sets: str, namespaces: Sequence[str] = ()) -> Iterator[Cluster]:
    """An API server with the chart's objects; no controller runs yet. Skips the test where something is missing.

    :param sets: values of the chart, as for Helm's `--set`
    :param namespaces: made beside the chart's own
    """
    if HELM is None:
        pytest.skip(NO_HELM)
    programs = [os.environ.get(f"SINGULARITY_{name}") for name in ("APISERVER", "ETCD")]
    if not all(programs):
        pytest.skip("no API server: `python -m localcluster.prepare --env` says where to find it")
    places = [folder / name for name in ("server", "controllers")]
    for place in places:
        place.mkdir()
    values = ("adoption.enabled=true", *sets)
    objects = render(*values)
    with api_server(places[0], *map(str, programs)) as server:
        admin = server.kube()
        for name in (SYSTEM, *namespaces):
            admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for crd in map(any_of, (WORKLOAD, CLUSTER_QUEUE, LOCAL_QUEUE, ADMISSION_CHECK)):
            install(admin, crd)
        for made in rendered(*values):
            hook = "helm.sh/hook" in (made["metadata"].get("annotations") or {})
            policy = made["kind"].startswith("ValidatingAdmissionPolicy")
            held = made["metadata"]["name"].startswith(job_names.HOLD_LEASE)
            for each in made.get("webhooks") or ():  # no Service leads to these processes
                each["namespaceSelector"] = {"matchLabels": {"nobody": "has"}}
            if made["kind"] in INSTALLED and not hook and (held or not policy):
                install(admin, made)
        found = Cluster(server, places[1], objects)
        try:
            yield found
        finally:
            for process in found.running.values():
                process.terminate()
            for process in found.running.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(120)
                process.kill()


def install(admin: ApiKube, obj: Object) -> None:
    group, _, version = obj["apiVersion"].rpartition("/")
    kind = Kind(obj["kind"], group, version, plural(obj["kind"]), "namespace" in obj["metadata"])
    admin._json("POST", kind.path(obj["metadata"].get("namespace")), body=obj)


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to connections: nobody else gets one until a controller listens there."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("", port := random.randrange(15_000, 29_000)))
                found.append(port)
        return found
