"""The worker against an API server in memory: what it writes, with which preconditions, and what it survives."""

from __future__ import annotations

import copy
import threading
import time

import controller_scene as scene
import pytest
from controller_scene import CHECK, NS
from waits import LIMIT_S, until

from kueue_integration.contract import job_names, priority
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.controller import expectations
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.reconciler import CANARY_S, SLICES, WORKERS, Reconciler, Task
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.work_queue import Lane
from kueue_integration.errors import Conflict, KubeError, Unreachable
from kueue_integration.guard import names as guards
from kueue_integration.jobs import preflight
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import (
    ADMISSION_CHECK,
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    CLUSTER_QUEUE,
    EVENT,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    POD,
    WORKLOAD,
    annotation,
)
from kueue_integration.planner import quota
from singularity_proxy.protocol import decode
from singularity_proxy.protocol.messages import CommitRequest, to_json

TASK = Task("job", NS, "train")
FENCE = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "AdmissionCheck",
    "metadata": {"name": CHECK},
    "spec": {"controllerName": job_names.ADMISSION_CHECK_CONTROLLER},
}


def fresh(obj):
    """The object with times of now instead of the scene's."""
    obj["metadata"]["creationTimestamp"] = server_time.to_whole(time.time())
    for item in obj.get("status", {}).get("conditions", []):
        item["lastTransitionTime"] = server_time.to_whole(time.time())
    return obj


@pytest.fixture
def world():
    """Starts a Reconciler on the given objects, without its worker thread: the test is the worker."""
    started = []

    def start(*objects, settings=None):
        kube = FakeKube(*objects)
        reconciler = Reconciler(kube, settings or Settings(regrow="none"), Metrics())
        reconciler.world.start()
        assert reconciler.world.wait_synced(10)
        started.append(reconciler)
        return kube, reconciler

    yield start
    for reconciler in started:
        reconciler.world.stop()


OWNERS = {
    "Workload": "kueue.x-k8s.io/v1beta2",  # a variant of ConcurrentAdmission is owned by the parent Workload
    "AppWrapper": "workload.codeflare.dev/v1beta2", "Pod": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1", "MPIJob": "kubeflow.org/v2beta1",
    "PyTorchJob": "kubeflow.org/v1", "TFJob": "kubeflow.org/v1", "XGBoostJob": "kubeflow.org/v1",
    "PaddleJob": "kubeflow.org/v1", "JAXJob": "kubeflow.org/v1", "RayJob": "ray.io/v1", "RayCluster": "ray.io/v1",
    "RayService": "ray.io/v1", "SparkApplication": "sparkoperator.k8s.io/v1beta2",
    "Job": "example.com/v1",  # of a name like ours
}  # fmt: skip
"""Kinds that Kueue 0.19.2 makes Workloads for (`integrations.frameworks`), without those that we manage."""


@pytest.mark.parametrize("owner", [*OWNERS, None])
def test_our_pods_are_let_in_for_no_other_owner(world, owner):
    """None: a Workload that somebody has made by hand."""
    version = OWNERS.get(owner)
    theirs = fresh(scene.workload())
    theirs["metadata"].update(
        name="variant", uid="variant-uid", labels={},
        ownerReferences=[{"apiVersion": version, "kind": owner, "name": "parent", "uid": "p", "controller": True}]
        if owner else [],
    )  # fmt: skip
    ours = copy.deepcopy(theirs)
    for podset in ours["spec"]["podSets"]:
        podset["template"].setdefault("metadata", {})["labels"] = {job_names.LABEL_MANAGED: "true"}
    theirs["metadata"].update(name="others", uid="others-uid")
    kube, reconciler = world(ours, theirs)
    for name, state in (("variant", "Rejected"), ("others", "Ready")):
        reconciler.handle(Task("workload", NS, name))
        (check,) = kube.get(WORKLOAD, NS, name)["status"]["admissionChecks"]
        assert check["state"] == state, check
    message = kube.get(WORKLOAD, NS, "variant")["status"]["admissionChecks"][0]["message"]
    assert "no Job, JobSet or TrainJob owns" in message


