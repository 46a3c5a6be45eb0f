"""Real faults on the local cluster, each of which says that it fired.

faults = Faults(stage, namespace)
faults.kill_pod(pod)                    # every process of the pod, SIGKILL: out of memory, a node that died
faults.kubectl("drain", node, ...)
with faults.api_server_down(15):        # for at least so many seconds; `hang`: it takes connections, says nothing
    ...
with faults.suspend_refused(job):       # somebody else's policy lets Kueue wait
    ...
with faults.controller_refused(job):    # somebody else's policy refuses what our controller writes on the job
    ...
with faults.unguarded():                # the annotations of Jobs are not guarded: anybody may write them
    ...
faults.second_controller(identity)      # one more controller process, on this machine
faults.count                            # fault -> how often it was seen to have fired
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pod_processes

from kueue_integration.contract import job_names
from kueue_integration.drain import nodes
from kueue_integration.errors import KubeError
from kueue_integration.guard import names as guards
from kueue_integration.kube.resources import ADMISSION_POLICY, ADMISSION_POLICY_BINDING, NODE, POD, Object, is_true
from localcluster import cluster, registry
from localcluster.addons.chart import Chart
from localcluster.config import ClusterConfig, cache_dir
from localcluster.control_plane import components
from localcluster.control_plane.kubectl import for_cluster
from localcluster.control_plane.probe import http_ok
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from localcluster.images import gobuild
from localcluster.namespaces import processes, sandbox
from localcluster.namespaces.sandbox import Sandbox
from localcluster.status import health_urls

API_SERVER = "kube-apiserver"
TIMEOUT_S = 600.0
PRIVILEGES = os.environ.get("SINGULARITY_TEST_PRIVILEGES", "auto")
"""Of the chart, where no test says another: with its default every test that says nothing runs in user namespaces."""


class Faults:
    """`count` is what a test asserts: no fault that did not happen passes for one that was survived."""

    def __init__(self, stage: Stage, namespace: str) -> None:
        self.stage, self.kube, self.namespace = stage, stage.kube, namespace
        self.count: Counter[str] = Counter()
        self._compactions = 0

    @property
    def config(self) -> ClusterConfig:
        found = registry.find(self.stage.name)
        assert found is not None
        return found

    @property
    def box(self) -> Sandbox:
        found = sandbox.find(self.config)
        assert found is not None
        return found

    def kubectl(self, *words: str) -> str:
        """kubectl as an administrator would type it; its output."""
        done = self._kubectl(*words)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def uncordon_all(self) -> None:
        for node in self.kube.list(NODE):
            if nodes.cordoned(node):
                self.kubectl("uncordon", node["metadata"]["name"])

    def _kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.stage.cluster.kubectl), "--kubeconfig", str(self.stage.cluster.kubeconfig), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)

    def kill_pod(self, pod: Object) -> None:
        """SIGKILL to every process of the pod, the sandbox's own included, with no word to anybody."""
        victims = [int(entry.name) for entry, _ in pod_processes.of_pods([pod])]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.count["killed process"] += 1
        assert victims, f"pod {pod['metadata']['name']} has no process"

    def kill_part(self, name: str) -> None:
        """SIGKILL to a part of the cluster (a kubelet, a containerd)."""
        process = processes.running(self.box, name)
        assert process is not None, f"{name} does not run"
        self.box.run(["kill", "-KILL", str(process.pid)])
        wait_for(lambda: processes.running(self.box, name) is None, f"{name} is gone", 60)
        self.count[f"killed {name}"] += 1

    @contextlib.contextmanager
    def suspend_refused(self, job: str) -> Iterator[None]:
        """Somebody else's admission policy refuses to suspend `job`: Kueue tries again until the block ends."""
        suspend = ("patch", "job", job, "--dry-run=server", "--type=merge", '-p={"spec":{"suspend":true}}')
        with self._refused(job, "!object.spec.suspend || oldObject.spec.suspend", suspend):
            self.count["suspend refused"] += 1
            yield

    @contextlib.contextmanager
    def controller_refused(self, job: str) -> Iterator[None]:
        """Somebody else's admission policy refuses all that our controller writes on `job`."""
        account = f"system:serviceaccount:{job_names.SYSTEM_NAMESPACE}:{job_names.CONTROLLER_NAME}"
        write = ("annotate", "job", job, "--dry-run=server", "--overwrite", f"--as={account}", "a.example/b=c")
        with self._refused(job, f"request.userInfo.username != {account!r}", write):
            self.count["controller refused"] += 1
            yield

    @contextlib.contextmanager
    def _refused(self, job: str, expression: str, probe: tuple[str, ...]) -> Iterator[None]:
        """A policy of somebody else's on `job`, in force when the kubectl command `probe` is refused by it."""
        about = {"name": f"refuse-{job}"}
        kind = {"apiVersion": ADMISSION_POLICY.api_version, "metadata": about}
        rule = {
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["UPDATE"]}
                ]
            },
            "matchConditions": [{"name": "job", "expression": f"object.metadata.name == {job!r}"}],
            "validations": [{"expression": expression}],
        }
        self.kube.create({**kind, "kind": ADMISSION_POLICY.name, "spec": rule})
        bound = {"policyName": about["name"], "validationActions": ["Deny"]}
        self.kube.create({**kind, "kind": ADMISSION_POLICY_BINDING.name, "spec": bound})
        try:
            refused = lambda: about["name"] in self._kubectl("-n", self.namespace, *probe).stderr  # noqa: E731
            wait_for(refused, f"`kubectl {' '.join(probe)}` is refused", TIMEOUT_S, tick_s=0.1)
            yield
        finally:
            self.kube.delete(ADMISSION_POLICY_BINDING, None, about["name"])
            self.kube.delete(ADMISSION_POLICY, None, about["name"])

    @contextlib.contextmanager
    def unguarded(self) -> Iterator[None]:
        """Without the policy that keeps everybody but the controller from its annotations."""
        name = guards.ANNOTATIONS
        binding = self.kube.get(ADMISSION_POLICY_BINDING, None, name)
        self.kube.delete(ADMISSION_POLICY_BINDING, None, name)
        try:
            probe = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "x", "namespace": "default"}}
            probe["metadata"]["annotations"] = {job_names.ANN_ATTEMPT: "1"}
            container = {"name": "x", "image": "x"}
            probe["spec"] = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
            wait_for(lambda: not self._refuses(probe), "the API server has forgotten the policy", TIMEOUT_S, tick_s=0.1)
            self.count["unguarded"] += 1
            yield
        finally:
            meta = {k: v for k, v in binding["metadata"].items() if k in ("name", "labels", "annotations")}
            self.kube.create({**binding, "metadata": meta})
        wait_for(lambda: self._refuses(probe), "the policy is in force again", TIMEOUT_S, tick_s=0.1)

    def upgrade(self, **values: bool | float | str | list[Any]) -> None:
        """Values of the chart, `a__b=1` for `a.b: 1`; the controller has them afterwards."""
        binaries = gobuild.build_all(cache_dir(), lambda text: None)
        Chart(self.config, binaries, for_cluster(self.config, binaries), self.config.root).upgrade(**values)

    def _refuses(self, manifest: Object) -> bool:
        try:
            self.kube.create(manifest, dry_run=True)
        except KubeError:
            return True
        return False

    @contextlib.contextmanager
    def node_down(self, name: str) -> Iterator[None]:
        """The power of a node goes: its kubelet, its containerd and all processes of its pods; up again afterwards."""
        for part in (f"kubelet-{name}", f"containerd-{name}"):
            self.kill_part(part)
        for pod in self.kube.list(POD):
            if (pod.get("spec") or {}).get("nodeName") == name and pod["status"].get("phase") == "Running":
                self.kill_pod(pod)
        try:
            yield
        finally:
            cluster.up(self.stage.name, progress=lambda text: None, only="cluster")
            ready = lambda: is_true(self.kube.get(NODE, None, name), "Ready")  # noqa: E731
            wait_for(ready, f"node {name} is ready again", TIMEOUT_S)

    # --- the API server -----------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def api_server_down(self, seconds: float, *, hang: bool = False, forget: bool = False) -> Iterator[None]:
        """Down for at least `seconds`, counted from its last answer; up and ready again afterwards.

        :param hang: stopped, not killed: requests are accepted and never answered
        :param forget: etcd forgets its history meanwhile, so that every watch that is taken up again gets 410 Gone
        """
        process = processes.running(self.box, API_SERVER)
        assert process is not None
        self.box.run(["kill", "-STOP" if hang else "-KILL", str(process.pid)])
        end = time.monotonic() + seconds
        try:
            yield
            if forget:
                self._compact()
            # Not a wait for anything to happen: the length of the outage is the fault.
            wait_for(lambda: time.monotonic() >= end, "the end of the outage", seconds + 60)
            try:
                self.kube.get_path("/version")
            except KubeError:
                self.count["API server down"] += 1
        finally:
            if hang:
                self.box.run(["kill", "-CONT", str(process.pid)])
            else:
                binaries = gobuild.build_all(cache_dir(), lambda text: None)
                processes.start(self.box, components.apiserver(self.config, binaries))
            url, ca = health_urls(self.config)[API_SERVER], self.config.pki / "ca.crt"
            wait_for(lambda: http_ok(url, ca=ca), "the API server is ready again", TIMEOUT_S, tick_s=0.2)

    def _compact(self) -> None:
        """etcd's own HTTP gateway: throw away every revision but the last."""
        post = (
            "import json, urllib.request as u\n"
            f"url = {components.ETCD_URL!r}\n"
            "ask = lambda path, body: json.load(u.urlopen(url + path, json.dumps(body).encode(), timeout=30))\n"
            "now = ask('/v3/kv/range', {'key': 'Lw=='})['header']['revision']\n"
            "ask('/v3/kv/compaction', {'revision': now, 'physical': True})\n"
            "print(now)\n"
        )
        assert int(self.box.run([sys.executable, "-I", "-c", post])) > 0
        self.count["history forgotten"] += 1

    # --- the controller -----------------------------------------------------------------------------------------------
    def controllers(self) -> list[Object]:
        """Running pods of the controller."""
        pods = self.kube.list(POD, job_names.SYSTEM_NAMESPACE)
        return [p for p in pods if p["status"].get("phase") == "Running" and not p["metadata"].get("deletionTimestamp")]

    def metric(self, name: str, where: str = "") -> float:
        """A metric, summed over the controllers that the cluster runs, or of the one at `where` (host:port)."""
        found = list[str]()
        for address in [where] if where else [f"{pod['status']['podIP']}:8080" for pod in self.controllers()]:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            found += [line.rpartition(" ")[2] for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(map(float, found))

    @contextlib.contextmanager
    def second_controller(self, identity: str, folder: Path, skew_s: float = 0) -> Iterator[str]:
        """One more controller process until the end of the block; gives host:port of its metrics.

        :param skew_s: its clock is ahead by so many seconds
        """
        (folder / "sitecustomize.py").write_text(
            f"import time\n_right = time.time\ntime.time = lambda: _right() + {float(skew_s)!r}\n"
        )
        kubeconfig = self._kubeconfig_of_controller(folder)
        ports = [_free_port(), _free_port()]
        command = [
            *(sys.executable, "-m", "kueue_integration.serve", "--identity", identity),
            *("--kubeconfig", str(kubeconfig)),
            *("--namespace", job_names.SYSTEM_NAMESPACE, "--api-port", str(ports[0]), "--health-port", str(ports[1])),
        ]
        log = folder / "second-controller.log"
        where = f"127.0.0.1:{ports[1]}"
        with log.open("wb") as output:
            env = {**os.environ, "PYTHONPATH": str(folder)}
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)
        try:
            alive = "a second controller that is ready"
            wait_for(lambda: process.poll() is None and _ready(where), alive, 120, detail=log.read_text)
            self.count["second controller"] += 1
            yield where
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()
            process.wait(60)

    def _kubeconfig_of_controller(self, folder: Path) -> Path:
        """Its annotations may be written by nobody else."""
        token = self.kubectl(
            "-n", job_names.SYSTEM_NAMESPACE, "create", "token", job_names.CONTROLLER_NAME, "--duration=2h"
        )
        found = json.loads(self.stage.cluster.kubeconfig.read_text())
        found["users"] = [{**user, "user": {"token": token.strip()}} for user in found["users"]]
        path = folder / "kubeconfig"
        path.write_text(json.dumps(found))
        return path


def _ready(where: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{where}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
