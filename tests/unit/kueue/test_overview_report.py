"""One look: who holds, who waits and why, per queue and tenant; what cannot be seen or read; few requests."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from overview_scene import NOW, cluster_queue, local_queue, record, training, workload

from kueue_integration.contract import job_names
from kueue_integration.errors import (
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    PlatformError,
    RequestRefusedError,
    Unreachable,
)
from kueue_integration.jobs.queue_position import Position
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CLUSTER_QUEUE, COHORT, JOB, JOBSET, LOCAL_QUEUE, WORKLOAD, Kind, Object
from kueue_integration.overview.look import ASKED_QUEUES, look
from kueue_integration.overview.plain import as_json
from kueue_integration.overview.report import Overview, Waiter, overview
from singularity_proxy.protocol.messages import Gpus

CPU = ("ondemand", "cpu")
NEEDS = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor ondemand, 1 more needed"
RUNS = record(
    admitted_at=NOW - 100, running_at=NOW - 90, first_step_at=NOW - 80, first_step=0, last_step=39, gpus=Gpus(2, 75.0)
)
VISIBLE = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/{}/pendingworkloads?limit=1000"


def pending(name: str, place: int, queue: str = "training", namespace: str = "default") -> Object:
    meta = {"name": f"job-{name}", "namespace": namespace}
    return {"metadata": meta, "localQueueName": queue, "positionInLocalQueue": place - 1,
            "positionInClusterQueue": place - 1}  # fmt: skip


def scene() -> FakeKube:
    """Two queues of a cohort: a training job and a plain Job hold, one of each waits."""
    kube = FakeKube(
        cluster_queue("a", {CPU: "2"}, "c"), cluster_queue("b", {CPU: "2"}, "c"),
        local_queue("training", "a"), local_queue("batch", "b", "other"),
        training("digits", [RUNS]), training("later", suspend=True),
        workload("digits", holds=("a", {CPU: "3"}), pods=3), workload("later", why=("WaitingForQuota", NEEDS)),
        workload("plain", queue="batch", holds=("b", {CPU: "1"}), namespace="other", kind="RayCluster"),
        workload("next", queue="batch", namespace="other", priority=99, since=NOW - 30, why=("Pending", NEEDS)),
    )  # fmt: skip
    kube.paths[VISIBLE.format("a")] = {"items": [pending("later", 1)]}
    kube.paths[VISIBLE.format("b")] = {"items": [pending("next", 2, "batch", "other")]}
    return kube


def seen(kube: FakeKube, queue: str | None = None, namespace: str | None = None) -> Overview:
    return overview(look(kube, NOW, namespace), queue)


def waits(report: Overview) -> dict[str, Waiter]:
    return {waiter.claim.owner: waiter for waiter in report.waiters}


def test_who_holds() -> None:
    report = seen(scene())
    digits, plain = report.holders
    assert (digits.claim.owner, digits.claim.phase, digits.claim.pods, digits.held_s) == ("digits", "Running", 3, 60.0)
    assert digits.gpu_utilisation == 75.0 and digits.claim.training
    assert (plain.claim.owner, plain.claim.kind, plain.claim.phase) == ("plain", "RayCluster", "Admitted")
    assert plain.gpu_utilisation is None and not plain.claim.training
    assert report.notes == [] and report.unreadable == []


def test_who_waits_and_why() -> None:
    found = waits(seen(scene()))
    later, following = found["later"], found["next"]
    assert later.place == Position("training", 1, 1, 1) and later.cluster_queue == "a" and later.waited_s == 60.0
    assert later.claim.reason == "WaitingForQuota" and later.claim.phase == "Queued"
    assert later.claim.needs == "needs 1 cpu more in flavor ondemand"
    assert following.cluster_queue == "b" and following.place is not None and following.place.cluster_queue_place == 2
    assert following.claim.asks == {"cpu": 1} and "waits for quota" in following.claim.message


def test_sums_of_queues_and_tenants_are_those_of_the_whole() -> None:
    report = seen(scene())
    assert [(q.name, q.holds, q.waits) for q in report.queues] == [("a", 1, 1), ("b", 1, 1)]
    assert [(t.namespace, t.holds, t.waits, dict(t.quota)) for t in report.tenants] == [
        ("default", 1, 1, {CPU: 3}), ("other", 1, 1, {CPU: 1}),
    ]  # fmt: skip
    assert report.goodput.training_s == 80.0 and report.goodput.held_s == 100.0
    assert report.goodput.waited_s == 60.0, "of the training job that waits"
    assert report.queues[0].goodput == report.tenants[0].goodput == report.goodput
    held = sum(amount for tenant in report.tenants for amount in tenant.quota.values())
    assert held == sum(line.used for line in report.lines if line.scope == "queue")


def test_filters() -> None:
    for name in ("a", "training"):
        report = seen(scene(), queue=name)
        assert [line.name for line in report.lines] == ["c", "a"] and [q.name for q in report.queues] == ["a"]
        assert [h.claim.owner for h in report.holders] == ["digits"] and list(waits(report)) == ["later"]
    kube = scene()
    report = seen(kube, namespace="other")
    assert [h.claim.owner for h in report.holders] == ["plain"] and list(waits(report)) == ["next"]
    assert report.goodput.attempts == 0 and [t.namespace for t in report.tenants] == ["other"]
    assert seen(scene(), queue="b").goodput.attempts == 0


def test_a_queue_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(RequestRefusedError, match=r"queue = 'x'.* there are a, b, batch, training"):
        seen(scene(), queue="x")


def test_one_look_makes_as_many_requests_for_a_thousand_jobs_as_for_one() -> None:
    def asked(jobs: int) -> Counter[str]:
        kube = FakeKube(cluster_queue("a", {CPU: "2"}), local_queue("training", "a"))
        for number in range(jobs):
            kube.put(training(f"j{number}", [RUNS]))
            kube.put(workload(f"j{number}", holds=("a", {CPU: "1"})))
        assert len(seen(kube).holders) == jobs
        return Counter(f"{verb} {kind}" for verb, kind, _ in kube.requests)

    assert asked(1) == asked(200)
    what = "ClusterQueue, Cohort, LocalQueue, three kinds of jobs, progress, Workload, Event, the chart's ConfigMap"
    assert sum(asked(1).values()) == 10, what


def test_only_so_many_queues_are_asked_for_places() -> None:
    kube = FakeKube()
    for number in range(ASKED_QUEUES + 1):
        kube.put(cluster_queue(f"q{number:02}", {CPU: "1"}))
        kube.put(local_queue(f"l{number:02}", f"q{number:02}"))
        kube.put(workload(f"w{number:02}", queue=f"l{number:02}"))
        kube.paths[VISIBLE.format(f"q{number:02}")] = {"items": [pending(f"w{number:02}", 1, f"l{number:02}")]}
    report = seen(kube)
    assert sum(w.place is not None for w in report.waiters) == ASKED_QUEUES
    assert f"{ASKED_QUEUES} of {ASKED_QUEUES + 1} queues" in report.notes[0]


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        (CLUSTER_QUEUE, "list clusterqueues.kueue.x-k8s.io cluster-wide"),
        (COHORT, "list cohorts.kueue.x-k8s.io cluster-wide"),
        (LOCAL_QUEUE, "list localqueues.kueue.x-k8s.io in all namespaces"),
        (WORKLOAD, "list workloads.kueue.x-k8s.io in all namespaces"), (JOB, "list jobs.batch in all namespaces"),
    ],
)  # fmt: skip
def test_a_missing_right_is_named_and_the_rest_is_shown(kind: Kind, right: str) -> None:
    kube = scene()
    kube.fail_next("list", kind, Forbidden("forbidden", 403))
    report = seen(kube)
    assert any(f"The right to {right} is missing" in note for note in report.notes), report.notes
    assert bool(report.lines) == (kind is not CLUSTER_QUEUE)
    assert bool(report.holders) == bool(report.waiters) == (kind is not WORKLOAD)
    assert (report.goodput.attempts == 0) == (kind is JOB)
    json.dumps(as_json(report))


def test_a_tenant_without_the_right_to_see_cluster_queues_may_filter_by_queue() -> None:
    kube = scene()
    kube.fail_next("list", CLUSTER_QUEUE, Forbidden("forbidden", 403))
    kube.paths = {VISIBLE.format("x").replace("clusterqueues/x", "namespaces/other/localqueues/batch"):
                  {"items": [pending("next", 1, "batch", "other")]}}  # fmt: skip
    report = seen(kube, queue="batch", namespace="other")
    assert waits(report)["next"].place == Position("batch", 1, 1, 1)
    assert [h.claim.owner for h in report.holders] == ["plain"] and len(report.notes) == 1


def test_nothing_may_be_read() -> None:
    kube = scene()
    for kind in (CLUSTER_QUEUE, LOCAL_QUEUE, WORKLOAD, JOB):
        kube.fail_next("list", kind, Forbidden("forbidden", 403))
    with pytest.raises(PlatformError, match=r"nothing of the cluster may be read.*list workloads"):
        seen(kube)


def test_kueue_is_not_there() -> None:
    kube = scene()
    kube.fail_next("list", CLUSTER_QUEUE, NotFound("no such resource", 404))
    with pytest.raises(PlatformError, match=r"Kueue is not here.*v1beta2 clusterqueues.*Install Kueue"):
        seen(kube)


def test_jobsets_and_cohorts_that_are_not_served_and_silent_visibility_are_no_error() -> None:
    kube = scene()
    kube.fail_next("list", COHORT, NotFound("no such resource", 404))
    kube.fail_next("list", JOBSET, NotFound("no such resource", 404))
    kube.paths = {}
    report = seen(kube)
    assert len(report.holders) == 2 and all(w.place is None for w in report.waiters)
    assert "places in the queues are not known" in report.notes[0]


def test_a_list_whose_moment_is_forgotten_is_begun_again() -> None:
    kube = scene()
    kube.fail_next("list", WORKLOAD, Gone("expired", 410))
    assert len(seen(kube).holders) == 2
    for _ in range(3):
        kube.fail_next("list", WORKLOAD, Gone("expired", 410))
    with pytest.raises(Gone):
        seen(kube)


def test_other_errors_are_raised() -> None:
    kube = scene()
    kube.fail_next("list", LOCAL_QUEUE, Unreachable("no answer"))
    with pytest.raises(KubeError):
        seen(kube)


def test_annotations_that_cannot_be_read_are_named_and_the_job_is_shown() -> None:
    kube = scene()
    kube.put(training("digits", annotations={job_names.ANN_HISTORY: "[{]", job_names.ANN_WORKERS: "many"}))
    report = seen(kube)
    assert [(u.kind, u.name, u.part) for u in report.unreadable] == [
        ("Job", "default/digits", job_names.ANN_HISTORY), ("Job", "default/digits", job_names.ANN_WORKERS),
    ]  # fmt: skip
    assert report.holders[0].claim.owner == "digits" and report.goodput.attempts == 0


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (WORKLOAD, {"status": {"conditions": ["no condition"]}}), (WORKLOAD, {"spec": "none"}),
        (CLUSTER_QUEUE, {"spec": {"resourceGroups": [{"flavors": [{"name": "x", "resources": [{"name": "y"}]}]}]}}),
        (CLUSTER_QUEUE, {"spec": {"resourceGroups": 7}}), (LOCAL_QUEUE, {"spec": ["none"]}),
    ],
)  # fmt: skip
def test_an_object_that_is_not_as_it_should_be_hides_no_other_one(kind: Kind, spoil: dict[str, Any]) -> None:
    kube = scene()
    meta = {"name": "bad", **({"namespace": "default"} if kind.namespaced else {})}
    kube.put({"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **spoil})
    report = seen(kube)
    assert len(report.holders) == 2 and len(report.waiters) == 2
    where = "default/bad" if kind.namespaced else "bad"
    assert [(u.kind, u.name, u.part) for u in report.unreadable] == [(kind.name, where, "")]


def test_a_paused_job_waits_for_nobody_but_its_owner_and_a_stopped_queue_says_so() -> None:
    kube = scene()
    kube.put(cluster_queue("a", {CPU: "2"}, "c", stopPolicy="HoldAndDrain"))
    kube.put(workload("later", spec={"active": False}))
    report = seen(kube)
    later = waits(report)["later"]
    assert later.claim.phase == "Suspended" and not later.claim.active and report.goodput.waited_s == 0.0
    assert report.queues[0].trouble == "stopped (HoldAndDrain)"


def test_finished_jobs_hold_nothing_but_their_goodput_counts() -> None:
    done = {"type": "Finished", "status": "True", "reason": "Succeeded"}
    kube = FakeKube(cluster_queue("a", {CPU: "2"}), local_queue("training", "a"))
    over = workload("digits", holds=("a", {CPU: "2"}))
    over["status"]["conditions"].append(done)
    kube.put(over)
    ended = record(admitted_at=0.0, first_step_at=10.0, first_step=0, last_step=9, finished_at=20.0)
    kube.put(training("digits", [ended], conditions=[{"type": "Complete", "status": "True"}]))
    report = seen(kube)
    assert not report.holders and not report.waiters and report.lines[0].used == 0
    assert report.goodput.share == 0.5 and report.queues[0].goodput == report.goodput


def test_the_json_is_complete() -> None:
    told = json.loads(json.dumps(as_json(seen(scene()))))
    lists = {"quota", "queues", "tenants", "holders", "waiting", "preemptions", "planner", "notes", "unreadable"}
    lists.add("unsaveable")
    assert set(told) == {"at", "goodput", "shares", *lists}
    cohort = told["quota"][0]
    assert cohort == {
        "scope": "cohort", "name": "c", "cohort": "", "depth": 0, "flavor": "ondemand", "resource": "cpu",
        "nominal": "4", "borrowed": "0", "used": "4", "free": "0", "available": "0", "used_by_training": "3",
        "used_by_other": "1", "used_by_unseen": "0",
    }  # fmt: skip
    assert told["goodput"]["goodput"] == 0.8 and told["goodput"]["gpu_utilisation"] == 75.0
    assert told["holders"][0]["holds"] == [{"flavor": "ondemand", "resource": "cpu", "amount": "3"}]
    assert {w["owner"]: w["place"]["cluster_queue_place"] for w in told["waiting"]} == {"later": 1, "next": 2}
