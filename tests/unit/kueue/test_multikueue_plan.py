"""The plan of a MultiKueue manager: what is due for a job, seen in all clusters. Every rule of docs/multikueue.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import CHECK, T0, at, condition, pod

from kueue_integration.cli import tables
from kueue_integration.contract import attempt_records, job_names
from kueue_integration.contract.record_types import AttemptRecord, JobRequest
from kueue_integration.controller.checkpoint_fit import ARCHITECTURE, CPUID
from kueue_integration.controller.machines import FlavorMachines
from kueue_integration.controller.reshape import LONGEST_BACK_S
from kueue_integration.jobs.status import summarise
from kueue_integration.multikueue import plan
from kueue_integration.multikueue.plan import Back, Drop, End, Grant, Hand, Record, Remove, Say, Site
from kueue_integration.requests import user_requests
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Needs, to_json

NAME = "job-train-1"


def local(*attempts: AttemptRecord, managed: bool = True, **fields: Any) -> dict[str, Any]:
    """The manager's Job."""
    marks = {job_names.ANN_HOLD: job_names.HOLD_ARMED, **(scene.history(*attempts) if attempts else {})}
    made = scene.job(annotations={**marks, **fields.pop("annotations", {})}, managed=managed, **fields)
    made["spec"]["managedBy"] = job_names.MULTIKUEUE_CONTROLLER
    return made


def copy(*attempts: AttemptRecord, deleted: bool = False, kept: bool = True, **fields: Any) -> dict[str, Any]:
    """The Job as a worker cluster has it."""
    marks = scene.history(*attempts) if attempts else {}
    made = scene.job(annotations={**marks, **fields.pop("annotations", {})}, suspend=fields.pop("suspend", False))
    made["metadata"]["labels"] |= {job_names.MULTIKUEUE_ORIGIN_LABEL: "manager", job_names.KUEUE_PREBUILT: NAME}
    if kept:
        made["metadata"]["finalizers"] = [job_names.FINALIZER_RECORDS]
    if deleted:
        made["metadata"]["deletionTimestamp"] = at(60)
    return made


def there(reserved_at: float | None = 10, **fields: Any) -> dict[str, Any]:
    """The Workload as a worker cluster has it."""
    made = scene.workload(NAME, reserved_at=reserved_at, owner=None, uid=fields.pop("uid", scene.WL_UID), **fields)
    made["metadata"]["labels"] = {job_names.MULTIKUEUE_ORIGIN_LABEL: "manager"}
    return made


def ran(attempt: int = 1, cluster: str = "a", **fields: Any) -> AttemptRecord:
    ended = {"ended_by": "Preempted", "evicted_at": T0 + 40, "first_step": 0, "last_step": 99, "first_step_at": T0 + 20}
    return scene.record(attempt, cluster=cluster, **{**ended, **fields})


HERE = scene.workload(NAME, state=None)
"""The manager's Workload, with the manager's quota."""
SAVED = {names.ANN_CHECKPOINT: to_json(scene.checkpoint())}


def decide(job: Any, sites: list[Site], workload: Any = HERE) -> plan.Step | None:
    return plan.decide(job, workload, sites, CHECK, T0 + 100)


# --- the fence --------------------------------------------------------------------------------------------------------
def test_the_first_attempt_goes_to_the_cluster_that_has_quota_longest():
    step = decide(local(), [Site("a", workload=there(30)), Site("b", workload=there(20, flavor="spot"))])
    assert isinstance(step, Grant) and step.cluster == "b"
    assert step.answer.attempt == 1
    assert step.answer.pod_annotations[job_names.ANN_FLAVOR] == "spot"
    (written,) = attempt_records.history({"metadata": {"annotations": step.answer.job_annotations}})
    assert (written.cluster, written.attempt, written.held) == ("b", 1, True)


