"""What running jobs cost while nothing happens to them: bytes in etcd, processor time, and the wait for a commit.

A real API server with its etcd, and the controller as a process of its own. Objects are what Kueue and Kubernetes would
have made; nobody runs the pods. Each job's sidecar is played by the sidecar's own client, over TLS, with a token of its
pod, and each speaks from an address of its own. The API server compacts nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import resource
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import aiohttp

from kueue_integration.contract import job_names
from kueue_integration.kube.client import ApiKube
from kueue_integration.kube.resources import (
    CLUSTER_QUEUE,
    JOB,
    JOBSET,
    LEASE,
    LOCAL_QUEUE,
    POD,
    PROGRESS,
    TRAINJOB,
    WORKLOAD,
)  # fmt: skip
from localcluster.api_server import ApiServer, any_of, api_server
from localcluster.prepare import prepare
from singularity_proxy.errors import ControllerError, StaleAttemptError
from singularity_proxy.protocol import names, page
from singularity_proxy.protocol.messages import CheckpointRef, CommitRequest, Progress, Reading
from singularity_proxy.sidecar.config import Config
from singularity_proxy.sidecar.controller_client import Controller

from .controllers import certificate, started
from .fleet import cpu_seconds
from .model import Group, Measured, Options, Say, Spec
from .running_objects import ATTEMPTS, STORE, job, job_status, namespace_of, pod, pod_status, workload
from .stats import median

SIZES = (500, 2000)
CREATORS = 8
IDLE_S, NOTES_S, COMMITS_S = 30.0, 60.0, 60.0
COMMIT_EVERY_S = 1.0
SCRAPES, SCRAPE_EVERY_S = 5, 2.0
LIMIT_S = 600.0
EVERY_S = 1.0
"""The sidecar looks at its ranks so often."""


@dataclass
class Seen:
    """What one size has shown."""

    jobs: int
    etcd_mb_min: float = 0.0
    cpu_cores: float = 0.0
    idle_cores: float = 0.0
    note_cpu_ms: float = 0.0
    notes_per_s: float = 0.0
    refused: int = 0
    rss_mb: float = 0.0
    commits: Sequence[float] = ()
    scrapes: Sequence[float] = ()


class Sidecar(Controller):
    """The client of the leader of job `number`, and what it has told."""

    def __init__(self, config: Config, number: int) -> None:
        super().__init__(config)
        self.number, self._about = number, config
        self.notes = self.refused = 0
        self._began = time.monotonic()

    async def __aenter__(self) -> Sidecar:
        own = f"127.{1 + self.number // 60_000}.{self.number // 250 % 250}.{1 + self.number % 250}"
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=8, local_addr=(own, 0))
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    def _step(self) -> int:
        return ATTEMPTS * 100 + 1 + int(time.monotonic() - self._began)

    async def listen(self) -> None:
        """Wait for commands, of which there are none."""
        while True:
            try:
                await self.next_command(0)
            except (ControllerError, StaleAttemptError):
                self.refused += 1
                await asyncio.sleep(1.0)

    def note(self) -> Progress:
        about, step = self._about, self._step()
        words = Reading(step * 10, 90_000, 2.5 - step / 1e5)
        since = time.monotonic() - self._began + 100
        return Progress(
            about.namespace, about.job, ATTEMPTS, "running", step, ATTEMPTS * 100, since, reading=words
        )  # fmt: skip

    async def report(self) -> None:
        """Tell a step a second, as often as the controller wants to hear."""
        every = EVERY_S
        await asyncio.sleep(random.uniform(0, 8))
        while True:
            began = time.monotonic()
            try:
                every = max(EVERY_S, (await self.progress(self.note())).every_s)
                self.notes += 1
            except (ControllerError, StaleAttemptError):
                self.refused += 1
            await asyncio.sleep(max(0.0, began + every - time.monotonic()))

    async def save(self, sequence: int) -> float:
        """Commit a checkpoint after which the job trains on. Return the seconds that it took."""
        about, step = self._about, self._step()
        number = page.generation(ATTEMPTS, sequence)
        ref = CheckpointRef(f"bench-{sequence}-{self.number}", number, ATTEMPTS, step, 1, STORE, 9, 9, 0.0, "a" * 64)
        began = time.monotonic()
        request = CommitRequest(about.namespace, about.job, ATTEMPTS, ref, 1.0, step - 1, goes_on=True)
        await self.commit(request, began + 60)
        return time.monotonic() - began


# --- the cluster ----------------------------------------------------------------------------------------------------
class Cluster:
    """The API server with as many running jobs as were asked for."""

    def __init__(self, server: ApiServer) -> None:
        self._server, self._kube = server, server.kube()
        self.tokens: list[str] = []
        self.uids: list[str] = []
        for kind in (JOBSET, TRAINJOB, WORKLOAD, CLUSTER_QUEUE, LOCAL_QUEUE, PROGRESS):
            self._post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", any_of(kind))
        for name in sorted({job_names.SYSTEM_NAMESPACE, *map(namespace_of, range(max(SIZES)))}):
            self._post("/api/v1/namespaces", {"metadata": {"name": name}})
            self._post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        lease = {"metadata": {"name": job_names.HOLD_LEASE}, "spec": {}}
        self._post(LEASE.path(job_names.SYSTEM_NAMESPACE), lease)

    def _post(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        found: Mapping[str, object] = self._kube._json("POST", path, body=dict(body))
        return found

    def grow(self, jobs: int) -> None:
        """Have that many jobs."""
        new = range(len(self.tokens), jobs)
        with ThreadPoolExecutor(CREATORS) as pool:
            self.tokens += pool.map(self._one, new)

    def _one(self, number: int) -> str:
        """Make job `number` with all that is around it. Return the token of its pod."""
        kube: ApiKube = self._kube
        made = kube.create(job(number))
        where, name, uid = namespace_of(number), made["metadata"]["name"], made["metadata"]["uid"]
        kube.create(workload(number, uid))
        kube.patch(JOB, where, name, {"status": job_status()}, subresource="status")
        its = kube.create(pod(number, made))
        kube.patch(POD, where, its["metadata"]["name"], {"status": pod_status()}, subresource="status")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": its["metadata"]["name"], "uid": its["metadata"]["uid"]}
        spec = {"audiences": [names.TOKEN_AUDIENCE], "expirationSeconds": 7200, "boundObjectRef": bound}
        reply = kube._json("POST", f"/api/v1/namespaces/{where}/serviceaccounts/default/token", body={"spec": spec})
        return str(reply["status"]["token"])

    def bytes_in_etcd(self) -> float:
        text = _read(f"{self._server.etcd}/metrics")
        found = re.search(r"^etcd_mvcc_db_total_size_in_use_in_bytes (\S+)", text, re.MULTILINE)
        if found is None:
            raise RuntimeError("etcd does not tell its size")
        return float(found[1])


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@dataclass(frozen=True)
class Serving:
    """The controller's process."""

    pid: int
    api: int
    health: int
    ca: str

    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    def rss_mb(self) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        return int(found[1]) / 1024 if found is not None else 0.0

    def metrics(self) -> str:
        return _read(f"http://127.0.0.1:{self.health}/metrics")


