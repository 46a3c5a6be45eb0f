"""What else one look at a Job can lead to: the history, and attempts that broke without Kueue."""

from __future__ import annotations

from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import T0, at
from job_builder import a_job

from kueue_integration.contract import job_names
from kueue_integration.controller.actions import GiveUp, RecordHistory, ReleaseHold, RequestReadmission, StartCheckpoint
from kueue_integration.controller.decide import STUCK_S
from kueue_integration.jobs.status import summarise
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import last_words

NOW = T0 + 100


def look(job, workload, pods=(), now=NOW):
    return scene.decide(job, workload, list(pods), now)


RUNS = a_job().running()
ADMITTED = scene.workload(state="Ready", admitted=True)
PODS = [scene.pod(0), scene.pod(1)]


def test_a_job_that_runs_well_is_left_alone():
    assert a_job().running().look().action is None


def test_the_release_of_quota_is_recorded_with_kueues_second():
    ended = scene.record(evicted_at=T0 + 30, ended_by="Preempted", committed_at=T0 + 32)
    job = scene.job(annotations=scene.history(ended))
    released = [scene.condition("QuotaReserved", False, 33), scene.condition("Evicted", True, 30, "Preempted")]
    action = look(job, scene.workload(reserved_at=None, extra_conditions=released), now=T0 + 33.4).action
    assert isinstance(action, RecordHistory)
    assert scene.stored(action.job_annotations)[0].released_at == T0 + 33.4
    # seen much later: the second it happened in, not the time of the look
    late = look(job, scene.workload(reserved_at=None, extra_conditions=released), now=T0 + 90).action
    assert isinstance(late, RecordHistory)
    assert T0 + 33 <= scene.stored(late.job_annotations)[0].released_at < T0 + 34


def test_the_end_of_an_evicted_attempts_pods_is_recorded_once():
    ended = scene.record(evicted_at=T0 + 30, ended_by="Preempted", released_at=T0 + 33.4)
    job = scene.job(annotations=scene.history(ended))
    waits = scene.workload(reserved_at=None, extra_conditions=[scene.condition("QuotaReserved", False, 33)])
    leaving, gone = scene.pod(0, deleting=True), scene.pod(1, phase="Failed")
    assert look(job, waits, [leaving, gone], now=T0 + 34).action is None
    action = look(job, waits, [scene.pod(0, attempt=2), gone], now=T0 + 35).action
    assert isinstance(action, RecordHistory)
    (record,) = scene.stored(action.job_annotations)
    assert record == replace(ended, pods_gone_at=T0 + 35)
    job = scene.job(annotations=scene.history(record))
    assert look(job, waits, [gone], now=T0 + 36).action is None
    assert look(job, waits, [leaving], now=T0 + 37).action is None


def test_pods_in_another_cluster_are_not_taken_for_gone():
    ended = scene.record(evicted_at=T0 + 30, ended_by="Preempted", released_at=T0 + 33.4, cluster="far")
    waits = scene.workload(reserved_at=None, extra_conditions=[scene.condition("QuotaReserved", False, 33)])
    assert look(scene.job(annotations=scene.history(ended)), waits, now=T0 + 35).action is None


@pytest.mark.parametrize(("type_", "ended"), [("Complete", "Finished"), ("Failed", "Failed")])
def test_the_end_of_the_job_is_recorded_once(type_, ended):
    one = RUNS.ended(type_, 50, "BackoffLimitExceeded", "too many failures").with_pods()
    action = one.look().action
    assert isinstance(action, RecordHistory)
    (record,) = scene.stored(action.job_annotations)
    assert record.ended_by == ended
    assert T0 + 50 <= record.finished_at < T0 + 51
    assert record.note == ("BackoffLimitExceeded: too many failures" if ended == "Failed" else None)
    assert one.after(action.job_annotations).look().action is None


def test_a_job_that_completes_while_it_is_evicted_has_finished():
    one = a_job().in_attempt(scene.record(evicted_at=T0 + 40, ended_by="Preempted")).preempted(40.0)
    action = one.ended("Complete").look().action
    assert isinstance(action, RecordHistory)
    assert scene.stored(action.job_annotations)[0].ended_by == "Finished"


