"""Plays a workload to a real Kueue in compressed time, and compares it with the simulator.

examples (root; starts a local cluster and takes it down):
  python -m benchmarks.cluster replay
  python -m benchmarks.cluster replay --devices 64 --hours 12 --compress 120 --plain

The API server and Kueue are real, the jobs are Workloads whose owner is this program. Writes OUTPUT/replay.json.
Kueue's own time is not compressed: keep --compress so small that an admission (some 30 ms) is nothing beside a move.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kueue_integration.controller.work_queue import WorkQueue
from kueue_integration.errors import AlreadyExists, KubeError
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import WORKLOAD, Object

from ..events import changes
from . import generator, twin
from .active import Active, State
from .model import HELD, SAVES, Cluster, Costs, Flavor, Job, Setting
from .simulator import Simulation

NAMESPACE = "replay"
WORKERS = 4
AGAIN_S = 0.2
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """:param compress: seconds of the simulation in one second"""

    cluster: Cluster
    jobs: Sequence[Job]
    costs: Costs
    compress: float


def plan(devices: int, hours: float, load: float, seed: int, compress: float, plain: bool) -> Plan:
    """A workload without topology, whose attempts always become ready: Kueue is what is compared.

    :raises ValueError: a number that makes no workload
    """
    if devices < 8 or devices % 8 or compress <= 0:
        raise ValueError(f"devices = {devices}, compress = {compress:g}: give a multiple of 8, and a positive factor")
    cluster = Cluster([Flavor("v100", devices // 8, 2.48)], generator.shipped().tenants)
    mix = generator.Mix(one_node=0.0, tiers=(0.3, 0.5, 0.2), longest_s=hours * 3600 / 4)
    drawn = generator.workload(seed, load * devices * hours * 3600, hours * 3600, ["v100"], mix)
    jobs = [replace(job, spread=1.0) for job in drawn if job.workers <= devices]
    jobs = [replace(job, id=number) for number, job in enumerate(jobs)]
    return Plan(cluster, jobs, replace(SAVES if plain else HELD, fails=0.0), compress)


class Player:
    """The owner of all Workloads of a plan. `books` has what has happened to each job."""

    def __init__(self, kube: Kube, made: Plan) -> None:
        self._kube, self._plan = kube, made
        self.books = {job.id: Active(job, job.workers) for job in made.jobs}
        self._lock = threading.Lock()
        self._due: WorkQueue[tuple[int, str, int]] = WorkQueue()
        self._bodies: dict[tuple[int, str, int], Object] = {}
        self._stop = threading.Event()
        self.done = threading.Event()
        self._began = time.monotonic()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]

    def __enter__(self) -> Player:
        self._began = time.monotonic()
        for job in self._plan.jobs:
            self._later(job.id, "create", job.arrival_s, twin.workload(job, NAMESPACE, classes=True))
        for thread in (self._watcher, *self._workers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._workers:
            thread.join(5)
        # The watcher waits for the API server, which may take half a minute to let it go; it is a daemon.

    def now(self) -> float:
        """Seconds of the simulation."""
        return (time.monotonic() - self._began) * self._plan.compress

    def _later(self, job: int, what: str, after_s: float, body: Object) -> None:
        key = (job, what, self.books[job].version)
        self._bodies[key] = body
        self._due.add(key, after_s / self._plan.compress)

    def _watch(self) -> None:
        for seen in changes(self._kube, WORKLOAD, NAMESPACE, self._stop):
            self.look(seen)

    def look(self, seen: Object) -> None:
        with self._lock:
            active = self.books[twin.job_of(str(seen["metadata"]["name"]))]
            planned = twin.look(active, seen, self.now(), self._plan.costs)
            active.version += bool(planned)  # an end that was planned before an eviction is void
            for due in planned:
                what = "leave" if active.state is State.LEAVING else "end" if due.after_s else "ready"
                self._later(active.job.id, what, due.after_s, due.body)

    def _work(self) -> None:
        while not self._stop.is_set():
            key = self._due.get(timeout_s=AGAIN_S)
            if key is not None:
                self._carry_out(*key)

    def _carry_out(self, job: int, what: str, version: int) -> None:
        active, body, name = self.books[job], self._bodies[job, what, version], f"job-{job}"
        with self._lock:
            if what != "create" and version != active.version:
                return
            if what == "leave":
                twin.left(active)  # before the write: Kueue may admit it again before the answer is here
        try:
            if what == "create":
                self._kube.create(body)
                return
            # Kueue may have written a condition since: ours go on top of those that are there now.
            current = self._kube.get(WORKLOAD, NAMESPACE, name)
            fresh = merged(current, body)
            self._kube.patch(WORKLOAD, NAMESPACE, name, fresh, current["metadata"]["resourceVersion"], "status")
        except AlreadyExists:
            return
        except KubeError:
            self._due.add((job, what, version), AGAIN_S)
            return
        with self._lock:
            if what == "end":
                active.state, active.finished_at, active.done_s = State.DONE, self.now(), active.job.work_s
                if all(one.state is State.DONE for one in self.books.values()):
                    self.done.set()


def merged(current: Object, body: Object) -> Object:
    """`body` with the conditions of `current` that a replay does not write."""
    ours = {one["type"]: one for one in body["status"]["conditions"] if one["message"] == "replay"}
    others = [one for one in current["status"].get("conditions") or () if one["type"] not in ours]
    return {"status": {**body["status"], "conditions": [*others, *ours.values()]}}


def replay(kube: Kube, apply: Callable[[Sequence[Object]], None], made: Plan, limit_s: float, say: Say) -> list[Active]:
    """Play the plan and return the books. Raises RuntimeError when it takes more than `limit_s` real seconds."""
    apply(twin.cluster_objects(made.cluster, NAMESPACE))
    with Player(kube, made) as player:
        end = time.monotonic() + limit_s
        while not player.done.wait(15):
            states = [one.state for one in player.books.values()]
            say(f"{states.count(State.DONE)} of {len(states)} done, {states.count(State.RUNNING)} run")
            if time.monotonic() > end:
                raise RuntimeError(
                    f"replay: {len(states) - states.count(State.DONE)} jobs are not done in {limit_s:g} s"
                )
        return [player.books[job.id] for job in made.jobs]


def write(output: Path, real: Sequence[Active], made: Plan) -> Mapping[str, object]:
    """Compare with the simulator and write replay.json. Raises OSError."""
    simulated = Simulation(made.cluster, made.jobs, Setting(made.costs, classes=True)).run()
    found = asdict(twin.agreement(real, simulated.jobs))
    output.mkdir(parents=True, exist_ok=True)
    rows = [
        {"job": a.job.id, "arrival_s": a.job.arrival_s, "kueue_s": a.finished_at, "simulated_s": b.finished_at}
        for a, b in zip(real, simulated.jobs, strict=True)
    ]
    (output / "replay.json").write_text(json.dumps({"agreement": found, "jobs": rows}, indent=1) + "\n")
    return found