@contextlib.contextmanager
def serving(server: ApiServer, folder: Path, api: int, health: int) -> Iterator[Serving]:
    secret = certificate(folder / "secret", "peer-key")
    arguments = ["--kubeconfig", str(server.kubeconfig("admin")), "--identity", "bench", "--secret-dir", str(secret),
                 "--api-port", str(api), "--health-port", str(health), "--log-level", "WARNING"]  # fmt: skip
    with started([sys.executable, "-m", "kueue_integration.serve", *arguments], folder / "controller.log") as pid:
        yield Serving(pid, api, health, (secret / "tls.crt").read_text())


# --- one size -------------------------------------------------------------------------------------------------------
async def until(holds: object, what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError(f"not within {LIMIT_S:.0f} s: {what}")
        await asyncio.sleep(0.5)


def leads(controller: Serving) -> bool:
    try:
        return "singularity_leader 1.0" in controller.metrics()
    except OSError:
        return False


@contextlib.asynccontextmanager
async def connected(cluster: Cluster, controller: Serving, folder: Path) -> AsyncIterator[list[Sidecar]]:
    """The sidecars of all jobs. `folder` gets their tokens."""
    async with contextlib.AsyncExitStack() as stack:
        sidecars = []
        for number, token in enumerate(cluster.tokens):
            path = folder / f"token-{number}"
            path.write_text(token)
            name = str(job(number)["metadata"]["name"])
            config = Config(
                namespace_of(number), name, f"{name}-0", "10.0.0.1", 0, ATTEMPTS, 1, 1, STORE,
                f"https://127.0.0.1:{controller.api}", controller.ca, path,
            )  # fmt: skip
            sidecars.append(await stack.enter_async_context(Sidecar(config, number)))
        yield sidecars


async def play(cluster: Cluster, controller: Serving, folder: Path, say: Say) -> Seen:
    jobs = len(cluster.tokens)
    seen = Seen(jobs)
    await until(lambda: leads(controller), "the controller leads")
    async with connected(cluster, controller, folder) as sidecars:
        tasks = [asyncio.ensure_future(each.listen()) for each in sidecars]
        try:
            say(f"{jobs} jobs: their pods listen")
            await asyncio.sleep(IDLE_S)
            idle, began = controller.cpu_s(), time.monotonic()
            await asyncio.sleep(IDLE_S)
            seen.idle_cores = (controller.cpu_s() - idle) / (time.monotonic() - began)
            tasks += [asyncio.ensure_future(each.report()) for each in sidecars]
            await until(lambda: min(each.notes for each in sidecars) >= 2, "each job was heard twice")
            say(f"{jobs} jobs: all report")
            await _notes(cluster, controller, sidecars, seen)
            say(f"{jobs} jobs: {seen}")
            await _commits(controller, sidecars, seen)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return seen


async def _notes(cluster: Cluster, controller: Serving, sidecars: Sequence[Sidecar], seen: Seen) -> None:
    told = sum(each.notes for each in sidecars), sum(each.refused for each in sidecars)
    stored, cpu, began = cluster.bytes_in_etcd(), controller.cpu_s(), time.monotonic()
    await asyncio.sleep(NOTES_S)
    took = time.monotonic() - began
    seen.cpu_cores = (controller.cpu_s() - cpu) / took
    seen.etcd_mb_min = (cluster.bytes_in_etcd() - stored) / 1e6 * 60 / took
    seen.notes_per_s = (sum(each.notes for each in sidecars) - told[0]) / took
    seen.refused = sum(each.refused for each in sidecars) - told[1]
    seen.note_cpu_ms = (seen.cpu_cores - seen.idle_cores) / seen.notes_per_s * 1000
    seen.rss_mb = controller.rss_mb()


async def _commits(controller: Serving, sidecars: Sequence[Sidecar], seen: Seen) -> None:
    """One commit after the other while all report, and a few scrapes."""
    commits: list[float] = []
    scrapes: list[float] = []
    end = time.monotonic() + COMMITS_S
    while time.monotonic() < end:
        began = time.monotonic()
        chosen = sidecars[-1 - len(commits) * 37 % len(sidecars)]
        commits.append(await chosen.save(len(sidecars) + len(commits)))  # higher than those of a smaller size
        await asyncio.sleep(max(0.0, began + COMMIT_EVERY_S - time.monotonic()))
    for _ in range(SCRAPES):
        began = time.monotonic()
        await asyncio.to_thread(controller.metrics)
        scrapes.append(time.monotonic() - began)
        await asyncio.sleep(SCRAPE_EVERY_S)  # sooner, the controller gives the same text again
    seen.commits, seen.scrapes = [round(each, 3) for each in commits], [round(each, 3) for each in scrapes]


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    sizes = [max(1, size // 10) if options.quick else size for size in SIZES]
    more_files(sizes[-1] * 8 + 1000)
    ready = prepare(say)
    found = []
    with tempfile.TemporaryDirectory(prefix="running-jobs-") as name:
        folder = Path(name)
        (folder / "api").mkdir()
        compacts = ("--etcd-compaction-interval=0s",)
        with api_server(folder / "api", str(ready.apiserver), str(ready.etcd), (), (), *compacts) as server:
            cluster = Cluster(server)
            for number, size in enumerate(sizes):
                say(f"{size} jobs are made")
                cluster.grow(size)
                place = folder / str(size)
                place.mkdir()
                with serving(server, place, 19_443 + number, 18_080 + number) as controller:
                    found.append(asyncio.run(play(cluster, controller, place, say)))
                say(f"{size} jobs: {found[-1]}")
    return figures(found)


def more_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))


def figures(found: Sequence[Seen]) -> Mapping[str, Measured]:
    few, many = found
    both = f"{ATTEMPTS} attempts each"
    p95 = quantiles(many.commits, n=20)[-1] if len(many.commits) > 1 else many.commits[0]
    rates = f"{few.notes_per_s:.0f} and {many.notes_per_s:.0f} notes/s, {few.refused} and {many.refused} refused"
    made = {}
    for seen in found:
        size = "500" if seen is few else "2000"
        made[f"running_jobs_etcd_mb_min_{size}"] = Measured(seen.etcd_mb_min, [seen.etcd_mb_min], f"{both}; {rates}")
        idle = f"{seen.jobs} jobs, {seen.idle_cores:.2f} without notes; RSS {seen.rss_mb:.0f} MB; {rates}"
        made[f"running_jobs_cpu_cores_{size}"] = Measured(seen.cpu_cores, [seen.idle_cores, seen.cpu_cores], idle)
    each = f"{few.jobs} jobs {few.note_cpu_ms:.2g}"
    made["note_cpu_ms"] = Measured(many.note_cpu_ms, [few.note_cpu_ms, many.note_cpu_ms], f"TLS and HTTP in; {each}")
    worst = f"{len(many.commits)} commits among {many.jobs} jobs: median {median(many.commits):.2g}"
    small = f"{few.jobs} jobs: median {median(few.commits):.2g}"
    made["commit_p95_s"] = Measured(p95, many.commits, f"{worst}, worst {max(many.commits):.2g} s; {small}")
    scrape = f"while {many.jobs} jobs report; {few.jobs} jobs {median(few.scrapes):.2g} s"
    made["metrics_scrape_s"] = Measured(median(many.scrapes), many.scrapes, scrape)
    return made


GROUP = Group(
    "running jobs",
    "root, an API server",
    [
        Spec("running_jobs_etcd_mb_min_500", "MB/min", "<= 5", "what 500 running jobs write in a minute"),
        Spec("running_jobs_etcd_mb_min_2000", "MB/min", "<= 20", "the same of 2,000"),
        Spec("running_jobs_cpu_cores_500", "cores", "<= 0.15", "the controller's processor under 500 running jobs"),
        Spec("running_jobs_cpu_cores_2000", "cores", "<= 0.5", "the same under 2,000"),
        Spec("note_cpu_ms", "ms", "<= 0.3", "the controller's processor for one note of 2,000 jobs"),
        Spec("commit_p95_s", "s", "<= 1", "how long a commit takes while 2,000 jobs report"),
        Spec("metrics_scrape_s", "s", "<= 0.2", "how long a scrape takes while 2,000 jobs report"),
    ],
    measure,
)
