"""A whole controller among hostile objects: the Lease is renewed, others are served, and a restart leads again."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import controller_scene as scene
import garbage
import pytest
from controller_scene import CHECK, NS
from module_clock import set_clock
from waits import LIMIT_S, until

from kueue_integration.contract import job_names
from kueue_integration.controller import installed, lease
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.informer import Informer
from kueue_integration.controller.lease import LeaseKeeper
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.planning.rounds import Rounds
from kueue_integration.controller.reconciler import WORKERS, Reconciler, Task
from kueue_integration.errors import Unreachable
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.interning import MAX_STRINGS
from kueue_integration.kube.resources import ADMISSION_CHECK, JOB, LEASE, WORKLOAD
from kueue_integration.serve import unhealthy
from singularity_proxy.protocol import names

LEASE_S = 6
HISTORY, BUDGET = "[" * 100_000, "9" * 400
"""What brought a whole controller down once: one edit of one's own Job."""
SPOILT: list[Any] = [None, True, -1, 10**400, "9" * 400, "x", [], {}, [None], {"a": None}, [[]], 1.5]


class Controller:
    """What `__main__` wires, without its sockets."""

    def __init__(self, kube: FakeKube, identity: str = "one") -> None:
        self.kube, self.metrics = kube, Metrics()
        self.reconciler = Reconciler(kube, Settings(), self.metrics)
        self.keeper = LeaseKeeper(
            kube, "sys", job_names.HOLD_LEASE, identity, LEASE_S, 0.1,
            alive=lambda: self.reconciler.silent_for() < LEASE_S and self.reconciler.world.fresh,
            on_change=lambda leads: self.reconciler.look_again() if leads else None,
            overdue=self.reconciler.overdue.entries,
        )  # fmt: skip
        self.reconciler.leads = lambda: self.keeper.leads

    def start(self) -> Controller:
        self.reconciler.start()
        assert self.reconciler.world.wait_synced(10)
        self.keeper.start()
        return self

    def stop(self) -> None:
        self.keeper.stop()
        self.reconciler.stop()

    def lease_age(self) -> float:
        spec = self.kube.get(LEASE, "sys", job_names.HOLD_LEASE).get("spec") or {}
        return time.time() - server_time.parse(spec["renewTime"]) if "renewTime" in spec else 1e9


@pytest.fixture
def controllers() -> Iterator[Callable[..., Controller]]:
    started: list[Controller] = []

    def start(kube: FakeKube, identity: str = "one") -> Controller:
        started.append(Controller(kube, identity).start())
        return started[-1]

    yield start
    for controller in started:
        controller.stop()


def waiting(name: str) -> list[dict[str, Any]]:
    """A Job that has quota and waits for the fence, and its Workload."""
    uid = f"uid-{name}"
    workload = scene.workload(f"job-{name}", owner=name, job_uid=uid, uid=f"wl-{name}")
    for item in workload["status"]["conditions"]:
        item["lastTransitionTime"] = server_time.to_whole(time.time())
    return [scene.job(name, uid=uid, annotations={job_names.ANN_HOLD: job_names.HOLD_ARMED}), workload]


def hostile(number: int, annotations: dict[str, str], word: str = "hostile") -> list[dict[str, Any]]:
    """A running Job that is being preempted, with its pods."""
    name, uid = f"{word}-{number}", f"uid-{word}-{number}"
    workload = scene.workload(
        f"job-{name}", owner=name, job_uid=uid, uid=f"wl-{name}", state="Ready", admitted=True,
        evicted=("Preempted", scene.PREEMPTED, 20),
    )  # fmt: skip
    job = scene.job(name, uid=uid, suspend=False, annotations={job_names.ANN_HOLD: job_names.HOLD_ARMED, **annotations})
    return [job, workload, scene.pod(0, job_name=name), scene.pod(1, job_name=name)]


def _installed() -> list[dict[str, Any]]:
    meta = {"name": job_names.HOLD_LEASE, "namespace": "sys"}
    return [{"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": meta}, *scene.guard()]


def _kube(*objects: dict[str, Any]) -> FakeKube:
    return FakeKube(*_installed(), *objects)


def answered(kube: FakeKube, name: str) -> bool:
    checks = kube.get(WORKLOAD, NS, f"job-{name}")["status"]["admissionChecks"]
    return any(c["name"] == CHECK and c["state"] == "Ready" for c in checks)


def served(controller: Controller, name: str) -> None:
    """A new Job is admitted within 5 s, the Lease is young, every worker is alive, and the numbers are told."""
    for obj in waiting(name):
        controller.kube.put(obj)
    until(lambda: answered(controller.kube, name), f"{name} waits for {CHECK}")
    assert controller.keeper.leads and controller.lease_age() < LEASE_S
    assert controller.keeper.idle_for() < LEASE_S and controller.reconciler.silent_for() < LEASE_S
    assert all(thread.is_alive() for thread in controller.reconciler._threads)
    alive = {thread.name for thread in threading.enumerate()}
    assert {"lease", *(f"informer-{i.kind.plural}" for i in controller.reconciler.world.informers)} <= alive
    assert "singularity_jobs{" in controller.metrics.text()


