"""What messages of the pods do to a Job, without any server."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import T0

from kueue_integration.contract import attempt_phases, job_names
from kueue_integration.contract.record_types import AttemptRecord, JobRequest, RequestStatus
from kueue_integration.controller import attempt_history
from kueue_integration.controller.errors import RefusedError
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.kube import server_time
from singularity_proxy.protocol import decode, names, phases
from singularity_proxy.protocol.messages import (
    CheckpointFailure,
    CheckpointRef,
    CommitRequest,
    GpuFault,
    Gpus,
    Hello,
    HelloReply,
    Progress,
    from_json,
    to_json,
)
from singularity_proxy.protocol.phases import SavePhases, StartPhases

NOW = T0 + 50


def job(record=None, **annotations):
    record = record or scene.record(evicted_at=T0 + 30, ended_by="Preempted")
    base = {job_names.ANN_HOLD: "armed", job_names.ANN_HOLD_DEADLINE: server_time.to_text(T0 + 60)}
    return scene.job(suspend=False, annotations={**base, **scene.history(record), **annotations})


def commit_of(ref: CheckpointRef, attempt: int = 1) -> CommitRequest:
    """Dated by the clock of its node, which is 95 s behind ours."""
    ref = replace(ref, created_at=ref.created_at - 95)
    return CommitRequest(scene.NS, "train", attempt, ref, barrier_ago_s=NOW - (T0 + 45), last_step=99)


def progress_of(attempt=1, phase="running", **fields) -> Progress:
    return Progress(scene.NS, "train", attempt, phase, **{"step": 12, **fields})


HELLO = Hello(scene.NS, "train", 1, 1, "train-1", "10.0.0.2")


# --- hello --------------------------------------------------------------------------------------------------------
def test_hello_tells_the_leader_the_key_and_the_checkpoint():
    current = job(scene.record(), **{names.ANN_CHECKPOINT: to_json(scene.checkpoint())})
    reply = reports.hello(current, [scene.pod(1, ip="10.0.0.2"), scene.pod(0, ip="10.0.0.1")], HELLO, b"secret")
    assert reply is not None
    assert (reply.leader_ip, reply.checkpoint) == ("10.0.0.1", scene.checkpoint())
    assert reply.peer_key == reports.peer_key(b"secret", scene.JOB_UID, 1)


def test_the_key_differs_by_job_attempt_and_secret():
    keys = {reports.peer_key(s, uid, n) for s in (b"a", b"b") for uid in ("u", "v") for n in (1, 2)}
    assert len(keys) == 8


@pytest.mark.parametrize(
    "leader",
    [
        None,
        scene.pod(0),
        scene.pod(0, ip="10.0.0.1", phase="Failed"),
        scene.pod(0, ip="10.0.0.1", deleting=True),
        scene.pod(0, ip="10.0.0.1", attempt=2),
    ],
)
def test_hello_has_to_be_repeated_while_the_leader_is_not_known(leader):
    assert reports.hello(job(scene.record()), [leader] if leader else [], HELLO, b"s") is None


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("counted", [True, False])
def test_a_pod_that_replaces_one_lost_after_the_end_of_all_ranks_has_nothing_left_to_do(attempt, counted):
    """The pods of the other indexes are complete: nobody would ever meet its ranks, in this attempt or a later one."""
    current = job(scene.record(attempt, ended_by="Deleted"))
    pods = [scene.pod(1, ip="10.0.0.2", attempt=attempt)]
    if counted:
        current["status"]["succeeded"] = 1  # and its pod has been cleaned up
    else:
        pods.append(scene.pod(0, ip="10.0.0.1", phase="Succeeded"))
    reply = reports.hello(current, pods, replace(HELLO, attempt=attempt), b"s")
    assert reply == HelloReply(peer_key="", leader_ip="", finished=True)


def test_complete_pods_of_a_job_that_was_deleted_say_nothing_of_its_successor_of_the_same_name():
    old = scene.pod(2, ip="10.0.0.3", phase="Succeeded", created=0)
    reply = reports.hello(job(scene.record()), [old, scene.pod(0, ip="10.0.0.1")], HELLO, b"s")
    assert reply is not None and not reply.finished


def test_a_replacement_pod_of_an_attempt_that_has_ended_waits():
    ended = job(scene.record(checkpoint="train-a1-g1", committed_at=T0 + 40))
    assert reports.hello(ended, [scene.pod(0, ip="10.0.0.1")], HELLO, b"s") is None


def test_a_replacement_pod_of_an_attempt_that_was_given_up_does_not_start_ranks():
    """They could never reach a barrier, and the pod would sit out its grace period."""
    broken = job(scene.record(ended_by="Deleted"), **{job_names.ANN_HOLD: job_names.HOLD_RELEASED})
    assert reports.hello(broken, [scene.pod(0, ip="10.0.0.1")], HELLO, b"s") is None


def test_a_stale_attempt_is_refused():
    current = 2
    other = job(scene.record(), **{job_names.ANN_ATTEMPT: str(current)})
    for call in (
        lambda: reports.hello(other, [], HELLO, b"s"),
        lambda: reports.progress(other, progress_of(), NOW),
        lambda: reports.commit(other, commit_of(scene.checkpoint()), NOW),
        lambda: reports.failure(other, CheckpointFailure(scene.NS, "train", 1, "x"), NOW),
    ):
        with pytest.raises(RefusedError, match=f"attempt 1 is not current, the job is at {current}") as caught:
            call()
        assert caught.value.status == 409


# --- command ------------------------------------------------------------------------------------------------------
def test_the_command_follows_from_the_annotations_alone():
    command = reports.command(job(), T0 + 35)
    assert command is not None
    assert (command.op, command.then, command.reason, command.remaining_s) == ("checkpoint", "stop", "Preempted", 25.0)
    assert reports.command(job(), T0 + 70).remaining_s == 0.0
    assert reports.command(job(), T0 + 35) == command  # a restarted controller says the same, so nothing is asked twice


@pytest.mark.parametrize(
    "change", [{job_names.ANN_HOLD: "released"}, {job_names.ANN_HOLD_DEADLINE: None}, {"suspend": "yes"}]
)
def test_without_an_armed_hold_and_a_deadline_there_is_no_command(change):
    current = job()
    if "suspend" in change:
        current["spec"]["suspend"] = True
    else:
        for name, value in change.items():
            current["metadata"]["annotations"].pop(name)
            if value:
                current["metadata"]["annotations"][name] = value
    assert reports.command(current, NOW) is None


def test_a_later_request_has_a_later_number():
    first, second = (
        reports.command(job(), NOW),
        reports.command(job(**{job_names.ANN_HOLD_DEADLINE: server_time.to_text(T0 + 75)}), NOW),
    )
    assert first is not None and second is not None
    assert second.seq > first.seq > 0


# --- progress -------------------------------------------------------------------------------------------------------
def is_news(current, message, now):
    return reports.Standing.of(current).is_news(current, message, now)


def test_progress_fills_the_record():
    current = job(scene.record())
    message = progress_of(first_step=5, first_step_ago_s=NOW - (T0 + 21))
    assert is_news(current, message, NOW)
    change = reports.progress(current, message, NOW)
    (record,) = scene.stored(change)
    assert (record.first_step, record.first_step_at, record.last_step) == (5, T0 + 21, 11)
    current["metadata"]["annotations"].update(change)
    again = progress_of(first_step=5, first_step_ago_s=40.0, step=13)
    assert not is_news(current, again, NOW)
    assert is_news(current, progress_of(phase="barrier", step=13), NOW)
    assert is_news(current, progress_of(step=13, barrier_ago_s=1.0), NOW)


def test_an_attempt_that_began_from_the_state_says_why():
    current = job(scene.record())
    message = progress_of(first_step=5, why_state="checkpoint c was taken on x86_64, this node is aarch64")
    change = reports.progress(current, message, NOW)
    (record,) = scene.stored(change)
    assert record.note == f"began from the state in its checkpoint: {message.why_state}"
    current["metadata"]["annotations"].update(change)
    (again,) = scene.stored(reports.progress(current, replace(message, step=message.step + 1), NOW))
    assert again.note == record.note, "once"


def test_no_step_is_not_a_completed_step():
    (record,) = scene.stored(reports.progress(job(scene.record()), progress_of(first_step=5, step=5), NOW))
    assert (record.first_step, record.last_step) == (5, None)


def test_progress_after_the_commit_does_not_move_the_last_step():
    ended = job(scene.record(checkpoint="train-a1-g1", last_step=99, first_step=0, running_at=T0 + 20))
    change = reports.progress(ended, progress_of(step=120, phase="uploading"), NOW)
    assert job_names.ANN_HISTORY not in change


def test_how_much_is_saved_is_told_while_it_is_being_saved():
    current = job(scene.record())
    change = reports.progress(current, progress_of(phase="uploading", bytes_done=1, bytes_total=4), NOW)
    told = json.loads(change[job_names.ANN_PROGRESS])
    assert (told["bytes_done"], told["bytes_total"]) == (1, 4)
    assert "bytes_total" not in json.loads(reports.progress(current, progress_of(), NOW)[job_names.ANN_PROGRESS])


def test_phase_of_another_attempt_is_not_this_ones():
    current = job(scene.record(2), **{job_names.ANN_PROGRESS: '{"attempt": 1, "phase": "finished"}'})
    assert reports.last_phase(current) is None
    assert reports.last_phase(job(**{job_names.ANN_PROGRESS: "["})) is None


# --- commit ---------------------------------------------------------------------------------------------------------
def test_a_commit_is_one_change_of_checkpoint_hold_and_history():
    change = reports.commit(job(), commit_of(scene.checkpoint()), NOW)
    assert change is not None
    assert from_json(CheckpointRef, change[names.ANN_CHECKPOINT]) == scene.checkpoint()  # dated by our clock
    assert change[job_names.ANN_HOLD] == "released"
    (record,) = scene.stored(change)
    assert (record.barrier_at, record.committed_at, record.last_step) == (T0 + 45, NOW, 99)
    assert (record.checkpoint, record.ended_by) == ("train-a1-g1", "Preempted")


def test_the_same_commit_twice_writes_once():
    current = job()
    current["metadata"]["annotations"].update(reports.commit(current, commit_of(scene.checkpoint()), NOW))
    assert reports.commit(current, commit_of(scene.checkpoint()), NOW + 1) is None


def test_an_older_checkpoint_never_replaces_a_newer_one():
    current = job(**{names.ANN_CHECKPOINT: to_json(scene.checkpoint(sequence=2))})
    with pytest.raises(RefusedError, match="not newer") as caught:
        reports.commit(current, commit_of(scene.checkpoint(sequence=1)), NOW)
    assert caught.value.status == 409


def test_a_checkpoint_of_another_attempt_is_refused():
    with pytest.raises(RefusedError, match=r"CommitRequest\.checkpoint\.attempt"):
        reports.commit(job(), commit_of(scene.checkpoint(attempt=2)), NOW)


def test_without_a_hold_a_commit_in_the_grace_period_counts_too():
    current = job()
    current["spec"]["suspend"] = True
    del current["metadata"]["annotations"][job_names.ANN_HOLD]
    change = reports.commit(current, commit_of(scene.checkpoint()), NOW)
    assert change is not None
    assert job_names.ANN_HOLD not in change
    assert names.ANN_CHECKPOINT in change


def test_a_commit_after_the_deadline_is_taken_and_said():
    late = scene.record(evicted_at=T0 + 30, ended_by="Preempted", note="no checkpoint within 30 s: x; restarts from y")
    late = replace(late, cause="deadline")
    change = reports.commit(job(late, **{job_names.ANN_HOLD: "released"}), commit_of(scene.checkpoint()), NOW)
    (record,) = scene.stored(change)
    assert record.note == "no checkpoint within 30 s: x; a checkpoint was taken within the pods' grace period"


# --- a checkpoint after which the attempt goes on -------------------------------------------------------------------
def asking(record=None, **annotations):
    """The job runs and somebody has asked for a checkpoint; nothing is being evicted."""
    request = JobRequest("r-1", "checkpoint", T0 + 39, by="ann")
    status = RequestStatus("r-1", "checkpoint", "running", "taken up", T0 + 40, attempt=1, deadline=T0 + 160)
    notes = {job_names.ANN_CHECKPOINT_REQUEST: to_json(request), job_names.ANN_CHECKPOINT_STATUS: to_json(status)}
    current = job(record or scene.record(first_step=0, first_step_at=T0 + 12), **notes, **annotations)
    del current["metadata"]["annotations"][job_names.ANN_HOLD_DEADLINE]
    return current


def answered(change) -> RequestStatus:
    return from_json(RequestStatus, change[job_names.ANN_CHECKPOINT_STATUS])


def test_a_checkpoint_that_was_asked_for_is_a_command_to_go_on():
    command = reports.command(asking(), T0 + 60)
    assert command is not None
    assert (command.then, command.remaining_s, command.reason) == ("continue", 100.0, "asked for by ann")
    later = reports.command(job(scene.record(evicted_at=T0 + 41, ended_by="Preempted")), T0 + 60)
    assert later is not None
    assert later.seq > command.seq  # though its deadline is the earlier one: a leader takes later numbers only


def test_an_evicted_attempt_is_asked_to_stop_and_nothing_else():
    evicted = scene.record(evicted_at=T0 + 45, ended_by="Preempted")
    command = reports.command(asking(evicted, **{job_names.ANN_HOLD_DEADLINE: "x"}), NOW)
    assert command is None  # its hold is not asked for yet, or over
    current = asking(evicted)
    current["metadata"]["annotations"][job_names.ANN_HOLD_DEADLINE] = server_time.to_text(T0 + 75)
    command = reports.command(current, NOW)
    assert command is not None
    assert command.then == "stop"


def test_a_checkpoint_aside_answers_its_request_and_leaves_the_record_and_the_hold_alone():
    current = asking()
    message = replace(commit_of(scene.checkpoint()), goes_on=True)
    change = reports.commit(current, message, NOW)
    assert change is not None
    assert set(change) == {
        names.ANN_CHECKPOINT,
        job_names.ANN_CHECKPOINT_COPY,
        job_names.ANN_CHECKPOINTS,
        job_names.ANN_CHECKPOINT_STATUS,
        job_names.ANN_SAVEABLE,
    }
    assert from_json(CheckpointRef, change[names.ANN_CHECKPOINT]) == scene.checkpoint()
    assert decode.messages(CheckpointRef, change[job_names.ANN_CHECKPOINTS]) == [scene.checkpoint()]
    done = answered(change)
    assert (done.state, done.checkpoint, done.step, done.finished_at) == ("done", "train-a1-g1", 100, NOW)
    current["metadata"]["annotations"].update(change)
    assert reports.command(current, NOW) is None
    assert reports.commit(current, message, NOW + 1) is None
    assert reports.hello(current, [scene.pod(0, ip="10.0.0.1")], HELLO, b"s") is not None  # the attempt lives


def test_a_checkpoint_aside_that_has_to_end_the_attempt_after_all_releases_the_hold():
    current = asking()
    current["metadata"]["annotations"].update(
        reports.commit(current, replace(commit_of(scene.checkpoint()), goes_on=True), NOW)
    )
    current["metadata"]["annotations"][job_names.ANN_HOLD_DEADLINE] = server_time.to_text(T0 + 75)
    change = reports.commit(current, commit_of(scene.checkpoint()), NOW + 1)
    assert change is not None
    assert change[job_names.ANN_HOLD] == "released"
    (record,) = scene.stored(change)
    assert (record.checkpoint, record.committed_at) == ("train-a1-g1", NOW)


def test_a_checkpoint_of_an_eviction_answers_an_open_request_too():
    change = reports.commit(asking(), commit_of(scene.checkpoint()), NOW)
    assert change is not None
    assert answered(change).state == "done"
    assert change[job_names.ANN_HOLD] == "released"


def test_the_list_of_checkpoints_is_bounded():
    old = [scene.checkpoint(sequence=n) for n in range(1, attempt_history.MAX_CHECKPOINTS + 1)]
    current = asking(**{job_names.ANN_CHECKPOINTS: to_json(old)})
    new = scene.checkpoint(sequence=99)
    change = reports.commit(current, replace(commit_of(new), goes_on=True), NOW)
    assert change is not None
    assert decode.messages(CheckpointRef, change[job_names.ANN_CHECKPOINTS]) == [*old[1:], new]


def test_a_failed_checkpoint_aside_fails_its_request_and_nothing_else():
    change = reports.failure(asking(), replace(failure_of("no step boundary within 9 s."), goes_on=True), NOW)
    assert change is not None
    assert set(change) == {job_names.ANN_CHECKPOINT_STATUS, job_names.ANN_SAVEABLE}
    assert (answered(change).state, answered(change).message) == (
        "failed", "no checkpoint: no step boundary within 9 s",
    )  # fmt: skip
    quiet = scene.record()
    unasked = job(quiet)
    assert set(reports.failure(unasked, replace(failure_of(), goes_on=True), NOW) or {}) == {job_names.ANN_SAVEABLE}


# --- failure --------------------------------------------------------------------------------------------------------
def failure_of(text="no step boundary within 30 s: ranks 0,1 at step 17"):
    return CheckpointFailure(scene.NS, "train", 1, text, step=17)


def test_a_failure_releases_the_hold_and_says_why():
    change = reports.failure(job(), failure_of("rank 1 could not be dumped."), NOW)
    assert change is not None
    assert change[job_names.ANN_HOLD] == "released"
    (record,) = scene.stored(change)
    assert record.note == "no checkpoint: rank 1 could not be dumped; restarts from the beginning"


def test_a_failure_at_the_deadline_says_how_long_was_waited():
    (record,) = scene.stored(reports.failure(job(), failure_of(), T0 + 59.5))
    assert record.note is not None
    assert record.note.startswith("no checkpoint within 30 s: no step boundary")


def test_the_first_account_of_a_missing_checkpoint_stays():
    told = scene.record(evicted_at=T0 + 30, note="no checkpoint within 30 s: told", cause="deadline")
    change = reports.failure(job(told, **{job_names.ANN_HOLD: "released"}), failure_of(), NOW) or {}
    assert set(change) == {job_names.ANN_SAVEABLE}


def test_training_that_has_just_finished_keeps_its_hold():
    done = job(**{job_names.ANN_PROGRESS: '{"attempt": 1, "step": 100, "phase": "finished", "at": 1}'})
    assert reports.failure(done, failure_of("rank 0 has finished"), NOW) is None


def test_a_failure_nobody_asked_for_releases_nothing():
    current = job(scene.record())
    del current["metadata"]["annotations"][job_names.ANN_HOLD_DEADLINE]
    change = reports.failure(current, failure_of(), NOW)
    assert change is not None
    assert job_names.ANN_HOLD not in change


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("world_size", 4, "world_size: 4, the Job's is 2"),
        ("url", "file:///elsewhere", "url: 'file:///elsewhere', the Job's store is 'file:///shared/checkpoints'"),
        ("url", "file:///shared/checkpoints-of-others", "the Job's store"),
        ("url", "file:///shared/checkpoints/../secrets", "the Job's store"),
        ("url", "simplecache::http://10.0.0.1/checkpoints", "the Job's store"),
        ("sha256", "", "sha256: '' is not a sha256 in hex"),
        ("sha256", "../../etc/passwd", "is not a sha256 in hex"),
        ("generation", 2_000_001, "generation: 2000001 is not one of attempt 1"),
        ("id", "../other/secret", "is not a checkpoint id"),
    ],
)
def test_a_checkpoint_that_is_not_of_this_job_is_refused(field, value, text):
    stores = {job_names.ANN_STORE: "file:///shared/checkpoints", job_names.ANN_WORLD_SIZE: "2"}
    foreign = dataclasses.replace(scene.checkpoint(), **{field: value})
    with pytest.raises(RefusedError, match=re.escape(text)) as caught:
        reports.commit(job(**stores), commit_of(foreign), NOW)
    assert caught.value.status == 400
    same = dataclasses.replace(scene.checkpoint(), url="file:///shared/checkpoints/")
    assert reports.commit(job(**stores), commit_of(same), NOW)


def test_ranks_that_have_finished_do_not_end_the_hold():
    """The rest of the job can still finish within the budget: suspending it now would repeat its last steps."""
    message = CheckpointFailure(scene.NS, "train", 1, "a rank has ended already: rank 0 at step 9", finishing=True)
    current = job()
    change = reports.failure(current, message, NOW)
    assert change is not None
    assert job_names.ANN_HOLD not in change
    (record,) = scene.stored(change)
    assert "a rank has ended already" in record.note
    assert "may end by itself" in record.note
    current["metadata"]["annotations"].update(change)
    assert reports.failure(current, message, NOW) is None  # said once


def test_the_pods_that_an_attempt_runs_with_are_remembered():
    pods = [scene.pod(0), scene.pod(1)]
    change = reports.progress(job(scene.record()), progress_of(first_step=0), NOW, pods)
    assert {job_names.ANN_PODS, job_names.ANN_HISTORY} <= set(change)
    starting = progress_of(phase="starting", first_step=0)
    assert job_names.ANN_PODS not in reports.progress(job(scene.record()), starting, NOW, pods)


@pytest.mark.parametrize(
    ("phase", "runs"), [("starting", False), ("restoring", False), ("running", True), ("finished", True)]
)
def test_an_attempt_runs_once_its_programs_do_with_or_without_a_step(phase, runs):
    change = reports.progress(job(scene.record()), progress_of(step=0, phase=phase, first_step=0), NOW)
    (record,) = scene.stored(change)
    assert record.running_at == (NOW if runs else None) and record.first_step_at is None
    later = reports.progress(job(record), progress_of(step=9, first_step=0, first_step_ago_s=4.0), NOW + 5)
    assert scene.stored(later)[-1].running_at == (NOW if runs else NOW + 5)


def test_a_checkpoint_before_the_first_step_makes_no_last_step():
    current = job(scene.record(first_step=0, running_at=T0 + 20))
    reference = scene.checkpoint(step=0)
    change = reports.commit(current, CommitRequest(scene.NS, "train", 1, reference, 1.0, -1), NOW)
    assert scene.stored(change)[-1].last_step is None


# --- GPUs ---------------------------------------------------------------------------------------------------------
def _stored(change) -> AttemptRecord:
    (record,) = decode.messages(AttemptRecord, change[job_names.ANN_HISTORY])
    return record


def test_what_the_gpus_did_stands_in_the_record_and_stays_there():
    seen = Gpus(8, 93.0, 70 << 30, 80 << 30, 0, 0, [GpuFault("GPU-1", 79, 1)])
    first = reports.progress(job(scene.record()), progress_of(gpus=seen), NOW)
    record = _stored(first)
    assert record.gpus == seen
    silent = progress_of(step=13, first_step=0)  # the leader was started anew: nobody has told it yet
    assert _stored(reports.progress(job(record), silent, NOW)).gpus == seen
    worse = replace(seen, faults=[GpuFault("GPU-1", 79, 2)])
    assert _stored(reports.progress(job(record), progress_of(gpus=worse), NOW)).gpus == worse


def test_many_faults_do_not_fill_the_annotation():
    seen = Gpus(8, faults=[GpuFault("GPU-1", xid, 1) for xid in range(5000)])
    change = reports.progress(job(scene.record()), progress_of(gpus=seen), NOW)
    assert len(change[job_names.ANN_HISTORY]) < 2000 and '"faults_more":4994' in change[job_names.ANN_HISTORY]


# --- phases -------------------------------------------------------------------------------------------------------
START, SAVE = StartPhases(join=1.234, fetch=5.0, meet=0.5), SavePhases(barrier=0.3, dump=2.0)


def phases_in(*changes):
    """As they are read from a Job on which all of `changes` were written."""
    current = job(scene.record())
    for change in changes:
        current["metadata"]["annotations"].update(change)
    return current, attempt_phases.of_job(current)


def test_phases_are_kept_beside_the_history_and_stay_there():
    first = reports.progress(job(scene.record()), progress_of(start=START), NOW)
    current, (known,) = phases_in(first)
    assert (known.attempt, known.start, known.save) == (1, replace(START, join=1.23), None)
    assert job_names.ANN_PHASES not in reports.progress(current, progress_of(start=START), NOW), "written once"
    assert job_names.ANN_PHASES not in reports.progress(current, progress_of(), NOW), "a new leader knows of none"
    saved = reports.commit(current, replace(commit_of(scene.checkpoint()), save=SAVE), NOW)
    _, (known,) = phases_in(first, saved)
    assert (known.start, known.save) == (replace(START, join=1.23), SAVE)


def test_a_checkpoint_after_which_the_attempt_goes_on_tells_no_phases():
    goes_on = replace(commit_of(scene.checkpoint()), save=SAVE, goes_on=True)
    assert job_names.ANN_PHASES not in reports.commit(job(), goes_on, NOW)


@pytest.mark.parametrize("spoilt", ["", "[", "{}", '[{"attempt": "1"}]', "[" * 100_000])
def test_spoilt_phases_are_none_and_are_written_anew(spoilt):
    current = job(scene.record(), **{job_names.ANN_PHASES: spoilt})
    assert attempt_phases.of_job(current) == []
    change = reports.progress(current, progress_of(start=START), NOW)
    assert [known.attempt for known in phases_in(change)[1]] == [1]


def test_phases_of_many_attempts_are_bounded():
    current = job(scene.record())
    for number in range(1, 200):
        current["metadata"]["annotations"].update(attempt_phases.told(current, number, START, SAVE))
    known = attempt_phases.of_job(current)
    assert [known[0].attempt, known[-1].attempt] == [200 - attempt_phases.MAX_KEPT, 199]
    assert len(current["metadata"]["annotations"][job_names.ANN_PHASES]) < 5000
    assert attempt_phases.of_attempt(current, 199).save == SAVE and attempt_phases.of_attempt(current, 1).save is None


def test_phases_without_end_are_bounded():
    longest = phases.started(dict.fromkeys(phases.by_name(StartPhases()), 3.2e9))
    change = reports.progress(job(scene.record()), progress_of(start=longest), NOW)
    assert len(change[job_names.ANN_PHASES]) < 300
