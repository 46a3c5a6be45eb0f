"""A hold that is over ends, whatever stands on the Job and whatever write of ours on it fails."""

from __future__ import annotations

import time

import controller_scene as scene
import pytest
from controller_scene import NS, T0

from kueue_integration.contract import job_names
from kueue_integration.controller import hold, overdue
from kueue_integration.controller.lease import LeaseKeeper
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.overdue import Overdue
from kueue_integration.controller.reconciler import Reconciler, Task
from kueue_integration.errors import Forbidden, Invalid
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, LEASE, WORKLOAD, annotation
from singularity_proxy.protocol import names

EVICTED = ("Preempted", scene.PREEMPTED, 30.0)
SETTINGS = hold.Settings(max_budget_s=30, regrow="none")


def held(number=0, **annotations):
    """A Job whose owner has removed the deadline, or spoilt what you like."""
    base = {job_names.ANN_HOLD: "armed", **annotations}
    return scene.job(f"train-{number}", suspend=False, annotations=base, uid=f"uid-{number:04d}")


def evicted(job):
    return scene.workload(evicted=EVICTED, admitted=True)


class Clock:
    now = T0 + 31

    def __call__(self):
        return self.now


def listing(jobs, workload_of=evicted):
    clock_ = Clock()
    return clock_, Overdue(lambda: jobs, workload_of, SETTINGS, clock_)


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {job_names.ANN_HOLD_DEADLINE: "2099-01-01T00:00:00Z"},
        {job_names.ANN_HOLD_DEADLINE: "soon", job_names.ANN_BUDGET: "9" * 400},
        {job_names.ANN_HISTORY: "[" * 100_000, names.ANN_CHECKPOINT: "{", job_names.ANN_BUDGET: "x" * 100_000},
    ],
)
def test_a_job_is_listed_when_the_platforms_maximum_has_passed_since_kueues_eviction(annotations):
    now, listed = listing([held(**annotations)])
    assert listed.entries() == []
    now.now = T0 + 45
    assert listed.entries() == []
    for moment in (T0 + 46.1, T0 + 61, T0 + 1000):
        now.now = moment
        assert listed.entries() == [f"uid-0000/{T0 + 61:.0f}"], "from then on, written ahead"


def test_a_budget_of_the_jobs_own_ends_it_earlier():
    _, listed = listing([held(**{job_names.ANN_BUDGET: "5"})])
    assert listed.entries() == [f"uid-0000/{T0 + 36:.0f}"]


@pytest.mark.parametrize(
    "change",
    [
        {"suspend": True},
        {"annotations": {job_names.ANN_HOLD: "released"}},
        {"annotations": {}},
        {"managed": False},
        {"conditions": [scene.condition("Complete", True, 31)]},
    ],
)
def test_a_job_that_is_not_held_is_not_listed(change):
    job = scene.job(**{"suspend": False, "annotations": {job_names.ANN_HOLD: "armed"}, **change})
    now, listed = listing([job])
    now.now = T0 + 1000
    assert listed.entries() == []


def test_a_workload_that_is_gone_counts_from_when_that_was_seen():
    jobs, found = [held()], []
    now, listed = listing(jobs, lambda job: found[0] if found else None)
    now.now = T0 + 500
    assert listed.entries() == []
    now.now = T0 + 520
    assert listed.entries() == [f"uid-0000/{T0 + 530:.0f}"]
    found.append(scene.workload(admitted=True))
    assert listed.entries() == [], "Kueue does not want it away any more"
    found.clear()
    assert listed.entries() == [], "counted anew"


def test_a_job_that_cannot_be_judged_is_let_through_and_the_others_are_judged():
    def workload_of(job):
        if job["metadata"]["uid"] == "uid-0001":
            raise RuntimeError("a defect of ours")
        return evicted(job)

    now, listed = listing([held(0), held(1), held(2)], workload_of)
    assert listed.entries() == [f"uid-0001/{T0 + 31:.0f}"]
    now.now = T0 + 61
    assert [entry.partition("/")[0] for entry in listed.entries()] == ["uid-0000", "uid-0002", "uid-0001"]