def test_who_waits_for_a_job_hears_which_pod_has_changed():
    heard = []
    kube = FakeKube(scene.job(suspend=False, annotations=scene.history(scene.record())))
    reconciler = Reconciler(kube, Settings(regrow="none"), Metrics(), lambda *about: heard.append(about))
    reconciler.world.start()
    try:
        until(lambda: (NS, "train", True) in heard)
        for index in (0, 1):
            heard.clear()
            kube.put(scene.pod(index))
            until(lambda: heard)
            assert {*heard} == {(NS, "train", index == 0)}
    finally:
        reconciler.world.stop()


def check_of(kube, name="job-train-1"):
    checks = kube.get(WORKLOAD, NS, name)["status"]["admissionChecks"]
    return next(c for c in checks if c["name"] == CHECK)


def writes(kube):
    return [(verb, kind) for verb, kind, _ in kube.requests if verb in ("patch", "replace", "create", "delete")]


def test_the_fence_writes_the_job_then_the_workload_and_keeps_other_checks(world):
    other = {"name": "provisioning", "state": "Ready", "message": "m", "podSetUpdates": [{"name": "main"}]}
    kube, reconciler = world(
        scene.job(annotations={job_names.ANN_HOLD: "armed"}), fresh(scene.workload(other_checks=[other]))
    )
    reconciler.handle(TASK)
    assert writes(kube) == [("patch", "Job"), ("patch", "Workload")]
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_ATTEMPT) == "1"
    checks = kube.get(WORKLOAD, NS, "job-train-1")["status"]["admissionChecks"]
    assert checks[0] == other
    assert checks[1]["state"] == "Ready"
    (update,) = checks[1]["podSetUpdates"]
    assert (update["name"], update["annotations"][job_names.ANN_ATTEMPT]) == ("main", "1")


def test_no_job_begins_in_a_namespace_that_is_not_guarded(world):
    """One that began under an earlier release goes on, and keeps its namespace from the guard until it has ended."""
    spec = {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}}
    queues = [
        {"apiVersion": CLUSTER_QUEUE.api_version, "kind": CLUSTER_QUEUE.name, "metadata": {"name": "c"}, "spec": spec},
        {"apiVersion": LOCAL_QUEUE.api_version, "kind": LOCAL_QUEUE.name, "metadata": {"name": "q", "namespace": NS},
         "spec": {"clusterQueue": "c"}},
    ]  # fmt: skip
    of_before = scene.job(annotations={job_names.ANN_ATTEMPT: "1"})
    of_before["metadata"].update(name="of-before", uid="of-before")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS}}
    kube, reconciler = world(scene.job(), fresh(scene.workload()), of_before, namespace, *queues)

    def check():
        reconciler.handle(Task("guard"))
        reconciler.handle(TASK)
        (found,) = kube.get(WORKLOAD, NS, "job-train-1")["status"]["admissionChecks"]
        return found["state"], found["message"]

    assert check() == ("Pending", preflight.unguarded(NS))
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_ATTEMPT) is None
    before = len(writes(kube))
    assert check() == ("Pending", preflight.unguarded(NS)) and len(writes(kube)) == before, "it is told once"
    labels = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
    kube.patch(NAMESPACE, None, NS, {"metadata": {"labels": labels}})
    until(lambda: check()[0] == "Ready", "our copy of the Workload has caught up")


HARM = {
    "gone": (lambda kube, name: kube.delete(ADMISSION_POLICY, None, name), "no ValidatingAdmissionPolicy {}"),
    "unbound": (
        lambda kube, name: kube.delete(ADMISSION_POLICY_BINDING, None, name),
        "no ValidatingAdmissionPolicyBinding {}",
    ),
    "audits": (
        lambda kube, name: kube.patch(ADMISSION_POLICY_BINDING, None, name, {"spec": {"validationActions": ["Audit"]}}),
        "the binding of {} does not Deny",
    ),
    "open": (
        lambda kube, name: kube.patch(ADMISSION_POLICY, None, name, {"spec": {"failurePolicy": "Ignore"}}),
        "failurePolicy of {} is not Fail",
    ),
}