def test_pods_that_stopped_with_a_checkpoint_are_readmitted():
    """kubectl delete pod, a node drain: SIGTERM, checkpoint, exit; Kueue knows nothing of it."""
    record = scene.record(first_step=0, first_step_at=T0 + 20, checkpoint="train-a1-g1", committed_at=T0 + 60)
    action = a_job().in_attempt(record).look().action
    assert isinstance(action, RequestReadmission)
    assert "train-a1-g1" in action.message
    assert action.job_annotations[job_names.ANN_HOLD] == "released"
    assert scene.stored(action.job_annotations)[0].ended_by == "Deleted"


def test_a_lost_pod_breaks_the_attempt_once_the_job_controller_has_counted_it():
    lost = scene.pod(1, phase="Failed", tracked=True)
    assert RUNS.with_pods(scene.pod(0), lost).look().action is None
    counted = scene.pod(1, phase="Failed")
    action = RUNS.with_pods(scene.pod(0), counted).look().action
    assert isinstance(action, RequestReadmission)
    assert counted["metadata"]["name"] in action.message


KILLED = "out of memory: the kernel killed it"
TORCH = "rank 1 ended with code 75: torch.OutOfMemoryError: CUDA out of memory (train.py:9 in main)"
KERNEL = f"rank 1 ended with code 137: {KILLED}, the limit of the container is 256 MiB"


def ended(index, code, reason="Error", message="", limit=None):
    """A failed pod that the Job controller has counted."""
    pod = scene.pod(index, phase="Failed")
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    resources = {"limits": {"memory": limit}} if limit else {}
    pod["status"]["containerStatuses"] = [{"name": "train", "state": state, "resources": resources}]
    return pod


@pytest.mark.parametrize(
    ("pod", "ended_by", "said"),
    [
        (ended(1, 137, message=last_words(KERNEL, "memory")), "OutOfMemory", KERNEL),
        (ended(1, 75, message=last_words(TORCH, "program")), "Deleted", TORCH),
        (ended(1, 75, message=TORCH), "Deleted", TORCH),
        (ended(1, 75, message='{"text": "a newer agent", "cause": "gpu", "xid": 79}'), "Deleted", "a newer agent"),
        (ended(1, 137, "OOMKilled", TORCH), "OutOfMemory", KILLED),
        (ended(1, 137, "OOMKilled", limit="1Gi"), "OutOfMemory", f"{KILLED}, the limit of the container is 1Gi"),
        (ended(1, 137, "OOMKilled"), "OutOfMemory", KILLED),
        (ended(1, 137), "Deleted", "it ended with code 137: it was killed (SIGKILL)"),
        (ended(1, 143), "Deleted", ""),
        (ended(1, 143, message="store gs://b: cannot read x: 503"), "Deleted", "store gs://b: cannot read x: 503"),
    ],
)  # fmt: skip
def test_an_attempt_says_whether_its_pod_was_killed_for_memory(pod, ended_by, said):
    action = RUNS.with_pods(scene.pod(0), pod).look().action
    assert isinstance(action, RequestReadmission)
    record = scene.stored(action.job_annotations)[0]
    assert record.ended_by == ended_by
    name = pod["metadata"]["name"]
    lost = f"pod {name} of attempt 1 was lost" + (f": {said}" if said else "")
    assert record.note == action.message == f"{lost}; restarts from the beginning"


def test_a_kill_for_memory_that_is_seen_after_its_consequences_is_told_too():
    """The other ranks lose their connections: their pods may be counted before the one that began it."""
    other = ended(0, 143)
    first = RUNS.with_pods(other, scene.pod(1)).look().action
    assert scene.stored(first.job_annotations)[0].ended_by == "Deleted"
    evicted = RUNS.after(first.job_annotations).evicted("AdmissionCheck", "at our request", 60.0)
    one = evicted.with_pods(other, ended(1, 137, message=last_words(KERNEL, "memory")))
    told = one.look().action
    assert isinstance(told, RecordHistory)
    record = scene.stored(told.job_annotations)[0]
    assert record.ended_by == "OutOfMemory"
    assert record.note.endswith(KERNEL)
    again = one.after(told.job_annotations).look().action
    assert not isinstance(again, RecordHistory)


def test_a_job_that_failed_says_how_its_pod_ended():
    pod = ended(1, 70, message="rank 1: CRIU restore ended with 1: no such file")
    failed = RUNS.ended("Failed", 50, "PodFailurePolicy", "exit code 70 matches")
    action = failed.with_pods(scene.pod(0), pod).look().action
    assert isinstance(action, RecordHistory)
    record = scene.stored(action.job_annotations)[0]
    assert (record.ended_by, record.note) == (
        "Failed", "PodFailurePolicy: exit code 70 matches. rank 1: CRIU restore ended with 1: no such file",
    )  # fmt: skip