@pytest.mark.parametrize(
    "annotations",
    [
        {job_names.ANN_HISTORY: HISTORY},
        {job_names.ANN_BUDGET: BUDGET},
        {job_names.ANN_HISTORY: HISTORY, job_names.ANN_BUDGET: BUDGET},
    ],
    ids=["history", "budget", "both"],
)
def test_one_edit_of_ones_own_job_stops_nobody(
    controllers: Callable[..., Controller], annotations: dict[str, str]
) -> None:
    """The review's case: within 60 s all workers were dead, and the restarted container never led again."""
    kube = _kube(*hostile(0, {}))
    first = controllers(kube)
    served(first, "before")
    kube.patch_job(NS, "hostile-0", {"metadata": {"annotations": annotations}})
    served(first, "meanwhile")
    assert first.metrics.value("singularity_unreadable_total", "annotation") == len(annotations)
    first.stop()
    second = controllers(kube, "two")
    until(lambda: second.keeper.leads, "the restarted controller leads")
    served(second, "after")


def test_thirty_hostile_sets_at_once(controllers: Callable[..., Controller]) -> None:
    every = {**vars(names), **vars(job_names)}
    ours = [value for name, value in every.items() if name.startswith("ANN_") and value != job_names.ANN_HOLD]
    texts = [text for text in garbage.EXTREMES if not garbage.halved(text)]
    sets = [{name: texts[(number * 7 + i) % len(texts)] for i, name in enumerate(ours)} for number in range(30)]
    kube = _kube(*(obj for number, annotations in enumerate(sets) for obj in hostile(number, annotations)))
    controller = controllers(kube)
    served(controller, "one")
    for number in range(30):
        kube.patch_job(NS, f"hostile-{number}", {"metadata": {"annotations": sets[(number + 11) % 30]}})
    served(controller, "two")


def _spoil(obj: dict[str, Any], number: int) -> dict[str, Any]:
    """`obj` with one part of it, any but what the API server itself checks, replaced by something of another type."""
    obj = copy.deepcopy(obj)
    kept = ("name", "namespace", "uid", "resourceVersion", "labels")
    spots: list[tuple[Any, Any]] = []

    def collect(node: Any, top: bool) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            if top or key not in kept:
                if not top or key in ("spec", "status"):
                    spots.append((node, key))
                if isinstance(node[key], (dict, list)):
                    collect(node[key], False)

    collect(obj, True)
    node, key = spots[number % len(spots)]
    node[key] = SPOILT[number % len(SPOILT)]
    return obj


def test_objects_of_any_shape_stop_nobody(
    controllers: Callable[..., Controller], caplog: pytest.LogCaptureFixture
) -> None:
    """No API server lets these through: they stand for whatever we have not thought of."""
    caplog.set_level(logging.ERROR)
    good = [*hostile(0, scene.history(scene.record())), *waiting("w")]
    kube = _kube()
    for number in range(120):
        obj = _spoil(good[number % len(good)], number)
        obj["metadata"]["name"] = f"spoilt-{number}-{number % len(good)}"
        obj["metadata"]["uid"] = f"uid-spoilt-{number}"
        kube.put(obj)
    controller = controllers(kube)
    served(controller, "one")
    controller.stop()
    assert controller.metrics.value("singularity_unreadable_total", "Job") > 0, "nothing was skipped: what is tested?"
    named = [record.message for record in caplog.records if "is skipped" in record.message]
    assert len(named) == len(set(named)), "an object is named more than once"
    again = controllers(kube, "two")
    until(lambda: again.keeper.leads, "the restarted controller leads")
    served(again, "two")