@pytest.mark.parametrize("name", guards.OF_PODS)
@pytest.mark.parametrize("harm", HARM)
def test_no_job_begins_while_the_guard_of_pods_is_not_in_force(world, name, harm):
    act, said = HARM[harm]
    kube, reconciler = world(scene.job(), fresh(scene.workload()), *scene.guard())
    act(kube, name)
    for task in (Task("policy"), TASK):
        reconciler.handle(task)
    told = "the guard of pods is not in force (" + said.format(name)
    assert check_of(kube)["state"] == "Pending" and check_of(kube)["message"].startswith(told)
    assert job_names.UPGRADE in check_of(kube)["message"]
    for part in scene.guard(name):
        kube.put(part)
    reconciler.handle(Task("policy"))
    until(lambda: (reconciler.handle(TASK), check_of(kube)["state"] == "Ready")[1], "our copy has caught up")


def test_without_the_guard_of_pods_jobs_that_have_begun_go_on_and_those_of_others_begin(world):
    begun, theirs = scene.job(annotations={job_names.ANN_ATTEMPT: "1"}), scene.job()
    theirs["metadata"]["labels"].pop(job_names.LABEL_MANAGED)
    for job in (begun, theirs):
        kube, reconciler = world(job, fresh(scene.workload()))
        for task in (Task("policy"), TASK):
            reconciler.handle(task)
        assert reconciler.guarded.problem and check_of(kube)["state"] == "Ready"


def test_a_first_admission_takes_two_requests(world):
    """The pods of a Job whose spec was never changed need no listing, and the version of our copy guards the Job."""
    job = scene.job()
    job["metadata"]["generation"] = 1
    kube, reconciler = world(job, fresh(scene.workload()))
    before = len(kube.requests)
    reconciler.handle(TASK)
    assert [(verb, kind) for verb, kind, _ in kube.requests[before:] if verb != "watch"] == [
        ("patch", "Job"),
        ("patch", "Workload"),
    ]
    assert check_of(kube)["state"] == "Ready"


def test_a_copy_behind_our_own_write_costs_no_request(world, monkeypatch):
    job = scene.job()
    job["metadata"]["generation"] = 1
    kube, reconciler = world(job, fresh(scene.workload()))
    stale = copy.deepcopy(reconciler.world.workload_of(NS, "train"))
    reconciler.handle(TASK)
    until(lambda: annotation(reconciler.world.jobs.get(NS, "train"), job_names.ANN_ATTEMPT) == "1")
    monkeypatch.setattr(reconciler.world, "workload_of", lambda namespace, name: stale)
    before = len(kube.requests)
    reconciler.handle(TASK)  # the watch has shown the Job's change, not the Workload's yet
    assert [verb for verb, _, _ in kube.requests[before:] if verb != "watch"] == []


def test_a_watch_that_never_shows_our_own_write_is_not_waited_for(world, monkeypatch):
    job = scene.job()
    job["metadata"]["generation"] = 1
    kube, reconciler = world(job, fresh(scene.workload()))
    stale = copy.deepcopy(reconciler.world.workload_of(NS, "train"))
    monkeypatch.setattr(reconciler.world, "workload_of", lambda namespace, name: stale)
    monkeypatch.setattr(expectations, "STALE_S", 0.2)
    reconciler.handle(TASK)

    def read_again():
        if task := reconciler.queue.get(0.05):
            reconciler.handle(task)
        return ("get", "Workload") in [(verb, kind) for verb, kind, _ in kube.requests]

    until(read_again)


def test_own_writes_are_waited_for_by_version_and_not_for_ever():
    now = [100.0]
    mine = expectations.Expectations(lambda: now[0])
    old, new = ({"metadata": {"uid": "u", "resourceVersion": version}} for version in ("1", "2"))
    mine.note([(old, new)])
    assert mine.behind(new, None) == 0.0 and mine.behind(old) == 0.0, "what is newer was seen: nothing to wait for"
    mine.note([(old, new), (new, new)])
    assert mine.behind(old) == expectations.STALE_S
    now[0] += expectations.STALE_S
    assert mine.behind(old) == 0.0
    mine.note([(new, new)])
    assert mine.behind(new) == 0.0, "a write that changed nothing has no event"