def test_jobs_that_kueue_does_not_know_do_not_take_the_places_of_evicted_ones(monkeypatch):
    monkeypatch.setattr(overdue, "MOST", 3)
    strange = {f"uid-{number:04d}" for number in range(1, 9)}
    jobs = [held(number) for number in range(9)]
    now, listed = listing(jobs, lambda job: None if job["metadata"]["uid"] in strange else evicted(job))
    listed.entries()
    now.now = T0 + 1000
    found = listed.entries()
    assert len(found) == 3 and found[0].startswith("uid-0000/")


def test_the_lease_names_them_with_each_renewal_and_forgets_them_again():
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "hold", "namespace": "sys"}}
    kube, entries = FakeKube(lease), []
    keeper = LeaseKeeper(kube, "sys", "hold", "a", 10, 0.1, lambda: True, [].append, overdue=lambda: entries)

    def named():
        keeper.tick()
        return annotation(kube.get(LEASE, "sys", "hold"), job_names.ANN_OVERDUE)

    assert named() is None
    entries[:] = ["a/1", "b/2"]
    assert named() == "a/1 b/2"
    entries.clear()
    assert named() is None


@pytest.fixture
def worker():
    """A reconciler without threads on a Job that was evicted `ago` seconds ago, and its FakeKube."""
    started = []

    def start(ago, **annotations):
        job = scene.job(suspend=False, annotations={job_names.ANN_HOLD: "armed", **annotations})
        workload = scene.workload(evicted=EVICTED, admitted=True)
        for item in workload["status"]["conditions"]:
            item["lastTransitionTime"] = server_time.to_whole(time.time() - ago)
        kube = FakeKube(job, workload, scene.pod(0), scene.pod(1))
        reconciler = Reconciler(kube, SETTINGS, Metrics())
        reconciler.world.start()
        assert reconciler.world.wait_synced(10)
        started.append(reconciler)
        return kube, reconciler

    yield start
    for reconciler in started:
        reconciler.world.stop()


REFUSALS = (Invalid("metadata.annotations: Too long: must have at most 262144 bytes", 422), Forbidden("webhook", 403))


@pytest.mark.parametrize("refusal", REFUSALS, ids=["too long", "foreign webhook"])
def test_a_job_that_cannot_be_written_is_let_go_by_the_lease_and_kueue_asks_again(worker, refusal, monkeypatch):
    kube, reconciler = worker(ago=31)
    patch = kube.patch

    def refused(kind, *args, **kwargs):
        if kind is JOB:
            raise refusal
        return patch(kind, *args, **kwargs)

    monkeypatch.setattr(kube, "patch", refused)
    reconciler.handle(Task("job", NS, "train"))
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_HOLD) == "armed"
    (entry,) = reconciler.overdue.entries()
    uid, _, end = entry.partition("/")
    assert uid == scene.JOB_UID and int(end) <= time.time() + 1
    assert annotation(kube.get(WORKLOAD, NS, "job-train-1"), job_names.ANN_OVERDUE) is not None


def test_an_end_that_comes_in_time_makes_nobody_ask_again(worker):
    kube, reconciler = worker(ago=31)
    reconciler.handle(Task("job", NS, "train"))
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_HOLD) == "released"
    assert annotation(kube.get(WORKLOAD, NS, "job-train-1"), job_names.ANN_OVERDUE) is None


def test_before_the_end_a_removed_deadline_is_written_again_and_not_moved(worker):
    kube, reconciler = worker(ago=10)
    reconciler.handle(Task("job", NS, "train"))
    first = server_time.parse(str(annotation(kube.get_job(NS, "train"), job_names.ANN_HOLD_DEADLINE)))
    assert abs(first - time.time() - 20) < 3
