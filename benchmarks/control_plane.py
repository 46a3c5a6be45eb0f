"""What a large cluster costs the controller, and whether anything there keeps it from renewing the Lease.

A real API server with its etcd, and the controller as a process that believes to be in a pod. Jobs have twenty attempts
and four pods each, nodes are as long as those of a cloud and are written by their kubelets every five minutes, half as
many jobs again wait. All policies look at that every half minute. A webhook of somebody else takes 25 s for what the
controller writes on one job, and then on more jobs than it has workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.kube import server_time
from kueue_integration.kube.client import ApiKube
from kueue_integration.kube.resources import LEASE
from localcluster.api_server import ADMIN, ApiServer, api_server
from localcluster.prepare import prepare

from .controllers import certificate, started
from .fleet import cpu_seconds
from .harness import FaultyProxy
from .large_cluster import PODS, Large, heartbeats
from .model import Group, Measured, Options, Say, Spec
from .running_objects import job, namespace_of
from .slow_webhook import SLOW_S, SlowWebhook

SIZES = ((0, 0), (500, 1000), (2000, 5000))
"""Running jobs and nodes."""
SLOW_JOBS = 24
REST_S, PLAN_S, SETTLE_S = 60.0, 90.0, 30.0
LIMIT_S = 600.0
POLICIES: dict[str, Any] = {
    "everySeconds": 30,
    "prices": {"a3-highgpu": 3.0, "cheap": 1.0},
    **{name: {"mode": "propose"} for name in (
        "cordon", "health", "introspection", "attainedService", "defragmentation", "lending", "marginalGain",
        "timeSharing",
    )},
}  # fmt: skip
PROGRAM = """
import sys
from pathlib import Path
from kueue_integration.kube import credentials
credentials.IN_POD = Path(sys.argv.pop(1))
from kueue_integration import serve
sys.exit(serve.main())
"""


# --- the controller, and what is between it and the API server --------------------------------------------------------
@dataclass(frozen=True)
class Running:
    """`relay` is between it and the API server."""

    pid: int
    relay: FaultyProxy
    health: int

    def passed(self) -> int:
        """Bytes of both directions as they are on the wire."""
        return int(self.relay.received + self.relay.sent)

    def rss_mb(self, what: str = "VmRSS") -> float:
        found = re.search(rf"{what}:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) / 1000 if found else 0.0

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    def leads(self) -> bool:
        try:
            return "singularity_leader 1.0" in self.metrics()
        except OSError:
            return False

    def plans(self) -> tuple[int, float]:
        """How many were made, and the seconds that they took together."""
        text = self.metrics()
        found = [re.search(rf'singularity_task_seconds_{part}{{task="plan"}} (\S+)', text) for part in ("count", "sum")]
        return (int(float(found[0][1])), float(found[1][1])) if found[0] and found[1] else (0, 0.0)


@contextlib.contextmanager
def controller(server: ApiServer, folder: Path, policies: Mapping[str, Any]) -> Iterator[Running]:
    """One with the chart's defaults but for `policies`, which leads when it is lent."""
    folder.mkdir()
    at = urlsplit(server.url)
    relay = FaultyProxy(at.port or 0)
    (folder / "ca.crt").write_bytes((server.folder / "certs" / "apiserver.crt").read_bytes())
    (folder / "token").write_text(_token(server))
    env = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    env |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(urlsplit(relay.url).port)}
    env |= {"SINGULARITY_PLANNER": json.dumps(policies)}
    secret = certificate(folder / "secret", "peer-key")
    api, health = 19_643, 18_280
    words = ["--identity", "bench", "--secret-dir", str(secret), "--api-port", str(api), "--health-port", str(health)]
    program = [sys.executable, "-c", PROGRAM, str(folder), *words, "--log-level", "WARNING"]
    try:
        with started(program, folder / "controller.log", env) as pid:
            found = Running(pid, relay, health)
            _until(found.leads, f"the controller leads: {folder / 'controller.log'}")
            yield found
    finally:
        relay.close()


def _token(server: ApiServer) -> str:
    known = json.loads(server.kubeconfig(ADMIN).read_text())
    return str(known["users"][0]["user"]["token"])