def test_the_next_attempt_carries_number_and_checkpoint_on():
    step = decide(local(ran(), annotations=SAVED), [Site("a"), Site("b", workload=there(70))])
    assert isinstance(step, Grant) and (step.cluster, step.answer.attempt) == ("b", 2)
    assert step.answer.pod_annotations[names.ANN_CHECKPOINT] == scene.checkpoint().id
    assert step.answer.job_annotations[job_names.ANN_HOLD] == job_names.HOLD_ARMED
    before, after = attempt_records.history({"metadata": {"annotations": step.answer.job_annotations}})
    assert (before.cluster, after.cluster, after.restored_from) == ("a", "b", scene.checkpoint().id)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([Site("a", job=copy(ran(), suspend=True))], "earlier attempt to leave cluster a"),
        ([Site("a", job=copy(ran(), deleted=True, kept=False))], "earlier attempt to leave cluster a"),
        ([Site("a", pods=[pod(0, deleting=True)])], "pods in cluster a to end: train-0-a1"),
        ([Site("a", reachable=False)], "kubectl delete multikueuecluster a"),
        ([Site("a", workload=there(50, state="Ready", uid="other"))], "cluster a has been let in"),
    ],
)
def test_nothing_starts_while_something_of_the_attempt_before_may_write(others, words):
    job, just = local(ran(), annotations=SAVED), scene.workload(NAME, state=None, reserved_at=75)
    step = decide(job, [*others, Site("b", workload=there(70))], just)
    assert isinstance(step, Say) and step.cluster == "b" and words in step.message
    said = there(70)
    said["status"]["admissionChecks"][0]["message"] = step.message
    assert decide(job, [*others, Site("b", workload=said)], just) is None  # said once


def test_a_copy_that_kueue_has_left_behind_is_removed():
    """A slow cluster kept the manager busy for as long as the Workload had no quota."""
    job, waits = local(ran(), annotations=SAVED), there(70)
    assert decide(job, [Site("a", job=copy(ran(), suspend=True), workload=waits)]) == Remove("a")
    assert decide(job, [Site("a", job=copy(ran(), suspend=True)), Site("b", workload=waits)]) == Remove("a")


@pytest.mark.parametrize(
    "site",
    [
        Site("a", job=copy(ran())),  # it trains
        Site("a", job=copy(ran(), suspend=True), pods=[pod(0)]),
        Site("a", job=copy(ran(), suspend=True), reachable=False),
        Site("a", job=copy(ran(), suspend=True), workload=there(70, state="Ready")),  # Kueue has just made it
        Site("a", job=copy(ran(), suspend=True, deleted=True, kept=False)),
    ],
)
def test_a_copy_that_may_be_needed_is_not_removed(site):
    assert not isinstance(decide(local(ran(), annotations=SAVED), [site, Site("b", workload=there(60))]), Remove)


def test_the_copy_of_an_attempt_that_has_not_ended_is_not_removed():
    begun = ran(ended_by=None)
    sites = [Site("a", job=copy(begun, suspend=True)), Site("b", workload=there(60))]
    assert not isinstance(decide(local(begun, annotations=SAVED), sites), Remove)


def test_pods_that_have_ended_hold_nothing_back():
    step = decide(local(ran()), [Site("a", pods=[pod(0, phase="Failed")]), Site("b", workload=there(70))])
    assert isinstance(step, Grant)


def test_a_cluster_that_never_ran_the_job_may_be_silent():
    sites = [Site("c", reachable=False), Site("b", workload=there(70))]
    assert isinstance(decide(local(ran(cluster="a")), sites), Grant)


def test_a_crash_between_the_two_writes_gives_the_same_cluster_the_same_number():
    first = decide(local(), [Site("a", workload=there(20)), Site("b", workload=there(30, uid="other"))])
    assert isinstance(first, Grant) and first.cluster == "a"
    job = local(annotations=dict(first.answer.job_annotations))
    early = there(5, uid="other")  # meanwhile another cluster turns up with an earlier reservation
    again = decide(job, [Site("a", workload=there(20)), Site("b", workload=early)])
    assert isinstance(again, Grant) and (again.cluster, again.answer.attempt) == ("a", 1)
    assert again.answer.job_annotations == {}


def test_nothing_starts_without_the_managers_own_quota():
    waits = scene.workload(NAME, reserved_at=None)
    assert decide(local(ran()), [Site("a", workload=there(70))], waits) is None


def test_quota_that_a_worker_gives_while_the_manager_takes_the_job_away_is_given_back():
    leaves = scene.workload(NAME, evicted=("AdmissionCheck", "", 50), state=None)
    step = decide(local(ran()), [Site("a", job=copy(ran(), suspend=True), workload=there(70))], leaves)
    assert isinstance(step, Back) and step.cluster == "a" and step.action.requeue_after_s >= 1


AVX = FlavorMachines({}, {"new": {ARCHITECTURE: "amd64", CPUID + "AVX2": "true"}})
OLD = FlavorMachines({}, {"old": {ARCHITECTURE: "amd64", CPUID + "SSE42": "true"}})
NEEDS_AVX = {names.ANN_CHECKPOINT: to_json(replace(scene.checkpoint(), needs=Needs("amd64", ["AVX2"])))}


