"""A local cluster with fake nodes (kwok): API server, Kueue and controller are real, only nodes and pods are not."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from kueue_integration.contract import job_names
from kueue_integration.errors import AlreadyExists, KubeError
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import CLUSTER_QUEUE, KUEUE_GROUP, KUEUE_VERSION, LEASE
from localcluster import registry
from localcluster.config import ClusterConfig, cache_dir
from localcluster.control_plane.kubectl import Kubectl, for_cluster
from localcluster.demo.stage import Stage
from localcluster.images import gobuild
from localcluster.namespaces import processes, sandbox

from .model import Say
from .preemption import stage

API = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
FLAVOR = "fake"
SCHEMA = "bench-controller"
CREATORS = 8
PROGRESS_S = 15.0
PATIENCE_S = 300.0
AGAIN_S = 0.5
CONTROL_PLANE = ("kube-apiserver", "etcd", "kueue")
TAINT = "kwok.x-k8s.io/node"
KWOK: Mapping[str, str] = MappingProxyType({"type": "kwok"})
"""Labels of a node that kwok looks after."""
T = TypeVar("T")


@dataclass(frozen=True)
class Fleet:
    """:param config: of the cluster"""

    kube: Kube
    stage: Stage
    config: ClusterConfig
    kubectl: Kubectl

    def apply(self, documents: Sequence[dict[str, Any]]) -> None:
        for start in range(0, len(documents), 50):
            self.kubectl.apply(documents[start : start + 50])

    def create(self, objects: Iterable[dict[str, Any]]) -> None:
        """As fast as the API server takes them."""
        with ThreadPoolExecutor(CREATORS) as pool:
            for _ in pool.map(lambda obj: patiently(lambda: self._created(obj)), objects):
                pass

    def _created(self, obj: dict[str, Any]) -> None:
        with suppress(AlreadyExists):  # the answer to an earlier try was lost
            self.kube.create(obj)

    def stop(self, queues: Iterable[str], policy: str) -> None:
        """Set ClusterQueues' stopPolicy: None, Hold or HoldAndDrain."""
        body = {"spec": {"stopPolicy": policy}}
        with ThreadPoolExecutor(CREATORS) as pool:
            for _ in pool.map(lambda q: patiently(lambda: self.kube.patch(CLUSTER_QUEUE, None, q, body)), queues):
                pass

    def cpu(self) -> float:
        """CPU seconds that API server, etcd and Kueue have used so far."""
        used = 0.0
        for entry in Path("/proc").iterdir():
            try:
                program, *arguments = (entry / "cmdline").read_text().split("\0")
                if Path(program).name in CONTROL_PLANE and any(str(self.config.root) in one for one in arguments):
                    used += cpu_seconds(int(entry.name))
            except (OSError, ValueError):
                continue
        return used

    def requests(self) -> Counter[str]:
        """Requests of our controller that the API server has taken so far, as `patch jobs`; watches and Lease left out.

        The difference of two of them is what was asked in between.
        """
        pattern = re.compile(r"^apiserver_flowcontrol_dispatched_requests_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
        found: Counter[str] = Counter()
        for labels, number in pattern.findall(self.kubectl("get", "--raw", "/metrics")):
            schema = re.search(rf'flow_schema="{SCHEMA}-([a-z]+)-([a-z]+)"', labels)
            if schema:
                found[f"{schema[1]} {schema[2]}"] += int(float(number))
        return found

    def controller_pid(self) -> int:
        """Of the controller that leads, as this machine numbers it. Raises RuntimeError, KubeError."""
        lease = self.kube.get(LEASE, job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE)
        pod = f"SINGULARITY_POD={lease['spec'].get('holderIdentity')}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if (
                    b"kueue_integration.serve" in (entry / "cmdline").read_bytes()
                    and pod in (entry / "environ").read_bytes().split(b"\0")
                    and self.config.cgroup in (entry / "cgroup").read_text()
                ):
                    return int(entry.name)
            except (OSError, ValueError):
                continue
        raise RuntimeError(f"no controller leads in cluster {self.config.name}")