def test_neither_a_crowd_nor_slow_answers_keep_the_canary(monkeypatch):
    """More tasks than can be done in the time, and all workers but one wait for an answer."""
    reconciler = Reconciler(FakeKube(), Settings(regrow="none"), Metrics())
    answer, waiting = threading.Event(), threading.Semaphore(0)

    def handle(task):
        if task.name.startswith("slow"):
            waiting.release()
            assert answer.wait(120)
        else:
            time.sleep(0.01)

    monkeypatch.setattr(reconciler, "handle", handle)
    for number in range(WORKERS - 1):
        reconciler.queue.add(Task("job", NS, f"slow-{number}"), lane=Lane.FIRST)
    reconciler.leads = lambda: True
    reconciler.start()
    for _ in range(WORKERS - 1):
        assert waiting.acquire(timeout=120)
    for number in range(3000):
        reconciler.queue.add(Task("job", NS, f"crowd-{number}"))
    begun = reconciler._canary_at
    until(lambda: reconciler._canary_at > begun + 1.5 * CANARY_S, "the canary is taken again and again")
    left = reconciler.queue.due()
    answer.set()
    reconciler.stop()
    assert left > 1000, "before all that came before it"


def test_an_old_copy_of_the_workload_takes_no_attempt_number(world, monkeypatch):
    job = scene.job()
    job["metadata"]["generation"] = 1
    kube, reconciler = world(job, fresh(scene.workload()))
    stale = copy.deepcopy(reconciler.world.workload_of(NS, "train"))
    kube.patch(WORKLOAD, NS, "job-train-1", {"metadata": {"labels": {"x": "y"}}})
    monkeypatch.setattr(reconciler.world, "workload_of", lambda namespace, name: stale)
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Pending"
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_ATTEMPT) == "1"
    newer = server_time.to_whole(time.time() + 5)
    conditions = [{**c, "lastTransitionTime": newer} for c in stale["status"]["conditions"]]
    kube.patch(WORKLOAD, NS, "job-train-1", {"status": {"conditions": conditions}}, subresource="status")
    monkeypatch.undo()
    until(lambda: annotation(reconciler.world.jobs.get(NS, "train"), job_names.ANN_ATTEMPT) == "1")
    until(lambda: reconciler.world.workload_of(NS, "train")["status"]["conditions"] == conditions)
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Ready"
    history = decode.messages(AttemptRecord, annotation(kube.get_job(NS, "train"), job_names.ANN_HISTORY))
    assert [(record.attempt, record.ended_by) for record in history] == [(1, None)]


def test_an_old_copy_of_the_job_starts_nothing(world, monkeypatch):
    kube, reconciler = world(scene.job(), fresh(scene.workload()))
    stale = reconciler.world.jobs.get(NS, "train")
    kube.patch_job(NS, "train", {"metadata": {"annotations": {job_names.ANN_BUDGET: "7"}}})
    monkeypatch.setattr(reconciler.world.jobs, "get", lambda namespace, name: stale)
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Pending"
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_ATTEMPT) is None
    monkeypatch.undo()
    until(lambda: annotation(reconciler.world.jobs.get(NS, "train"), job_names.ANN_BUDGET) == "7")
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Ready"


def test_a_crash_between_the_two_patches_is_met_with_the_same_attempt(world):
    kube, reconciler = world(scene.job(), fresh(scene.workload()))
    kube.fail_next("patch", WORKLOAD, Unreachable("gone"))
    reconciler.handle(TASK)
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_ATTEMPT) == "1"
    assert check_of(kube)["state"] == "Pending"
    assert reconciler.queue.get(5.0) is not None  # it comes back by itself
    until(lambda: annotation(reconciler.world.jobs.get(NS, "train"), job_names.ANN_ATTEMPT) == "1")
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Ready"
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_ATTEMPT) == "1"


def test_a_conflict_is_decided_again_on_what_is_there_now(world):
    kube, reconciler = world(scene.job(), fresh(scene.workload()))
    kube.fail_next("patch", JOB, Conflict("somebody else wrote", 409))
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Pending"
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_ATTEMPT) is None
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Ready"


def test_stale_copies_never_start_an_attempt(world):
    """The copy says that no pod is left; the API server knows better."""
    kube, reconciler = world(scene.job(), fresh(scene.workload()))
    reconciler.world.pods.stop()
    kube.put(scene.pod(0, phase="Running"))
    reconciler.world.pods_of = lambda namespace, name: []
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Pending"
    assert "train-0-a1" in check_of(kube)["message"]


def test_waiting_is_said_once(world):
    kube, reconciler = world(scene.job(), fresh(scene.workload()), scene.pod(0))
    reconciler.handle(TASK)
    until(lambda: "waiting" in str(reconciler.world.workload_of(NS, "train")))
    before = len(writes(kube))
    reconciler.handle(TASK)
    reconciler.handle(TASK)
    assert (before, len(writes(kube))) == (1, 1)
    kube.delete(POD, NS, "train-0-a1")
    until(lambda: not reconciler.world.pods_of(NS, "train"))
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Ready"


