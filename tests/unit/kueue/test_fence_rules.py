"""The fence: when an attempt may start, which number it gets, and what its pods are told."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import T0, at

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import JobRequest, RequestStatus
from kueue_integration.controller.actions import BOTH, AnswerReady, Guard, RequestReadmission, Wait, Withdraw
from kueue_integration.controller.hold import Settings
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import to_json

NOW = T0 + 12


def look(job, workload, pods=(), now=NOW):
    return scene.decide(job, workload, list(pods), now)


def test_the_first_attempt_starts_with_number_one_and_no_checkpoint():
    job = scene.job(annotations={job_names.ANN_HOLD: "armed", job_names.ANN_WORLD_SIZE: "4"})
    action = look(job, scene.workload()).action
    assert isinstance(action, AnswerReady)
    assert action.pod_annotations == {
        job_names.ANN_ATTEMPT: "1",
        names.ANN_CHECKPOINT: "",
        job_names.ANN_WORKERS: "2",
        job_names.ANN_FLAVOR: "ondemand",
    }
    assert action.job_annotations[job_names.ANN_ATTEMPT] == "1"
    assert action.job_annotations[job_names.ANN_HOLD] == "armed"
    assert action.job_annotations[job_names.ANN_HOLD_DEADLINE] is None
    (record,) = scene.stored(action.job_annotations)
    assert (record.attempt, record.pods, record.ranks, record.flavor) == (1, 2, 4, "ondemand")
    assert (record.admitted_at, record.queued_at, record.ended_by) == (NOW, T0, None)


@pytest.mark.parametrize("url", ["http://169.254.169.254/x", "file:///shared/checkpoints/../other", "gs://other/x"])
def test_no_attempt_starts_from_a_checkpoint_of_another_store(url):
    saved = to_json(dataclasses.replace(scene.checkpoint(), url=url))
    notes = {names.ANN_CHECKPOINT: saved, job_names.ANN_STORE: "file:///shared/checkpoints"}
    job = scene.job(annotations=scene.history(scene.record(checkpoint="train-a1-g1")) | notes)
    action = look(job, scene.workload()).action
    assert isinstance(action, Wait)
    assert url in action.message
    assert "file:///shared/checkpoints" in action.message


def test_a_job_that_is_not_managed_starts_at_once_and_untouched():
    action = look(scene.job(managed=False), scene.workload(), [scene.pod(0)]).action
    assert isinstance(action, AnswerReady)
    assert (action.job_annotations, action.pod_annotations) == ({}, {})


def ours(obj):
    """`obj`, a Job or a Workload, with our label on the pods that are made from it."""
    for owner in obj["spec"].get("podSets") or [obj["spec"]]:
        owner.setdefault("template", {})["metadata"] = {"labels": {job_names.LABEL_MANAGED: "true"}}
    return obj


@pytest.mark.parametrize("evicted", [None, ("Preempted", scene.PREEMPTED, 30.0)], ids=["new", "evicted, released"])
def test_who_is_none_of_ours_is_answered_before_there_is_quota(evicted):
    """Kueue then admits in the write that reserves quota; after an eviction the check is Pending again."""
    action = look(scene.job(managed=False), scene.workload(reserved_at=None, evicted=evicted)).action
    assert isinstance(action, AnswerReady)
    assert (action.job_annotations, action.pod_annotations) == ({}, {})


@pytest.mark.parametrize("change", ["managed", "our pods", "ready already", "finished", "deleted", "no check of ours"])
def test_nobody_else_is_answered_before_there_is_quota(change):
    states = {"ready already": "Ready", "no check of ours": None}
    ended = [scene.condition("Finished", True, 11)] if change == "finished" else None
    workload = scene.workload(reserved_at=None, state=states.get(change, "Pending"), extra_conditions=ended)
    if change == "deleted":
        workload["metadata"]["deletionTimestamp"] = at(11)
    if change == "our pods":  # a Job that is to be managed, and a Workload that is to get an owner
        ours(workload)
    decision = look(scene.job(managed=change == "managed"), workload)
    assert decision.action is None


def test_an_answer_from_before_a_job_was_managed_is_taken_back():
    action = look(scene.job(), scene.workload(reserved_at=None, state="Ready")).action
    assert isinstance(action, Withdraw)
    assert look(scene.job(managed=False), scene.workload(reserved_at=None, state="Ready")).action is None


def test_a_job_that_kueue_admitted_in_the_moment_it_became_managed_is_admitted_again():
    """The scheduler writes the checks as it knew them: it may put back what was taken back."""
    job, workload = ours(scene.job(suspend=False)), ours(scene.workload(state="Ready", admitted=True))
    assert isinstance(look(job, workload).action, RequestReadmission)
    workload["status"]["admissionChecks"][0]["podSetUpdates"] = [{"name": "main"}]  # an answer to a managed Job
    assert look(job, workload).action is None


@pytest.mark.parametrize("admitted", [True, False], ids=["admitted", "another check is pending"])
def test_an_answer_that_kueue_has_brought_back_for_another_reservation_lets_nobody_in(admitted):
    """As in a replay: evicted a moment after our answer, and admitted again by a scheduler whose copy was older."""
    over = scene.record(evicted_at=T0 + 12, ended_by="Preempted", released_at=T0 + 15)
    notes = {**scene.history(over), job_names.ANN_HOLD: "released"}
    workload = scene.workload(reserved_at=20, state="Ready", admitted=admitted, count=1)
    workload["status"]["admissionChecks"][0]["podSetUpdates"] = [{"name": "main"}]
    action = look(scene.job(annotations=notes, suspend=not admitted), workload).action
    assert isinstance(action, RequestReadmission if admitted else Withdraw)
    assert action.message == "the answer was for attempt 1, which is over"
    assert action.guard == (BOTH if admitted else Guard.WORKLOAD_VERSION) | Guard.FRESH_READS
    # What was answered for this reservation stands, also while the Job is about to start or has started.
    answered = scene.history(over, scene.record(2, reservation=f"{scene.WL_UID}/{at(20)}"))
    for suspend in (True, False):
        assert look(scene.job(annotations={**notes, **answered}, suspend=suspend), workload).action is None


@pytest.mark.parametrize(
    ("reserved_at", "expected"), [(10, None), (20, None), (None, Withdraw)], ids=["as was", "again", "released"]
)
def test_an_answer_that_outlives_an_eviction_is_taken_back_once_the_quota_is_gone(reserved_at, expected):
    """Kueue resets it in the write that evicts, unless its copy was older than our answer."""
    over = scene.record(evicted_at=T0 + 12, ended_by="Preempted", released_at=T0 + 15)
    evicted = ("Preempted", scene.PREEMPTED, 12.0)
    workload = scene.workload(reserved_at=reserved_at, state="Ready", evicted=evicted)
    workload["status"]["admissionChecks"][0]["podSetUpdates"] = [{"name": "main"}]
    notes = {**scene.history(over), job_names.ANN_HOLD: "released"}
    action = look(scene.job(annotations=notes), workload).action
    assert isinstance(action, expected) if expected else not isinstance(action, (Withdraw, RequestReadmission))


def test_nobody_is_answered_while_evicted_is_true():
    """Kueue resets the check to Pending while the old admission still stands: an answer would carry the old count."""
    evicted = ("Preempted", scene.PREEMPTED, 30.0)
    job = scene.job(annotations=scene.history(scene.record(evicted_at=T0 + 30, ended_by="Preempted")))
    decision = look(job, scene.workload(evicted=evicted, count=4))
    assert not isinstance(decision.action, (AnswerReady, Wait))
    # Quota again, elsewhere and less of it: count and flavor are those of the new reservation.
    action = look(job, scene.workload(reserved_at=33, count=1, flavor="spot")).action
    assert isinstance(action, AnswerReady)
    assert action.pod_annotations[job_names.ANN_WORKERS] == "1"
    assert action.pod_annotations[job_names.ANN_FLAVOR] == "spot"
    assert action.attempt == 2


@pytest.mark.parametrize("change", ["no quota", "ready already", "finished", "deleted", "no check of ours"])
def test_only_a_pending_check_of_a_live_workload_with_quota_is_answered(change):
    workload = scene.workload(
        reserved_at=None if change == "no quota" else 10,
        state={"ready already": "Ready", "no check of ours": None}.get(change, "Pending"),
        extra_conditions=[scene.condition("Finished", True, 11)] if change == "finished" else None,
    )
    if change == "deleted":
        workload["metadata"]["deletionTimestamp"] = at(11)
    assert not isinstance(look(scene.job(), workload).action, (AnswerReady, Wait))


@pytest.mark.parametrize(
    ("pod", "blocks"),
    [
        (scene.pod(0, phase="Running"), True),
        (scene.pod(0, phase="Running", deleting=True), True),
        (scene.pod(0, phase="Pending"), True),
        (scene.pod(0, phase="Unknown"), True),
        (scene.pod(0, phase="Failed"), False),
        (scene.pod(0, phase="Failed", deleting=True), False),
        (scene.pod(0, phase="Succeeded"), False),
    ],
)
def test_an_attempt_starts_only_when_no_earlier_pod_can_write(pod, blocks):
    job = scene.job(annotations=scene.history(scene.record(evicted_at=T0 + 11, ended_by="Preempted")))
    action = look(job, scene.workload(reserved_at=12), [pod]).action
    if blocks:
        assert isinstance(action, Wait)
        assert pod["metadata"]["name"] in action.message
    else:
        assert isinstance(action, AnswerReady)


def test_a_job_that_still_runs_is_not_answered():
    assert isinstance(look(scene.job(suspend=False), scene.workload()).action, Wait)


def test_after_a_crash_between_the_two_patches_the_same_attempt_is_answered():
    first = look(scene.job(), scene.workload()).action
    assert isinstance(first, AnswerReady)
    written = {k: v for k, v in first.job_annotations.items() if v is not None}
    again = look(scene.job(annotations=written), scene.workload()).action
    assert isinstance(again, AnswerReady)
    assert again.job_annotations == {}
    assert again.pod_annotations == first.pod_annotations


def test_a_second_reservation_in_the_same_second_is_a_new_attempt():
    ran = scene.record(first_step=0, evicted_at=T0 + 10.5, ended_by="Preempted")
    action = look(scene.job(annotations=scene.history(ran)), scene.workload()).action
    assert isinstance(action, AnswerReady)
    assert action.attempt == 2


def test_the_next_attempt_continues_from_the_committed_checkpoint():
    ended = scene.record(ended_by="Preempted", evicted_at=T0 + 20, committed_at=T0 + 22, released_at=T0 + 23)
    annotations = {**scene.history(ended), names.ANN_CHECKPOINT: to_json(scene.checkpoint())}
    action = look(scene.job(annotations=annotations), scene.workload(reserved_at=40)).action
    assert isinstance(action, AnswerReady)
    assert action.pod_annotations[names.ANN_CHECKPOINT] == "train-a1-g1"
    before, new = scene.stored(action.job_annotations)
    assert (new.attempt, new.restored_from, new.queued_at) == (2, "train-a1-g1", T0 + 23)
    assert before == replace(ended, pods_gone_at=NOW), "the fence has waited for its pods until now"
    assert new.reserved_at == T0 + 40
    assert job_names.ANN_HOLD not in action.job_annotations  # this job never wanted the hold


@pytest.mark.parametrize(("op", "finished", "queued"), [
    ("resume", 90, 90), ("resume", None, 89), ("resume", 10, 23), ("resize", 90, 23),
])  # fmt: skip
def test_the_time_of_a_pause_is_no_waiting(op, finished, queued):
    """A job that was paused for a day, and resumed a moment ago, has not waited for a day."""
    ended = scene.record(ended_by="Paused", evicted_at=T0 + 20, committed_at=T0 + 22, released_at=T0 + 23)
    said = RequestStatus("r1", op, "done", "so", T0 + 89, 1, finished_at=None if finished is None else T0 + finished)
    notes = {**scene.history(ended), job_names.ANN_REQUEST: to_json(JobRequest("r1", op, T0 + 88, workers=2)),
             job_names.ANN_REQUEST_STATUS: to_json(said)}  # fmt: skip
    action = look(scene.job(annotations=notes), scene.workload(reserved_at=95)).action
    assert isinstance(action, AnswerReady)
    assert scene.stored(action.job_annotations)[-1].queued_at == T0 + queued


def test_attempts_only_grow_even_when_the_history_was_lost():
    action = look(scene.job(annotations={job_names.ANN_ATTEMPT: "7"}), scene.workload()).action
    assert isinstance(action, AnswerReady)
    assert action.attempt == 8


def test_an_eviction_that_nobody_saw_is_read_from_what_kueue_kept():
    previously = scene.condition("Evicted", False, 33, "QuotaReserved", "Previously: " + scene.PREEMPTED)
    job = scene.job(annotations=scene.history(scene.record()))
    workload = scene.workload(reserved_at=33, extra_conditions=[previously])
    action = scene.decide(job, workload, [], NOW, Settings(), scene.preemptors({"99-wl": "job-big"})).action
    assert isinstance(action, AnswerReady)
    before, new = scene.stored(action.job_annotations)
    assert (before.ended_by, before.preempted_by) == ("Preempted", "job-big")
    assert (before.evicted_at, before.released_at, new.queued_at) == (None, None, None)  # not seen, not made up


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.ANN_CHECKPOINT, "{"),
        (names.ANN_CHECKPOINT, '{"id": "x"}'),
        (job_names.ANN_ATTEMPT, "two"),
        (job_names.ANN_WORLD_SIZE, "-4"),
    ],
)
def test_an_unreadable_annotation_stops_the_attempt_and_is_named(name, value):
    action = look(scene.job(annotations={name: value}), scene.workload()).action
    assert isinstance(action, Wait)
    assert name in action.message
    assert value in action.message


def test_the_history_is_bounded():
    many = [scene.record(n, ended_by="Preempted", evicted_at=T0 + n, reservation=str(n)) for n in range(1, 61)]
    action = look(scene.job(annotations=scene.history(*many)), scene.workload()).action
    assert isinstance(action, AnswerReady)
    kept = scene.stored(action.job_annotations)
    assert (len(kept), kept[0].attempt, kept[-1].attempt) == (50, 12, 61)


def test_a_pod_on_a_lost_node_is_named_with_what_unblocks_it():
    lost = scene.pod(0, deleting=True)
    lost["spec"]["nodeName"] = "gpu-7"
    lost["metadata"]["deletionTimestamp"] = at(20)
    job = scene.job(annotations=scene.history(scene.record(evicted_at=T0 + 11, ended_by="Preempted")))
    early = look(job, scene.workload(reserved_at=12), [lost], now=T0 + 25)
    assert isinstance(early.action, Wait)
    assert "gpu-7" not in early.action.message
    assert early.wake_at == T0 + 50
    late = look(job, scene.workload(reserved_at=12), [lost], now=T0 + 50)
    assert isinstance(late.action, Wait)
    assert late.wake_at is None
    name = lost["metadata"]["name"]
    for text in (
        f"pod {name} should have ended at {at(20)}, but its node gpu-7 does not say so",
        "kubectl taint nodes gpu-7 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
        "kubectl delete node gpu-7",
        f"kubectl delete pod {name} -n team --force --grace-period=0",
    ):
        assert text in late.action.message
    lost["spec"]["nodeName"] = ""  # never scheduled: nothing of it runs anywhere, the Job controller removes it
    assert "should have ended" not in look(job, scene.workload(reserved_at=12), [lost], now=T0 + 99).action.message