def test_a_preemption_stays_one_whatever_its_pods_end_with():
    record = scene.record(evicted_at=T0 + 40, ended_by="Preempted", released_at=T0 + 41)
    one = a_job().in_attempt(record).preempted(40.0)
    found = one.with_pods(scene.pod(0), ended(1, 137, message=last_words(KERNEL, "memory"))).look().action
    assert not isinstance(found, RecordHistory)


def test_a_lost_pod_of_a_job_that_is_failing_changes_nothing():
    assert RUNS.ended("FailureTarget").losing_a_pod().look().action is None


def test_failed_pods_of_an_earlier_attempt_do_not_break_this_one():
    record = scene.record(2, first_step=9, first_step_at=T0 + 20)
    pods = [scene.pod(0, attempt=1, phase="Failed"), scene.pod(0, attempt=2), scene.pod(1, attempt=2)]
    assert a_job().in_attempt(record).with_pods(*pods).look().action is None


def test_a_replacement_pod_breaks_the_attempt():
    """Even when nobody saw the lost one go: it is not among the pods that the first step was taken with."""
    action = RUNS.with_pods(scene.pod(0), scene.pod(1, created=60)).look().action
    assert isinstance(action, RequestReadmission)
    assert "replaces" in action.message


def test_a_second_pod_of_an_index_is_a_replacement_before_the_first_step_too():
    pods = [scene.pod(0), scene.pod(1, phase="Failed", tracked=True), scene.pod(1, created=13)]
    action = a_job().in_attempt(scene.record()).with_pods(*pods).look().action
    assert isinstance(action, RequestReadmission)
    assert pods[2]["metadata"]["name"] in action.message
    assert "replaces" in action.message


@pytest.mark.parametrize("first_step_at", [None, T0 - 30, T0 + 500])
def test_pods_that_are_made_slowly_replace_nobody(first_step_at):
    """Whatever the clocks of nodes and API server say: only facts make a pod a replacement."""
    record = scene.record(pods=40, first_step=0, first_step_at=first_step_at)
    pods = [scene.pod(n, created=11 + 9 * n) for n in range(40)]
    job = scene.job(suspend=False, parallelism=40, annotations=scene.history(record))
    first = look(job, ADMITTED, pods).action
    if first_step_at is not None:  # the pods of the first step are remembered, in one write
        assert isinstance(first, RecordHistory)
        assert list(first.job_annotations) == [job_names.ANN_PODS]
        job["metadata"]["annotations"].update(first.job_annotations)
        first = look(job, ADMITTED, pods).action
    assert first is None


def test_the_pods_of_an_attempt_are_not_remembered_while_one_is_missing():
    record = scene.record(first_step=0, first_step_at=T0 + 20)
    job = scene.job(suspend=False, annotations=scene.history(record))
    for pods in ([scene.pod(0)], [scene.pod(0), scene.pod(0, created=50)]):
        action = look(job, None, pods).action
        assert action is None or job_names.ANN_PODS not in action.job_annotations


def test_a_workload_that_is_gone_without_a_trace_leads_to_a_checkpoint():
    """Its finalizer was removed by hand: Kueue wants to suspend the Job, and nothing ever says Evicted."""
    one = RUNS.without_workload()
    start = one.look().action
    assert isinstance(start, StartCheckpoint)
    assert start.deadline == NOW + 600
    (record,) = scene.stored(start.job_annotations)
    assert (record.ended_by, record.evicted_at) == ("Deleted", NOW)
    assert "its Workload was deleted" in record.note
    held = one.after(start.job_annotations)
    assert held.look(NOW + 599).action is None
    end = held.look(NOW + 600).action
    assert isinstance(end, ReleaseHold)
    assert end.job_annotations[job_names.ANN_HOLD] == "released"


def test_without_workload_and_pods_the_hold_ends_at_once():
    assert isinstance(RUNS.without_workload().with_pods().look().action, ReleaseHold)