def test_an_unmanaged_job_is_let_through_untouched(world):
    kube, reconciler = world(scene.job(managed=False), fresh(scene.workload()))
    reconciler.handle(TASK)
    assert writes(kube) == [("patch", "Workload")]
    assert check_of(kube)["state"] == "Ready"
    assert "podSetUpdates" not in check_of(kube)


def test_a_workload_without_a_job_is_let_through(world):
    kube, reconciler = world(fresh(scene.workload("pod-group", owner=None)))
    reconciler.handle(Task("workload", NS, "pod-group"))
    assert check_of(kube, "pod-group")["state"] == "Ready"


@pytest.mark.parametrize("owner", [None, "train"])
def test_what_is_not_managed_is_answered_in_the_queue_with_one_write(world, owner):
    kube, reconciler = world(scene.job(managed=False), fresh(scene.workload("plain", reserved_at=None, owner=owner)))
    reconciler.handle(Task("workload", NS, "plain") if owner is None else TASK)
    asked = [(verb, kind) for verb, kind, _ in kube.requests if verb not in ("list", "watch")]
    assert asked == ([("get", "Job")] if owner else []) + [("patch", "Workload")]
    assert check_of(kube, "plain")["state"] == "Ready"


def test_an_answer_to_a_job_that_has_become_managed_is_withdrawn_and_given_again_with_quota(world):
    kube, reconciler = world(scene.job(managed=False), fresh(scene.workload(reserved_at=None)))
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Ready"
    kube.put(scene.job())
    until(lambda: reconciler.world.job(NS, "train") and is_ready(reconciler))
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Pending"
    given = kube.get(WORKLOAD, NS, "job-train-1")
    kube.put(
        {
            **given,
            "status": {**fresh(scene.workload())["status"], "admissionChecks": given["status"]["admissionChecks"]},
        }
    )
    until(lambda: reconciler.world.workload_of(NS, "train")["status"]["conditions"])
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Ready"
    assert check_of(kube)["podSetUpdates"][0]["annotations"][job_names.ANN_ATTEMPT] == "1"


def is_ready(reconciler):
    checks = reconciler.world.workload_of(NS, "train")["status"]["admissionChecks"]
    return [check["state"] for check in checks] == ["Ready"]


def test_what_is_not_ours_takes_little_memory(world):
    ended = [scene.condition("Finished", True, 11)]
    theirs = scene.workload("theirs", owner=None, extra_conditions=copy.deepcopy(ended))
    mine = scene.workload("mine", owner=None, extra_conditions=copy.deepcopy(ended), uid="mine")
    mine["spec"]["podSets"][0]["template"]["metadata"] = {"labels": {job_names.LABEL_MANAGED: "true"}}
    live = scene.workload("live", owner=None, uid="live")
    container = {"resources": {"requests": {"cpu": "2"}}, "restartPolicy": "Always"}
    whole = {
        "containers": [{**container, "image": "i", "env": []}],
        "initContainers": [{**container, "command": ["c"]}],
    }
    live["spec"]["podSets"][0]["template"] = {"metadata": {"labels": {"a": "b"}}, "spec": {**whole, "volumes": []}}
    _, reconciler = world(*map(fresh, (theirs, mine, live)))
    kept = {w["metadata"]["name"]: "podSets" in w["spec"] for w in reconciler.world.workloads.all()}
    assert kept == {"theirs": False, "mine": True, "live": True}
    (asked,) = [w for w in reconciler.world.workloads.all() if w["metadata"]["name"] == "live"]
    small = {"containers": [container], "initContainers": [container]}
    assert asked["spec"]["podSets"][0]["template"] == {"spec": small}
    assert quota.requests(asked) == quota.requests(live) == {"cpu": 4 * live["spec"]["podSets"][0]["count"]}
    assert reconciler.world.preemptor("mine").workload == "mine"
    assert reconciler.world.preemptor("nobody") is None