def test_a_checkpoint_goes_on_in_a_cluster_whose_machines_can_run_it():
    job = local(ran(), annotations=NEEDS_AVX)
    first = Site("a", workload=there(60), machines_of=lambda flavor: OLD)
    second = Site("b", workload=there(70, uid="other"), machines_of=lambda flavor: AVX)
    step = decide(job, [first, second])
    assert isinstance(step, Grant) and step.cluster == "b"  # though a has had quota for longer
    unknown = decide(job, [replace(first, machines_of=lambda flavor: None), second])
    assert isinstance(unknown, Grant) and unknown.cluster == "a"  # the restore looks itself


def test_quota_on_machines_that_cannot_run_the_checkpoint_is_given_back_and_the_user_told():
    job = local(ran(), annotations=NEEDS_AVX)
    workload = there(60)
    told = decide(job, [Site("a", workload=workload, machines_of=lambda flavor: OLD)])
    assert isinstance(told, Record)
    job["metadata"]["annotations"].update(told.change)
    assert "cluster a, flavor ondemand: its nodes lack AVX2" in (attempt_records.history(job)[-1].note or "")
    pauses = []
    for retries in (0, 1, 20):
        workload["status"]["admissionChecks"][-1]["retryCount"] = retries
        step = decide(job, [Site("a", workload=workload, machines_of=lambda flavor: OLD)])
        assert isinstance(step, Back) and step.cluster == "a" and not step.action.job_annotations
        assert "its nodes lack AVX2" in step.action.message
        pauses.append(step.action.requeue_after_s)
    assert pauses == sorted(set(pauses)) and pauses[-1] == LONGEST_BACK_S


def test_an_attempt_that_is_recorded_already_is_let_in_whatever_is_found_out_since():
    job = local(ran(), annotations=NEEDS_AVX)
    first = decide(job, [Site("a", workload=there(60))])
    assert isinstance(first, Grant)
    job["metadata"]["annotations"].update(first.answer.job_annotations)
    again = decide(job, [Site("a", workload=there(60), machines_of=lambda flavor: OLD)])
    assert isinstance(again, Grant) and again.answer.job_annotations == {}


def test_an_unreadable_annotation_stops_the_fence_and_says_so():
    step = decide(local(annotations={job_names.ANN_HISTORY: "{"}), [Site("a", workload=there())])
    assert isinstance(step, Say) and job_names.ANN_HISTORY in step.message


def test_a_job_that_is_not_ours_is_let_in_as_it_is():
    step = decide(local(managed=False), [Site("a", workload=there())])
    assert isinstance(step, Grant) and not step.answer.pod_annotations and not step.answer.job_annotations


# --- records ------------------------------------------------------------------------------------------------------
def test_records_of_the_copy_come_to_the_managers_job():
    job = local(scene.record(1, cluster="a"))
    newer = copy(scene.record(1, cluster="a", first_step=0), annotations={**SAVED, job_names.ANN_HOLD: "released"})
    step = decide(job, [Site("a", job=newer)])
    assert isinstance(step, Record)
    assert step.change[names.ANN_CHECKPOINT] == SAVED[names.ANN_CHECKPOINT]
    assert job_names.ANN_HOLD not in step.change  # the next attempt is held again
    job["metadata"]["annotations"].update(step.change)
    assert decide(job, [Site("a", job=newer)]) is None


def test_records_of_an_older_attempt_never_replace_newer_ones():
    job = local(ran(1), scene.record(2, cluster="b"))
    old = copy(ran(1), deleted=True, annotations=SAVED)
    assert decide(job, [Site("a", job=old), Site("b")]) == Drop("a")


def test_a_copy_made_of_an_old_reading_of_the_job_is_handed_the_attempt():
    job = local(scene.record(1, cluster="a"), annotations=SAVED)
    step = decide(job, [Site("a", job=copy())])
    assert isinstance(step, Hand) and step.cluster == "a"
    assert step.change[job_names.ANN_ATTEMPT] == "1" and step.change[job_names.ANN_HOLD] == job_names.HOLD_ARMED
    assert step.change[names.ANN_CHECKPOINT] == SAVED[names.ANN_CHECKPOINT]