def test_a_task_that_fails_for_days_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5 * 2**1024 is too large for a float: after eight hours of failures that was the end of the thread."""
    kube = _kube()
    reconciler, task = Reconciler(kube, Settings(), Metrics()), Task("check")
    reconciler._failures[task] = 5000
    kube.fail_next("get", ADMISSION_CHECK, Unreachable("gone"))
    reconciler.handle(task)
    monkeypatch.setattr(installed, "claim_check", lambda kube, name, now: [][0])
    reconciler.handle(task)
    assert reconciler._failures[task] == 5002


def test_a_replica_for_which_nobody_acts_is_idle_unless_the_api_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, now = _kube(), [0.0]
    set_clock(monkeypatch, lease, monotonic=lambda: now[0])

    def rounds(*keepers: LeaseKeeper) -> None:
        for _ in range(20):
            now[0] += 0.1
            for one in keepers:
                one.tick()

    alive = [True]
    keeper = LeaseKeeper(kube, "sys", job_names.HOLD_LEASE, "a", 1, 0.1, lambda: bool(alive), lambda leads: None)
    keeper.tick()
    assert keeper.leads and keeper.idle_for() == 0
    alive.clear()  # its worker hangs: the Lease is let go, and nobody else is there
    rounds(keeper)
    assert keeper.idle_for() > 1
    kube.fail_next("get", LEASE, Unreachable("gone"))
    keeper.tick()
    assert keeper.idle_for() == 0, "without an API server a new process can do no more than this one"
    other = LeaseKeeper(kube, "sys", job_names.HOLD_LEASE, "b", 1, 0.1, lambda: True, lambda leads: None)
    rounds(other)
    assert other.leads
    rounds(other, keeper)
    assert not keeper.leads and keeper.idle_for() == 0, "it follows one that is alive"


@pytest.mark.parametrize(
    ("silent_s", "listed", "idle_s", "text"),
    [
        (0, True, 0, ""),
        (59, True, 59, ""),
        (0, True, 61, "for 61 s this replica has neither acted nor seen another one act"),
        (61, True, 0, "no worker has taken a task for 61 s"),
        (0, False, 1000, ""),
    ],
)
def test_who_neither_leads_nor_follows_is_ended_by_its_probe(
    silent_s: float, listed: bool, idle_s: float, text: str
) -> None:
    assert unhealthy(silent_s, listed, idle_s) == text


def test_what_follows_from_leading_cannot_cost_the_lease() -> None:
    def broken(leads: bool) -> None:
        raise RuntimeError("an object surprised us")

    kube = _kube()
    keeper = LeaseKeeper(kube, "sys", job_names.HOLD_LEASE, "a", 1, 0.05, lambda: True, broken, overdue=lambda: [1])  # type: ignore[list-item]
    keeper.start()
    until(lambda: keeper.leads, "it leads")
    time.sleep(1.2)
    assert keeper.leads
    keeper.stop()


def test_strings_of_one_job_that_changes_for_ever_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 never frees an interned one: 603 MiB after 20,000 updates of one Job with 150 annotations."""
    interned: list[str] = []
    monkeypatch.setattr("sys.intern", lambda text: (interned.append(text), text)[1])
    informer = Informer(FakeKube(), JOB, lambda obj, deleted: None)
    for number in range(3000):
        notes = {f"key-{number}-{i}": f"value-{number}-{i}" for i in range(10)}
        kept = informer._small(scene.job(annotations=notes))
        informer._remember(kept)
        assert len(informer._strings) <= MAX_STRINGS
    assert len(informer.all()) == 1 and interned == []
    again = informer._small(scene.job(annotations=dict(notes)))
    assert all(a is b for a, b in zip(kept["metadata"]["annotations"], again["metadata"]["annotations"], strict=True))


class Held(FakeKube):
    """Whose writes to Jobs with a name that begins with `slow` are answered when the test says so."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        super().__init__(*objects)
        self.begun, self.answer = threading.Semaphore(0), threading.Event()

    def patch(self, kind: Any, namespace: Any, name: Any, *args: Any, **options: Any) -> Any:
        if kind is JOB and str(name).startswith("slow"):
            self.begun.release()
            assert self.answer.wait(120)
        return super().patch(kind, namespace, name, *args, **options)


def held(numbers: Iterable[int]) -> Held:
    return Held(*_installed(), *(obj for number in numbers for obj in hostile(number, {}, "slow")))


@pytest.mark.parametrize("count", [1, WORKERS - 1])
def test_slow_answers_about_some_jobs_end_the_hold_of_no_other(
    controllers: Callable[..., Controller], count: int
) -> None:
    """One PATCH of 25 s (somebody's webhook) voided all holds of the cluster."""
    kube = held(range(count))
    controller = controllers(kube)
    for _ in range(count):
        assert kube.begun.acquire(timeout=LIMIT_S)
    end = time.monotonic() + LEASE_S + 1
    while time.monotonic() < end:
        assert controller.lease_age() < LEASE_S and controller.reconciler.silent_for() < LEASE_S
        time.sleep(0.05)
    served(controller, "other")
    kube.answer.set()


def test_a_queue_that_nobody_serves_ends_the_holds(controllers: Callable[..., Controller]) -> None:
    kube = held(range(WORKERS))
    controller = controllers(kube)
    for _ in range(WORKERS):
        assert kube.begun.acquire(timeout=LIMIT_S)
    until(lambda: not controller.keeper.leads, "it leads no more, because it looks at no job")
    until(lambda: controller.lease_age() > LEASE_S, "it renews no more, because it looks at no job")
    kube.answer.set()
    until(lambda: controller.keeper.leads, "it is served again, and leads")
    served(controller, "other")


def test_a_long_plan_ends_no_hold(controllers: Callable[..., Controller], monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ends = threading.Event(), threading.Event()

    def plan(again: Callable[[float], None]) -> None:
        begun.set()
        assert ends.wait(120)

    kube = _kube(*waiting("first"))
    monkeypatch.setattr(Rounds, "plan", lambda self, again: plan(again))
    controller = controllers(kube)
    assert begun.wait(LIMIT_S)
    end = time.monotonic() + LEASE_S + 1
    while time.monotonic() < end:
        assert controller.lease_age() < LEASE_S and controller.keeper.leads
        time.sleep(0.05)
    served(controller, "other")
    ends.set()