def evicted_scene(**annotations):
    record = scene.record(admitted_at=time.time() - 60)
    job = scene.job(
        suspend=False,
        annotations={job_names.ANN_HOLD: "armed", job_names.ANN_BUDGET: "30", **scene.history(record), **annotations},
    )
    workload = fresh(scene.workload(evicted=("Preempted", scene.PREEMPTED, 0), admitted=True))
    preemptor = fresh(scene.workload("job-big", reserved_at=None, state=None, owner="big", uid="99-wl", job_uid="99"))
    return job, workload, preemptor, scene.pod(0), scene.pod(1)


def test_an_eviction_leads_to_a_deadline_and_a_timer(world):
    kube, reconciler = world(*evicted_scene())
    before = time.time()
    reconciler.handle(TASK)
    job = kube.get_job(NS, "train")
    assert before + 29 < server_time.parse(annotation(job, job_names.ANN_HOLD_DEADLINE)) < time.time() + 31
    (record,) = scene.stored(job["metadata"]["annotations"])
    assert (record.ended_by, record.preempted_by) == ("Preempted", "job-big")
    assert annotation(job, job_names.ANN_HOLD) == "armed"


@pytest.mark.parametrize(
    ("mark", "by"),
    [
        (priority.Mark("slaTiers", 10, 7, 1, 5.0), "slaTiers"),
        (priority.Mark("slaTiers", 10, 7, 0, 5.0), None),  # it waited when its priority was lowered
        (priority.Mark("slaTiers", 7, 10, 1, 5.0), None),  # it has been raised again
    ],
    ids=["lowered", "lowered before", "raised"],
)
def test_a_preemption_that_a_policy_brought_about_is_on_record_as_its_move(world, mark, by):
    job, workload, *others = evicted_scene()
    workload["metadata"].setdefault("annotations", {})[job_names.ANN_PRIORITY] = to_json(mark)
    kube, reconciler = world(job, workload, *others)
    reconciler.handle(TASK)
    (record,) = scene.stored(kube.get_job(NS, "train")["metadata"]["annotations"])
    assert (record.ended_by, record.lowered_by) == ("Preempted", by)


def test_the_deadline_releases_the_hold_without_any_event(world):
    kube, reconciler = world(*evicted_scene(**{job_names.ANN_BUDGET: "2"}))
    reconciler.handle(TASK)
    end = time.monotonic() + LIMIT_S
    while annotation(kube.get_job(NS, "train"), job_names.ANN_HOLD) == "armed":
        assert time.monotonic() < end, "the hold outlived its deadline"
        kube.requests.clear()
        task = reconciler.queue.get(timeout_s=0.2)
        if task is not None:
            reconciler.handle(task)
    asked = [(verb, kind) for verb, kind, _ in kube.requests if verb != "watch"]
    assert asked == [("patch", "Job"), ("get", "Job")]  # one, and this test's own look
    (record,) = scene.stored(kube.get_job(NS, "train")["metadata"]["annotations"])
    assert record.note is not None
    assert record.note.startswith("no checkpoint within 2 s")


def test_nothing_leaves_the_worker(world):
    kube, reconciler = world(*evicted_scene())
    metrics = reconciler._metrics
    for error in (KubeError("boom", 500), RuntimeError("a bug"), Unreachable("no answer")):
        kube.fail_next("patch", JOB, error)
        reconciler.handle(TASK)
    assert metrics.value("singularity_errors_total") == 3
    reconciler.handle(TASK)
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_HOLD_DEADLINE) is not None


def test_readmission_sets_our_check_to_retry(world):
    record = scene.record(checkpoint="train-a1-g1", committed_at=1.0, admitted_at=time.time())
    job = scene.job(suspend=False, annotations={job_names.ANN_HOLD: "released", **scene.history(record)})
    kube, reconciler = world(job, fresh(scene.workload(state="Ready", admitted=True)), scene.pod(0), scene.pod(1))
    reconciler.handle(TASK)
    assert (check_of(kube)["state"], check_of(kube)["requeueAfterSeconds"]) == ("Retry", 1)
    assert "train-a1-g1" in check_of(kube)["message"]


