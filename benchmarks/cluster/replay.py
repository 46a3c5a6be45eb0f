"""Plays a workload to a real Kueue in compressed time, and compares it with the simulator.

examples (root; starts a local cluster and takes it down):
  python -m benchmarks.cluster replay
  python -m benchmarks.cluster replay --devices 64 --hours 12 --compress 120 --plain

The API server and Kueue are real, the jobs are Workloads whose owner is this program. Writes OUTPUT/replay.json, also
when the time is up or something fails. It says so then, and has the books as far as they go, but no comparison.
Kueue's own time is not compressed: keep --compress so small that an admission (some 30 ms) is nothing beside a move.
Kueue orders a queue by times in whole seconds. So jobs that arrive within --compress seconds have no order.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from kueue_integration.controller.work_queue import WorkQueue
from kueue_integration.errors import AlreadyExists, Conflict, KubeError
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
SAY_S = 15.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """:param compress: seconds of the simulation in one second
    :param asked: what the plan was made from, for the file
    """

    cluster: Cluster
    jobs: Sequence[Job]
    costs: Costs
    compress: float
    asked: Mapping[str, object] = field(default_factory=dict)


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
    asked = {"devices": devices, "hours": hours, "load": load, "seed": seed, "compress": compress, "plain": plain}
    return Plan(cluster, jobs, replace(SAVES if plain else HELD, fails=0.0), compress, asked)


def simulated(made: Plan) -> Sequence[Active]:
    """Kueue's requeue batch period is not compressed. Raises EndlessError: a plan that cannot be compared."""
    setting = Setting(made.costs, classes=True, requeue_s=made.compress * Setting().requeue_s)
    return Simulation(made.cluster, made.jobs, setting).run().jobs


class Player:
    """The owner of all Workloads of a plan. `books` has what has happened to each job.

    `over` is set when all jobs are done, and when something failed: `trouble` says what, or is "".
    """

    def __init__(self, kube: Kube, made: Plan, say: Say) -> None:
        self._kube, self._plan, self._say = kube, made, say
        self.books = {job.id: Active(job, job.workers) for job in made.jobs}
        self._lock = threading.Lock()
        self._due: WorkQueue[tuple[int, str, int]] = WorkQueue()
        self._bodies: dict[tuple[int, str, int], Object] = {}
        self._stop = threading.Event()
        self.over = threading.Event()
        self.trouble = ""
        self._told = False
        self._began = time.monotonic()
        self._watcher = self._thread(self._watch)
        self._workers = [self._thread(self._work) for _ in range(WORKERS)]

    def _thread(self, part: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(part,), daemon=True)

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

    def _guarded(self, part: Callable[[], None]) -> None:
        """A thread that died unseen would leave the replay waiting until its limit."""
        try:
            part()
        except Exception as error:
            self.trouble = self.trouble or f"{type(error).__name__}: {error}"
            self._stop.set()
            self.over.set()

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
                self.carry_out(*key)

    def carry_out(self, job: int, what: str, version: int) -> None:
        """Write what is due, unless it is void; what may go through later is due again.

        :raises KubeError: the API server will never take it
        """
        active = self.books[job]
        with self._lock:
            if what != "create" and version != active.version:
                return
            if what == "leave":
                twin.left(active)  # before the write: Kueue may admit it again before the answer is here
        try:
            self._write(f"job-{job}", what, self._bodies[job, what, version])
        except AlreadyExists:
            return
        except KubeError as error:
            if not error.transient and not isinstance(error, Conflict):
                raise
            if not self._told and not isinstance(error, Conflict):
                self._told = True
                self._say(f"job {job}, {what}: {error}; such writes are tried again, and this is said once")
            self._due.add((job, what, version), AGAIN_S)
            return
        if what == "end":
            self._ended(active)

    def _write(self, name: str, what: str, body: Object) -> None:
        if what == "create":
            self._kube.create(body)
            return
        # Kueue may have written a condition since: ours go on top of those that are there now.
        current = self._kube.get(WORKLOAD, NAMESPACE, name)
        fresh = merged(current, body)
        self._kube.patch(WORKLOAD, NAMESPACE, name, fresh, current["metadata"]["resourceVersion"], "status")

    def _ended(self, active: Active) -> None:
        """It is done, even if an eviction was seen while its end was written: its leave is void then."""
        with self._lock:
            active.state, active.finished_at, active.done_s = State.DONE, self.now(), active.job.work_s
            active.version += 1
            if all(one.state is State.DONE for one in self.books.values()):
                self.over.set()


def merged(current: Object, body: Object) -> Object:
    """`body` with the conditions of `current` that a replay does not write."""
    ours = {one["type"]: one for one in body["status"]["conditions"] if one["message"] == "replay"}
    others = [one for one in current["status"].get("conditions") or () if one["type"] not in ours]
    return {"status": {**body["status"], "conditions": [*others, *ours.values()]}}


@dataclass(frozen=True)
class Played:
    """:param trouble: why not all jobs are done, "" if they are
    :param took_s: real seconds
    """

    books: Sequence[Active]
    trouble: str
    took_s: float


def until_over(over: threading.Event, limit_s: float, tell: Callable[[], int]) -> str:
    """Wait, and say now and then how far it is. Why it ended early, "" where `over` is set.

    :param tell: says it; the number of jobs that are not done
    """
    end = time.monotonic() + limit_s
    try:
        while not over.wait(min(SAY_S, max(0.0, end - time.monotonic()))):
            left = tell()
            if time.monotonic() >= end:
                return f"{left} jobs are not done in {limit_s:g} s"
    except KeyboardInterrupt:
        return "interrupted"
    return ""


def replay(kube: Kube, apply: Callable[[Sequence[Object]], None], made: Plan, limit_s: float, say: Say) -> Played:
    """Play the plan, for at most `limit_s` real seconds."""
    apply(twin.cluster_objects(made.cluster, NAMESPACE))
    began = time.monotonic()
    with Player(kube, made, say) as player:
        books = [player.books[job.id] for job in made.jobs]

        def tell() -> int:
            states = [one.state for one in books]
            say(f"{states.count(State.DONE)} of {len(states)} done, {states.count(State.RUNNING)} run")
            return len(states) - states.count(State.DONE)

        trouble = until_over(player.over, limit_s, tell)
    return Played(books, player.trouble or trouble, time.monotonic() - began)


def write(output: Path, played: Played, expected: Sequence[Active], made: Plan) -> Mapping[str, object]:
    """Compare with the simulator, and write replay.json. Without all jobs there is no comparison. Raises OSError."""
    found = None if played.trouble else asdict(twin.agreement(played.books, expected))
    rows = [
        {
            "job": a.job.id, "arrival_s": a.job.arrival_s, "kueue_s": a.finished_at, "simulated_s": b.finished_at,
            "kueue_first_s": a.first_admitted, "simulated_first_s": b.first_admitted,
            "kueue_evictions": a.preempted, "simulated_evictions": b.preempted,
        }
        for a, b in zip(played.books, expected, strict=True)
    ]  # fmt: skip
    result = {
        "asked": made.asked, "costs": asdict(made.costs), "took_s": round(played.took_s, 1),
        "trouble": played.trouble, "agreement": found,
    }  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    (output / "replay.json").write_text(json.dumps({**result, "jobs": rows}, indent=1) + "\n")
    return result