def patiently(call: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Again and again while the API server does not answer. Raises KubeError."""
    end = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except KubeError as error:
            if not error.transient or time.monotonic() > end:
                raise
            time.sleep(AGAIN_S)


@contextmanager
def fleet(
    nodes: int, say: Say, dags: Path | None = None, airflow_env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Fleet]:
    """A cluster with `nodes` fake nodes, gone afterwards; with an Airflow that reads `dags`, if they are given."""
    cache = cache_dir()
    folder = gobuild.build(gobuild.KWOK, cache, say)
    with stage(say, dags, airflow_env) as on:
        config = registry.find(on.name)
        box = sandbox.find(config) if config is not None else None
        if config is None or box is None:
            raise RuntimeError(f"cluster {on.name} does not run")
        made = Fleet(on.kube, on, config, for_cluster(config, gobuild.build_all(cache, say)))
        stages = config.root / "kwok.yaml"
        stages.write_text("\n---\n".join(path.read_text() for path in sorted(folder.glob("*.yaml"))))
        options = [
            *(f"--kubeconfig={config.kubeconfig}", f"--config={stages}", "--manage-all-nodes=false"),
            # A lease of 120 s is renewed every 30 s: the node controller waits longer than that.
            *("--manage-nodes-with-label-selector=type=kwok", "--node-lease-duration-seconds=120"),
        ]
        processes.start(box, processes.Part("kwok", [str(folder / "kwok"), *options]))
        made.apply([flavor(FLAVOR), *_flow_schemas()])
        made.create(node(f"fake-{n}") for n in range(nodes))
        give_cpu(made.controller_pid())
        say(f"{nodes} fake nodes are created")
        yield made


def give_cpu(pid: int) -> None:
    """A CPU of its own for the controller, if it wants one: with the chart's 50m it waits behind all else here."""
    hierarchy = re.search(r"^\d+:(?:cpu|cpu,cpuacct):(/.*)$", Path(f"/proc/{pid}/cgroup").read_text(), re.MULTILINE)
    if hierarchy is None:
        return  # control groups version 2: nothing of the kind was seen there
    folder = Path("/sys/fs/cgroup/cpu") / hierarchy[1].lstrip("/")
    while (folder / "cpu.shares").exists() and folder != Path("/sys/fs/cgroup/cpu"):
        (folder / "cpu.shares").write_text("16384")
        folder = folder.parent


def node(name: str, labels: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Kept alive by kwok. Without a status of its own it gets one from kwok's stages."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**KWOK, **labels}, "annotations": {TAINT: "fake"}},
        "spec": {"taints": [{"key": TAINT, "value": "fake", "effect": "NoSchedule"}]},
    }


def flavor(name: str, labels: Mapping[str, str] = KWOK) -> dict[str, Any]:
    """Of the fake nodes that have these labels."""
    spec = {"nodeLabels": {**labels}, "tolerations": [{"key": TAINT, "operator": "Exists"}]}
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def _flow_schemas() -> list[dict[str, Any]]:
    """Make the API server itself count the controller's requests, by verb and resource."""
    return [
        _flow_schema(verb, resource)
        for verb in ("get", "list", "create", "update", "patch", "delete")
        for resource in ("jobs", "pods", "workloads", "admissionchecks")
    ]


def _flow_schema(verb: str, resource: str) -> dict[str, Any]:
    who = {"namespace": job_names.SYSTEM_NAMESPACE, "name": "singularity-controller"}
    what = {
        "verbs": [verb],
        "apiGroups": ["", "batch", KUEUE_GROUP],
        "resources": [resource, f"{resource}/status"],
        "namespaces": ["*"],
        "clusterScope": True,
    }
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": f"{SCHEMA}-{verb}-{resource}"},
        "spec": {
            "priorityLevelConfiguration": {"name": "workload-high"},
            "matchingPrecedence": 400,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": [{"kind": "ServiceAccount", "serviceAccount": who}], "resourceRules": [what]}],
        },
    }


def queue(name: str, cohort: str, cpu: int, borrow: int, fenced: bool, namespace: str) -> list[dict[str, Any]]:
    """A ClusterQueue as in Kueue's scheduler benchmark, and a LocalQueue of the same name."""
    resource = {"name": "cpu", "nominalQuota": str(cpu), **({"borrowingLimit": str(borrow)} if borrow else {})}
    spec: dict[str, Any] = {
        "namespaceSelector": {},
        # Kueue's benchmark lets them preempt each other; here nobody would take an evicted Workload back.
        "preemption": {"reclaimWithinCohort": "Never", "withinClusterQueue": "Never"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": FLAVOR, "resources": [resource]}]}],
    }
    if cohort:
        spec["cohortName"] = cohort
    if fenced:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}
    local = {"name": name, "namespace": namespace}
    return [
        {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": API, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": name}},
    ]


def cpu_seconds(pid: int) -> float:
    """That the process has used so far. Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Usage:
    """Memory and CPU of a process while the block runs."""

    WINDOW_S = 5.0

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.cores: list[float] = []
        """CPU seconds per second, window by window."""
        self.peak_mb = 0.0

    def _run(self) -> None:
        before, at = cpu_seconds(self._pid), time.monotonic()
        while not self._stop.wait(self.WINDOW_S):
            now, cpu = time.monotonic(), cpu_seconds(self._pid)
            self.cores.append(round((cpu - before) / (now - at), 3))
            before, at = cpu, now

    def __enter__(self) -> Usage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self._pid}/status").read_text())
        self.peak_mb = int(found[1]) / 1000 if found else 0.0


def until(count: Callable[[], int], goal: int, what: str, timeout_s: float, say: Say) -> bool:
    """Wait until `count()` reaches `goal`, saying now and then how far it is; False when the time is over."""
    began = said = time.monotonic()
    while (reached := count()) < goal:
        now = time.monotonic()
        if now - began > timeout_s:
            say(f"{what}: {reached} of {goal} when its {timeout_s:.0f} s were over")
            return False
        if now - said > PROGRESS_S:
            said = now
            say(f"{what}: {reached} of {goal} after {now - began:.0f} s, {reached / (now - began):.1f}/s")
        time.sleep(0.1)
    return True