def test_the_plan_moves_a_small_job_back(world):
    record = scene.record(first_step=0, first_step_at=time.time() - 600, flavor="spot", admitted_at=time.time() - 610)
    job = scene.job(suspend=False, annotations={job_names.ANN_WORKERS: "4", **scene.history(record)})
    workload = fresh(scene.workload(state="Ready", admitted=True, flavor="spot"))
    group = {
        "coveredResources": ["cpu"],
        "flavors": [
            {"name": name, "resources": [{"name": "cpu", "nominalQuota": amount}]}
            for name, amount in (("ondemand", "1"), ("spot", "500m"))
        ],
    }
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "training"},
        "spec": {"resourceGroups": [group]},
    }
    local = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "q", "namespace": NS},
             "spec": {"clusterQueue": "training"}}  # fmt: skip
    objects = (job, workload, scene.pod(0), scene.pod(1), queue, local)
    kube, reconciler = world(*objects, settings=Settings(regrow="act", regrow_min_run_s=1))
    reconciler.handle(Task("plan"))
    assert check_of(kube)["state"] == "Ready", "it is saved first"
    (told,) = (event for event in kube.objects() if event["kind"] == EVENT.name)
    assert (told["reason"], told["action"]) == (job_names.EVENT_PLANNER_DONE, "readmit")
    assert told["metadata"]["labels"] == {job_names.LABEL_PLANNER: "regrow"}
    reason = "regrow: readmit of team/train: quota is free again: 2 -> 4 workers on ondemand"
    assert told["message"].startswith(f"{reason} (gain 610 device-seconds; costs about ")
    assert reconciler._metrics.value("singularity_planner_actions_total", "regrow readmit done") == 1
    until(lambda: job_names.ANN_LEAVE in str(reconciler.world.job(NS, "train")))
    before = len(writes(kube))
    reconciler.handle(Task("plan"))
    assert len(writes(kube)) == before  # asked once
    stays = CommitRequest(NS, "train", 1, scene.checkpoint(), 1.0, 9, goes_on=True, stays=True)
    saved = reports.commit(kube.get_job(NS, "train"), stays, time.time())
    kube.patch_job(NS, "train", {"metadata": {"annotations": saved}})
    until(lambda: '"saved"' in str(reconciler.world.job(NS, "train")))
    until(lambda: reconciler.handle(TASK) or check_of(kube)["state"] == "Retry")
    assert check_of(kube)["message"] == "quota is free again: 2 -> 4 workers on ondemand"


def test_our_admission_check_is_made_active_and_others_left_alone(world):
    kube, reconciler = world(FENCE)
    reconciler.handle(Task("check"))
    (active,) = kube.get(ADMISSION_CHECK, None, CHECK)["status"]["conditions"]
    assert (active["type"], active["status"]) == ("Active", "True")
    before = len(writes(kube))
    reconciler.handle(Task("check"))
    assert len(writes(kube)) == before
    foreign = {**FENCE, "spec": {"controllerName": "example.com/other"}}
    kube, reconciler = world(foreign)
    reconciler.handle(Task("check"))
    assert "status" not in kube.get(ADMISSION_CHECK, None, CHECK)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        (job_names.HOLD_LEASE, "singularity_hold_policy_missing"),
        *((name, "singularity_guard_policies_missing") for name in guards.POLICIES),
    ],
)
def test_a_missing_policy_or_binding_is_counted_while_it_is_missing(world, name, metric):
    kube, reconciler = world(*scene.guard(), *scene.guard(job_names.HOLD_LEASE))

    def missing():
        reconciler.handle(Task("policy"))
        return reconciler._metrics.value(metric)

    assert missing() == 0
    for kind, part in zip((ADMISSION_POLICY, ADMISSION_POLICY_BINDING), scene.guard(name), strict=True):
        kube.delete(kind, None, name)
        assert missing() == 1
        kube.create(part)
        assert missing() == 0


def test_only_the_replica_that_leads_writes(world):
    kube, reconciler = world(scene.job(), fresh(scene.workload()), *scene.guard())
    leads = []
    reconciler.leads = lambda: bool(leads)
    for thread in reconciler._threads:
        thread.start()
    try:
        until(lambda: len(reconciler.queue) == 0)
        assert writes(kube) == []
        leads.append(True)
        reconciler.everything()
        until(lambda: check_of(kube)["state"] == "Ready")
    finally:
        reconciler.stop()