def _until(holds: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(0.5)


# --- the Lease --------------------------------------------------------------------------------------------------------
class Renewals:
    """When the Lease was renewed while the block ran, by its own words."""

    def __init__(self, kube: ApiKube) -> None:
        self._kube = kube
        self.at: list[float] = []
        self.holders: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            with contextlib.suppress(KubeError):
                spec = self._kube.get(LEASE, job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE).get("spec") or {}
                at = server_time.parse(str(spec["renewTime"])) if spec.get("renewTime") else 0.0
                if at and at not in self.at[-1:]:
                    self.at.append(at)
                    self.holders.add(str(spec.get("holderIdentity")))

    def __enter__(self) -> Renewals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def gap_s(self) -> float:
        """The longest time between two of them. Raises RuntimeError: there were hardly any."""
        if len(self.at) < 5:
            raise RuntimeError(f"the Lease was renewed {len(self.at)} times")
        return max(later - earlier for earlier, later in pairwise(self.at))


def slow_writes(cluster: Large, folder: Path, jobs: int, say: Say) -> float:
    """The longest time between two renewals while the controller waits for `jobs` writes of 25 s each."""
    hook = SlowWebhook(folder)
    base = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    cluster.kube._json("POST", base, body=hook.configuration())
    try:
        chosen = range(jobs)
        hook.slow = {str(job(number)["metadata"]["name"]) for number in chosen}
        time.sleep(2.0)  # the API server takes the configuration from a copy
        with Renewals(cluster.kube) as renewals:
            for number in chosen:  # the controller puts back what somebody has removed
                body = {"metadata": {"annotations": {job_names.ANN_ATTEMPT: None}}}
                cluster.kube.patch_job(namespace_of(number), str(job(number)["metadata"]["name"]), body)
            _until(lambda: hook.asked >= min(jobs, 8), "the controller writes", 60.0)
            time.sleep(SLOW_S + 5.0)
        say(
            f"{jobs} slow writes: {hook.asked} asked, {len(renewals.at)} renewals, longest gap {renewals.gap_s():.2f} s"
        )
    finally:
        cluster.kube._json("DELETE", f"{base}/slow.example.com", body={})
        hook.close()
    return renewals.gap_s()


# --- figures ----------------------------------------------------------------------------------------------------------
@dataclass
class Seen:
    """What a controller has shown of one size."""

    jobs: int
    nodes: int
    policies: bool
    rss_mb: float = 0.0
    peak_mb: float = 0.0
    cores: float = 0.0
    bytes_min: float = 0.0
    plans: int = 0
    plan_s: float = 0.0
    gaps: dict[str, float] = field(default_factory=dict)

    @property
    def row(self) -> str:
        pods, what = self.jobs * PODS, "all policies" if self.policies else "defaults"
        return (
            f"{self.jobs} jobs, {pods} pods, {self.nodes} nodes, {what}: {self.peak_mb:.0f} MB, {self.cores:.2f} cores"
        )


def look(server: ApiServer, cluster: Large, folder: Path, policies: bool, say: Say, rest_s: float) -> Seen:
    """One controller over what is there."""
    seen = Seen(cluster.full, cluster.nodes, policies)
    with controller(server, folder, POLICIES if policies else {}) as running, heartbeats(cluster):
        time.sleep(SETTLE_S)
        cpu, passed, began, planned = cpu_seconds(running.pid), running.passed(), time.monotonic(), running.plans()
        with Renewals(cluster.kube) as renewals:
            time.sleep(PLAN_S if policies else rest_s)
        took = time.monotonic() - began
        seen.cores, seen.bytes_min = (cpu_seconds(running.pid) - cpu) / took, (running.passed() - passed) * 60 / took
        plans = running.plans()
        seen.plans, seen.plan_s = plans[0] - planned[0], plans[1] - planned[1]
        seen.gaps["plan" if policies else "rest"] = renewals.gap_s()
        if not policies and cluster.full > SLOW_JOBS:
            for jobs in (1, SLOW_JOBS):
                seen.gaps[f"{jobs} slow"] = slow_writes(cluster, folder / f"hook-{jobs}", jobs, say)
        seen.rss_mb, seen.peak_mb = running.rss_mb(), running.rss_mb("VmHWM")
    say(f"{seen}")
    return seen


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    ready = prepare(say)
    found: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="control-plane-") as name:
        folder = Path(name)
        (folder / "api").mkdir()
        with api_server(folder / "api", str(ready.apiserver), str(ready.etcd)) as server:
            cluster = Large(server)
            for jobs, nodes in SIZES:
                size = (jobs // 10, nodes // 10) if options.quick else (jobs, nodes)
                cluster.reach(*size)
                say(f"{size[0]} jobs run, {size[0] // 2} wait, {size[1]} nodes")
                ways = (True, False) if (jobs, nodes) == SIZES[-1] else (True,)
                found += [look(server, cluster, folder / f"c-{jobs}-{on}", on, say, REST_S) for on in ways]
    return figures(found)


def figures(found: Sequence[Seen]) -> Mapping[str, Measured]:
    busy, rest = found[-2:]
    table = "; ".join(seen.row for seen in found)
    gaps = {**busy.gaps, **rest.gaps}
    slow = [gaps.get(f"{jobs} slow", 0.0) for jobs in (1, SLOW_JOBS)]
    one = f"one write of {SLOW_S:.0f} s {slow[0]:.2g} s, {SLOW_JOBS} of them {slow[1]:.2g} s"
    each = busy.plan_s / busy.plans if busy.plans else 0.0
    plans = f"{busy.plans} plans of {busy.jobs + busy.jobs // 2} jobs, {each:.2g} s each, {gaps.get('plan', 0):.2g} s"
    followed = f"of nodes that nobody asks about nothing; while a policy follows them {busy.bytes_min / 1e6:.3g} MB"
    return {
        "lease_gap_s": Measured(max(gaps.values()), [gaps], f"the Lease lasts 10 s; {one}; {plans}"),
        "controller_rss_mb_2000_jobs": Measured(busy.peak_mb, [s.peak_mb for s in found], f"peaks: {table}"),
        "controller_cores_2000_jobs": Measured(busy.cores, [s.cores for s in found], "policies look every 30 s"),
        "api_bytes_min": Measured(rest.bytes_min, [rest.bytes_min, busy.bytes_min], followed),
    }


GROUP = Group(
    "control plane",
    "an API server",
    [
        Spec("lease_gap_s", "s", "<= 3", "longest pause of the Lease: slow writes, plans of 3,000 jobs"),
        Spec(
            "controller_rss_mb_2000_jobs",
            "MB",
            "<= 400",
            "the controller's memory: 2,000 jobs, 8,000 pods, 5,000 nodes",
        ),
        Spec("controller_cores_2000_jobs", "cores", "", "its processor then, with all policies"),
        Spec("api_bytes_min", "bytes/min", "", "what it reads and writes at rest with 5,000 nodes"),
    ],
    measure,
)