def test_the_end_of_the_job_is_recorded_from_the_status_that_kueue_brings():
    done = condition("Complete", True, 90)
    job = local(scene.record(1, cluster="a", first_step=0), conditions=[done])
    behind = copy(scene.record(1, cluster="a", first_step=0), deleted=True)
    step = decide(job, [Site("a", job=behind)])
    assert isinstance(step, Record)
    job["metadata"]["annotations"].update(step.change)
    (last,) = attempt_records.history(job)
    assert last.ended_by == "Finished" and last.finished_at is not None
    assert decide(job, [Site("a", job=behind)]) == Drop("a")  # its history, which knows less, takes nothing back


def test_a_checkpoint_that_is_asked_for_here_is_taken_there_and_answered_here():
    request = JobRequest(id="r1", op="checkpoint", at=T0)
    job = local(scene.record(1, cluster="a"), annotations={**_written(request)})
    running = copy(scene.record(1, cluster="a"))
    step = decide(job, [Site("a", job=running)])
    assert step == Hand("a", user_requests.written(request))
    running["metadata"]["annotations"].update(step.change)
    assert decide(job, [Site("a", job=running)]) is None
    answer = {job_names.ANN_CHECKPOINT_STATUS: '{"id":"r1","op":"checkpoint","state":"done","message":"","at":1.0}'}
    running["metadata"]["annotations"].update(answer)
    step = decide(job, [Site("a", job=running)])
    assert isinstance(step, Record) and set(step.change) == {job_names.ANN_CHECKPOINT_STATUS}
    job["metadata"]["annotations"].update(step.change)
    # A later, periodic request of the worker's controller replaces it there: it is not asked for again.
    later = JobRequest(id="p2", op="checkpoint", at=T0, by="policy")
    running["metadata"]["annotations"].update(_written(later))
    assert decide(job, [Site("a", job=running)]) is None


def test_other_requests_are_refused_with_what_to_do():
    job = local(scene.record(1, cluster="a"), annotations=_written(JobRequest(id="r", op="pause", at=T0)))
    step = decide(job, [])
    assert isinstance(step, Record)
    job["metadata"]["annotations"].update(step.change)
    answer = user_requests.answer(job, user_requests.CHANGE)
    assert answer is not None and answer.state == "failed" and "spec.active" in answer.message


def _written(request: JobRequest) -> dict[str, str]:
    return {k: v for k, v in user_requests.written(request).items() if v is not None}


# --- copies that go -----------------------------------------------------------------------------------------------
def test_a_copy_goes_when_its_records_are_here_and_its_pods_have_ended():
    record = ran()
    going = copy(record, deleted=True, annotations=SAVED)
    job = local(replace(record, last_step=50))
    assert isinstance(decide(job, [Site("a", job=going)]), Record)  # first of all
    job = local(record, annotations=SAVED)
    assert decide(job, [Site("a", job=going, pods=[pod(0)])]) == End("a", ["train-0-a1"])
    assert decide(job, [Site("a", job=going, pods=[pod(0, deleting=True)])]) is None
    assert decide(job, [Site("a", job=going, pods=[pod(0, phase="Failed", deleting=True)])]) == Drop("a")
    assert decide(job, [Site("a", reachable=False, job=going)]) is None


def test_a_copy_of_a_job_that_is_gone_goes_at_once():
    going = copy(ran(), deleted=True)
    assert plan.decide(None, None, [Site("a", job=going, pods=[pod(0)])], CHECK, T0) == Drop("a")
    assert plan.decide(None, None, [Site("a", job=copy(ran()))], CHECK, T0) is None  # Kueue deletes it first
    other = copy(ran(), deleted=True)
    other["metadata"]["labels"][job_names.KUEUE_PREBUILT] = "job-train-of-before"
    assert decide(local(), [Site("a", job=other)]) == Drop("a")


def test_whose_copies_they_are_is_not_guessed_while_kueue_has_no_workload():
    assert decide(local(ran()), [Site("a", job=copy(ran(), deleted=True))], None) is None


# --- what people see ----------------------------------------------------------------------------------------------
def test_status_at_the_manager_names_the_cluster():
    record = scene.record(1, cluster="east", first_step=0, first_step_at=T0 + 20)
    job = local(record, suspend=False)
    job["status"] = {"active": 2, "ready": 2}
    status = summarise(job, scene.workload(NAME, state=None, admitted=True), [])
    assert (status.phase, status.cluster, status.pods) == ("Running", "east", 2)
    assert "on ondemand in cluster east" in status.message
    assert "east/ondemand" in tables.attempts_table(status.attempts)
    assert "east/ondemand" in tables.jobs_table([status])
    here = summarise(scene.job(annotations=scene.history(scene.record(1))), scene.workload(), [])
    assert here.cluster == "" and "/" not in tables.attempts_table(here.attempts)