def test_a_pod_that_does_not_end_is_on_a_lost_node():
    stuck = scene.pod(1, deleting=True)  # its grace period is over at 12
    one = RUNS.with_pods(scene.pod(0), stuck)
    early = one.look(T0 + 20)
    assert early.action is None
    assert early.wake_at == T0 + 12 + STUCK_S
    action = one.look(T0 + 12 + STUCK_S).action
    assert isinstance(action, RequestReadmission)
    assert "its node does not answer" in action.message


def test_an_index_that_is_done_cannot_be_started_again():
    pods = [scene.pod(0, phase="Succeeded"), scene.pod(1, phase="Failed")]
    assert RUNS.with_pods(*pods).look().action is None


def test_each_fruitless_attempt_in_a_row_makes_the_next_one_wait_longer():
    def pause(*before):
        records = [*before, scene.record(9, first_step=0, first_step_at=T0 + 20)]
        job = scene.job(suspend=False, annotations=scene.history(*records))
        pods = [scene.pod(0, attempt=9), scene.pod(1, attempt=9, phase="Failed")]
        action = look(job, ADMITTED, pods).action
        assert isinstance(action, RequestReadmission)
        return action.requeue_after_s

    broken, fruitful = scene.record(ended_by="Deleted"), scene.record(ended_by="Deleted", checkpoint="c")
    assert pause() == 1
    assert pause(broken) == 2
    assert pause(scene.record(ended_by="Preempted"), broken, broken) == 4
    assert pause(broken, fruitful) == 1
    assert pause(*[broken] * 40) == 300


@pytest.mark.parametrize("state", ["Retry", "Pending"])
def test_readmission_is_asked_for_once(state):
    record = scene.record(checkpoint="train-a1-g1", committed_at=T0 + 60, ended_by="Deleted", note="said")
    one = a_job().in_attempt(record)
    action = look(one.job, scene.workload(state=state, admitted=True), PODS).action
    assert not isinstance(action, RequestReadmission)


def test_a_job_that_is_being_deleted_is_left_alone():
    job = a_job().in_attempt(scene.record(checkpoint="train-a1-g1", committed_at=T0 + 60)).job
    job["metadata"]["deletionTimestamp"] = at(70)
    assert look(job, ADMITTED, PODS).action is None


def test_a_job_that_is_not_ours_is_left_alone():
    job = scene.job(managed=False, suspend=False, annotations=scene.history(scene.record(checkpoint="x")))
    assert look(job, ADMITTED, PODS).action is None


def test_garbage_in_annotations_never_raises():
    for name in (job_names.ANN_HISTORY, job_names.ANN_ATTEMPT, names.ANN_CHECKPOINT, job_names.ANN_HOLD_DEADLINE):
        for workload in (None, ADMITTED, scene.workload(evicted=("Preempted", "", 30.0))):
            look(RUNS.with_note(name, "\x00{").job, workload, PODS)


def test_the_attempt_beyond_the_infrastructure_budget_fails_the_job():
    one = RUNS.with_note(job_names.ANN_INFRASTRUCTURE_RETRIES, "1").losing_a_pod()
    first = one.look().action
    assert isinstance(first, RequestReadmission)
    one = one.after(first.job_annotations)
    again = one.look().action  # the controller died before it could write the check
    assert isinstance(again, RequestReadmission)
    counted = one.notes[job_names.ANN_BROKEN]
    assert again.job_annotations.get(job_names.ANN_BROKEN, counted) == counted
    last = scene.record(2, first_step=0, first_step_at=T0 + 20)
    second = one.after({**scene.history(last), job_names.ANN_ATTEMPT: "2"})
    over = second.with_pods(scene.pod(0, attempt=2), scene.pod(1, attempt=2, phase="Failed")).look().action
    assert isinstance(over, GiveUp)
    assert "its budget of 1 infrastructure retries is used up" in over.message
    assert scene.stored(over.annotations)[0].note == over.message
    found = summarise(second.after(over.annotations).ended("Failed").job, None, ())
    assert (found.phase, found.reason, found.broken_attempts) == ("Failed", "InfrastructureRetriesExceeded", 2)


def test_an_attempt_that_stopped_with_a_checkpoint_uses_no_budget():
    record = scene.record(checkpoint="c", first_step=0, first_step_at=T0 + 20)
    one = a_job().in_attempt(record).with_note(job_names.ANN_INFRASTRUCTURE_RETRIES, "0")
    action = one.losing_a_pod().look().action
    assert isinstance(action, RequestReadmission)
    assert job_names.ANN_BROKEN not in action.job_annotations