def test_a_round_over_everything_is_cut_into_parts_that_nobody_waits_for(world):
    named = [copy.deepcopy(scene.job()) for _ in range(300)]
    for number, job in enumerate(named):
        job["metadata"] |= {"name": f"train-{number}", "uid": f"uid-{number}"}
    theirs = [copy.deepcopy(scene.workload()) for _ in named]
    for number, workload in enumerate(theirs):
        workload["metadata"] |= {"name": f"job-train-{number}-1a2b3", "uid": f"workload-{number}"}
        workload["metadata"]["ownerReferences"][0] |= {"name": f"train-{number}", "uid": f"uid-{number}"}
    _, reconciler = world(*named, *theirs)
    while (task := reconciler.queue.get(timeout_s=0.0)) is not None:
        pass
    reconciler.plans.get(timeout_s=1.0)
    seen, most, looks = set(), 0, 0
    for _ in range(SLICES):
        reconciler.handle(Task("slice"))
        part = set()
        while (task := reconciler.queue.get(timeout_s=0.0)) is not None:
            part.add(task.name)
            looks += task.kind == "job"
        most, seen = max(most, len(part - {""})), seen | part
    assert seen - {""} == {job["metadata"]["name"] for job in named}
    assert looks == 300, "a Job and its Workload are one look"
    assert most < 300 / 6, "all at once, thousands of looks keep every hold waiting"
    assert len(reconciler.plans) == 1, "one plan for a round, not one for each part"


def running_scene(**annotations):
    record = scene.record(first_step=0, first_step_at=time.time() - 30, admitted_at=time.time() - 60)
    base = {job_names.ANN_HOLD: "armed", job_names.ANN_BUDGET: "30", **scene.history(record)}
    return scene.job(suspend=False, annotations={**base, **annotations})


def test_a_workload_missing_in_our_copy_only_is_no_reason_to_stop(world):
    job, workload = running_scene(), fresh(scene.workload(state="Ready", admitted=True))
    kube, reconciler = world(job, workload, scene.pod(0), scene.pod(1))
    reconciler.world.workload_of = lambda namespace, name: None
    reconciler.handle(TASK)
    assert annotation(kube.get_job(NS, "train"), job_names.ANN_HOLD_DEADLINE) is None


def test_a_workload_that_is_really_gone_gets_its_job_a_checkpoint_and_then_the_release(world):
    kube, reconciler = world(running_scene(**{job_names.ANN_BUDGET: "1"}), scene.pod(0), scene.pod(1))
    reconciler.handle(TASK)
    job = kube.get_job(NS, "train")
    assert annotation(job, job_names.ANN_HOLD_DEADLINE) is not None
    end = time.monotonic() + LIMIT_S
    while annotation(kube.get_job(NS, "train"), job_names.ANN_HOLD) == "armed":
        assert time.monotonic() < end, "the hold of a Job without a Workload lasts for ever"
        task = reconciler.queue.get(timeout_s=0.2)
        if task is not None:
            reconciler.handle(task)


def test_a_pod_deleted_before_the_first_step_is_remembered_though_the_api_server_forgot_it(world):
    record = scene.record(admitted_at=time.time())
    job = scene.job(suspend=False, annotations={job_names.ANN_HOLD: "armed", **scene.history(record)})
    kube, reconciler = world(job, fresh(scene.workload(state="Ready", admitted=True)), scene.pod(0), scene.pod(1))
    kube.delete(POD, NS, "train-1-a1")
    kube.put(scene.pod(1, created=13))  # the Job controller's next one, of the same name in this scene
    until(lambda: reconciler.world.lost_of(NS, "train"))
    reconciler.handle(TASK)
    assert check_of(kube)["state"] == "Retry"
    assert "train-1-a1" in check_of(kube)["message"]


def test_pods_of_a_suspended_or_finished_job_are_not_lost(world):
    record = scene.record(admitted_at=time.time())
    kube, reconciler = world(
        scene.job(annotations=scene.history(record)), scene.pod(0), scene.pod(1, phase="Succeeded")
    )
    kube.delete(POD, NS, "train-0-a1")
    until(lambda: len(reconciler.world.pods_of(NS, "train")) == 1)
    kube.patch_job(NS, "train", {"spec": {"suspend": False}})
    until(lambda: not reconciler.world.jobs.get(NS, "train")["spec"]["suspend"])
    kube.delete(POD, NS, "train-1-a1")
    until(lambda: not reconciler.world.pods_of(NS, "train"))
    assert reconciler.world.lost_of(NS, "train") == []
