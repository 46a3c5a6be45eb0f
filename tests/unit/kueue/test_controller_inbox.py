"""What messages of the pods do to a Job, without any server."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import T0

from kueue_integration.controller import clock, inbox, records
from kueue_integration.controller.errors import RefusedError
from proxy.protocol import names
from proxy.protocol.messages import (
    CheckpointFailure,
    CheckpointRef,
    CommitRequest,
    Hello,
    JobRequest,
    Progress,
    RequestStatus,
    from_json,
    list_from_json,
    to_json,
)

NOW = T0 + 50


def job(record=None, **annotations):
    record = record or scene.record(evicted_at=T0 + 30, ended_by="Preempted")
    base = {names.ANN_HOLD: "armed", names.ANN_HOLD_DEADLINE: clock.to_text(T0 + 60)}
    return scene.job(suspend=False, annotations={**base, **scene.history(record), **annotations})


def commit_of(ref: CheckpointRef, attempt: int = 1) -> CommitRequest:
    return CommitRequest(scene.NS, "train", attempt, ref, barrier_at=T0 + 45, last_step=99)


def progress_of(attempt=1, phase="running", **fields) -> Progress:
    return Progress(scene.NS, "train", attempt, phase, **{"step": 12, **fields})


HELLO = Hello(scene.NS, "train", 1, 1, "train-1", "10.0.0.2")


# --- hello --------------------------------------------------------------------------------------------------------
def test_hello_tells_the_leader_the_key_and_the_checkpoint():
    current = job(scene.record(), **{names.ANN_CHECKPOINT: to_json(scene.checkpoint())})
    reply = inbox.hello(current, [scene.pod(1, ip="10.0.0.2"), scene.pod(0, ip="10.0.0.1")], HELLO, b"secret")
    assert reply is not None
    assert (reply.leader_ip, reply.checkpoint) == ("10.0.0.1", scene.checkpoint())
    assert reply.peer_key == inbox.peer_key(b"secret", scene.JOB_UID, 1)


def test_the_key_differs_by_job_attempt_and_secret():
    keys = {inbox.peer_key(s, uid, n) for s in (b"a", b"b") for uid in ("u", "v") for n in (1, 2)}
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
    assert inbox.hello(job(scene.record()), [leader] if leader else [], HELLO, b"s") is None


def test_a_replacement_pod_of_an_attempt_that_has_ended_waits():
    ended = job(scene.record(checkpoint="train-a1-g1", committed_at=T0 + 40))
    assert inbox.hello(ended, [scene.pod(0, ip="10.0.0.1")], HELLO, b"s") is None


def test_a_replacement_pod_of_an_attempt_that_was_given_up_does_not_start_ranks():
    """They could never reach a barrier, and the pod would sit out its grace period."""
    broken = job(scene.record(ended_by="Deleted"), **{names.ANN_HOLD: names.HOLD_RELEASED})
    assert inbox.hello(broken, [scene.pod(0, ip="10.0.0.1")], HELLO, b"s") is None


def test_a_stale_attempt_is_refused():
    current = 2
    other = job(scene.record(), **{names.ANN_ATTEMPT: str(current)})
    for call in (
        lambda: inbox.hello(other, [], HELLO, b"s"),
        lambda: inbox.progress(other, progress_of(), NOW),
        lambda: inbox.commit(other, commit_of(scene.checkpoint()), NOW),
        lambda: inbox.failure(other, CheckpointFailure(scene.NS, "train", 1, "x"), NOW),
    ):
        with pytest.raises(RefusedError, match=f"attempt 1 is not current, the job is at {current}") as caught:
            call()
        assert caught.value.status == 409


# --- command ------------------------------------------------------------------------------------------------------
def test_the_command_follows_from_the_annotations_alone():
    command = inbox.command(job())
    assert command is not None
    assert (command.op, command.then, command.reason, command.deadline) == ("checkpoint", "stop", "Preempted", T0 + 60)
    assert inbox.command(job()) == command  # a restarted controller says the same, so nothing is asked twice


@pytest.mark.parametrize("change", [{names.ANN_HOLD: "released"}, {names.ANN_HOLD_DEADLINE: None}, {"suspend": "yes"}])
def test_without_an_armed_hold_and_a_deadline_there_is_no_command(change):
    current = job()
    if "suspend" in change:
        current["spec"]["suspend"] = True
    else:
        for name, value in change.items():
            current["metadata"]["annotations"].pop(name)
            if value:
                current["metadata"]["annotations"][name] = value
    assert inbox.command(current) is None


def test_a_later_request_has_a_later_number():
    first, second = inbox.command(job()), inbox.command(job(**{names.ANN_HOLD_DEADLINE: clock.to_text(T0 + 75)}))
    assert first is not None and second is not None
    assert second.seq > first.seq > 0


# --- progress -------------------------------------------------------------------------------------------------------
def test_progress_fills_the_record():
    current = job(scene.record())
    message = progress_of(first_step=5, first_step_at=T0 + 21)
    assert inbox.is_news(current, message)
    change = inbox.progress(current, message, NOW)
    (record,) = scene.stored(change)
    assert (record.first_step, record.first_step_at, record.last_step) == (5, T0 + 21, 11)
    current["metadata"]["annotations"].update(change)
    again = progress_of(first_step=5, first_step_at=T0 + 21, step=13)
    assert not inbox.is_news(current, again)
    assert inbox.progress_age(current, NOW + 1.5) == pytest.approx(1.5)
    assert inbox.is_news(current, progress_of(phase="barrier", step=13))
    assert inbox.is_news(current, progress_of(step=13, barrier_at=T0 + 49))


def test_no_step_is_not_a_completed_step():
    (record,) = scene.stored(inbox.progress(job(scene.record()), progress_of(first_step=5, step=5), NOW))
    assert (record.first_step, record.last_step) == (5, None)


def test_progress_after_the_commit_does_not_move_the_last_step():
    ended = job(scene.record(checkpoint="train-a1-g1", last_step=99, first_step=0))
    change = inbox.progress(ended, progress_of(step=120, phase="uploading"), NOW)
    assert names.ANN_HISTORY not in change


def test_how_much_is_saved_is_told_while_it_is_being_saved():
    current = job(scene.record())
    change = inbox.progress(current, progress_of(phase="uploading", bytes_done=1, bytes_total=4), NOW)
    told = json.loads(change[names.ANN_PROGRESS])
    assert (told["bytes_done"], told["bytes_total"]) == (1, 4)
    assert "bytes_total" not in json.loads(inbox.progress(current, progress_of(), NOW)[names.ANN_PROGRESS])


def test_phase_of_another_attempt_is_not_this_ones():
    current = job(scene.record(2), **{names.ANN_PROGRESS: '{"attempt": 1, "phase": "finished"}'})
    assert inbox.last_phase(current) is None
    assert inbox.last_phase(job(**{names.ANN_PROGRESS: "["})) is None


# --- commit ---------------------------------------------------------------------------------------------------------
def test_a_commit_is_one_change_of_checkpoint_hold_and_history():
    change = inbox.commit(job(), commit_of(scene.checkpoint()), NOW)
    assert change is not None
    assert from_json(CheckpointRef, change[names.ANN_CHECKPOINT]) == scene.checkpoint()
    assert change[names.ANN_HOLD] == "released"
    (record,) = scene.stored(change)
    assert (record.barrier_at, record.committed_at, record.last_step) == (T0 + 45, NOW, 99)
    assert (record.checkpoint, record.ended_by) == ("train-a1-g1", "Preempted")


def test_the_same_commit_twice_writes_once():
    current = job()
    current["metadata"]["annotations"].update(inbox.commit(current, commit_of(scene.checkpoint()), NOW))
    assert inbox.commit(current, commit_of(scene.checkpoint()), NOW + 1) is None


def test_an_older_checkpoint_never_replaces_a_newer_one():
    current = job(**{names.ANN_CHECKPOINT: to_json(scene.checkpoint(sequence=2))})
    with pytest.raises(RefusedError, match="not newer") as caught:
        inbox.commit(current, commit_of(scene.checkpoint(sequence=1)), NOW)
    assert caught.value.status == 409


def test_a_checkpoint_of_another_attempt_is_refused():
    with pytest.raises(RefusedError, match=r"CommitRequest\.checkpoint\.attempt"):
        inbox.commit(job(), commit_of(scene.checkpoint(attempt=2)), NOW)


def test_without_a_hold_a_commit_in_the_grace_period_counts_too():
    current = job()
    current["spec"]["suspend"] = True
    del current["metadata"]["annotations"][names.ANN_HOLD]
    change = inbox.commit(current, commit_of(scene.checkpoint()), NOW)
    assert change is not None
    assert names.ANN_HOLD not in change
    assert names.ANN_CHECKPOINT in change


def test_a_commit_after_the_deadline_is_taken_and_said():
    late = scene.record(evicted_at=T0 + 30, ended_by="Preempted", note="no checkpoint within 30 s: x; restarts from y")
    change = inbox.commit(job(late, **{names.ANN_HOLD: "released"}), commit_of(scene.checkpoint()), NOW)
    (record,) = scene.stored(change)
    assert record.note == "no checkpoint within 30 s: x; a checkpoint was taken within the pods' grace period"


# --- a checkpoint after which the attempt goes on -------------------------------------------------------------------
def asking(record=None, **annotations):
    """The job runs and somebody has asked for a checkpoint; nothing is being evicted."""
    request = JobRequest("r-1", "checkpoint", T0 + 39, by="ann")
    status = RequestStatus("r-1", "checkpoint", "running", "taken up", T0 + 40, attempt=1, deadline=T0 + 160)
    notes = {names.ANN_CHECKPOINT_REQUEST: to_json(request), names.ANN_CHECKPOINT_STATUS: to_json(status)}
    current = job(record or scene.record(first_step=0, first_step_at=T0 + 12), **notes, **annotations)
    del current["metadata"]["annotations"][names.ANN_HOLD_DEADLINE]
    return current


def answered(change) -> RequestStatus:
    return from_json(RequestStatus, change[names.ANN_CHECKPOINT_STATUS])


def test_a_checkpoint_that_was_asked_for_is_a_command_to_go_on():
    command = inbox.command(asking())
    assert command is not None
    assert (command.then, command.deadline, command.reason) == ("continue", T0 + 160, "asked for by ann")
    later = inbox.command(job(scene.record(evicted_at=T0 + 41, ended_by="Preempted")))
    assert later is not None
    assert later.seq > command.seq  # though its deadline is the earlier one: a leader takes later numbers only


def test_an_evicted_attempt_is_asked_to_stop_and_nothing_else():
    evicted = scene.record(evicted_at=T0 + 45, ended_by="Preempted")
    command = inbox.command(asking(evicted, **{names.ANN_HOLD_DEADLINE: "x"}))
    assert command is None  # its hold is not asked for yet, or over
    current = asking(evicted)
    current["metadata"]["annotations"][names.ANN_HOLD_DEADLINE] = clock.to_text(T0 + 75)
    command = inbox.command(current)
    assert command is not None
    assert command.then == "stop"


def test_a_checkpoint_aside_answers_its_request_and_leaves_the_record_and_the_hold_alone():
    current = asking()
    message = replace(commit_of(scene.checkpoint()), goes_on=True)
    change = inbox.commit(current, message, NOW)
    assert change is not None
    assert set(change) == {
        names.ANN_CHECKPOINT,
        names.ANN_CHECKPOINT_COPY,
        names.ANN_CHECKPOINTS,
        names.ANN_CHECKPOINT_STATUS,
    }
    assert from_json(CheckpointRef, change[names.ANN_CHECKPOINT]) == scene.checkpoint()
    assert list_from_json(CheckpointRef, change[names.ANN_CHECKPOINTS]) == [scene.checkpoint()]
    done = answered(change)
    assert (done.state, done.checkpoint, done.step, done.finished_at) == ("done", "train-a1-g1", 100, NOW)
    current["metadata"]["annotations"].update(change)
    assert inbox.command(current) is None
    assert inbox.commit(current, message, NOW + 1) is None
    assert inbox.hello(current, [scene.pod(0, ip="10.0.0.1")], HELLO, b"s") is not None  # the attempt lives


def test_a_checkpoint_aside_that_has_to_end_the_attempt_after_all_releases_the_hold():
    current = asking()
    current["metadata"]["annotations"].update(
        inbox.commit(current, replace(commit_of(scene.checkpoint()), goes_on=True), NOW)
    )
    current["metadata"]["annotations"][names.ANN_HOLD_DEADLINE] = clock.to_text(T0 + 75)
    change = inbox.commit(current, commit_of(scene.checkpoint()), NOW + 1)
    assert change is not None
    assert change[names.ANN_HOLD] == "released"
    (record,) = scene.stored(change)
    assert (record.checkpoint, record.committed_at) == ("train-a1-g1", NOW + 1)


def test_a_checkpoint_of_an_eviction_answers_an_open_request_too():
    change = inbox.commit(asking(), commit_of(scene.checkpoint()), NOW)
    assert change is not None
    assert answered(change).state == "done"
    assert change[names.ANN_HOLD] == "released"


def test_the_list_of_checkpoints_is_bounded():
    old = [scene.checkpoint(sequence=n) for n in range(1, records.MAX_CHECKPOINTS + 1)]
    current = asking(**{names.ANN_CHECKPOINTS: to_json(old)})
    new = scene.checkpoint(sequence=99)
    change = inbox.commit(current, replace(commit_of(new), goes_on=True), NOW)
    assert change is not None
    assert list_from_json(CheckpointRef, change[names.ANN_CHECKPOINTS]) == [*old[1:], new]


def test_a_failed_checkpoint_aside_fails_its_request_and_nothing_else():
    change = inbox.failure(asking(), replace(failure_of("no step boundary within 9 s."), goes_on=True), NOW)
    assert change is not None
    assert set(change) == {names.ANN_CHECKPOINT_STATUS}
    assert (answered(change).state, answered(change).message) == (
        "failed", "no checkpoint: no step boundary within 9 s",
    )  # fmt: skip
    quiet = scene.record()
    unasked = job(quiet)
    assert inbox.failure(unasked, replace(failure_of(), goes_on=True), NOW) is None


# --- failure --------------------------------------------------------------------------------------------------------
def failure_of(text="no step boundary within 30 s: ranks 0,1 at step 17"):
    return CheckpointFailure(scene.NS, "train", 1, text, step=17)


def test_a_failure_releases_the_hold_and_says_why():
    change = inbox.failure(job(), failure_of("rank 1 could not be dumped."), NOW)
    assert change is not None
    assert change[names.ANN_HOLD] == "released"
    (record,) = scene.stored(change)
    assert record.note == "no checkpoint: rank 1 could not be dumped; restarts from the beginning"


def test_a_failure_at_the_deadline_says_how_long_was_waited():
    (record,) = scene.stored(inbox.failure(job(), failure_of(), T0 + 59.5))
    assert record.note is not None
    assert record.note.startswith("no checkpoint within 30 s: no step boundary")


def test_the_first_account_of_a_missing_checkpoint_stays():
    told = scene.record(evicted_at=T0 + 30, note="no checkpoint within 30 s: told")
    assert inbox.failure(job(told, **{names.ANN_HOLD: "released"}), failure_of(), NOW) is None


def test_training_that_has_just_finished_keeps_its_hold():
    done = job(**{names.ANN_PROGRESS: '{"attempt": 1, "step": 100, "phase": "finished", "at": 1}'})
    assert inbox.failure(done, failure_of("rank 0 has finished"), NOW) is None


def test_a_failure_nobody_asked_for_releases_nothing():
    current = job(scene.record())
    del current["metadata"]["annotations"][names.ANN_HOLD_DEADLINE]
    change = inbox.failure(current, failure_of(), NOW)
    assert change is not None
    assert names.ANN_HOLD not in change


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("world_size", 4, "world_size: 4, the Job's is 2"),
        ("url", "file:///elsewhere", "url: 'file:///elsewhere', the Job's store is 'file:///shared/checkpoints'"),
        ("url", "file:///shared/checkpoints-of-others", "the Job's store"),
        ("generation", 2_000_001, "generation: 2000001 is not one of attempt 1"),
        ("id", "../other/secret", "is not a checkpoint id"),
    ],
)
def test_a_checkpoint_that_is_not_of_this_job_is_refused(field, value, text):
    stores = {names.ANN_STORE: "file:///shared/checkpoints", names.ANN_WORLD_SIZE: "2"}
    foreign = dataclasses.replace(scene.checkpoint(), **{field: value})
    with pytest.raises(RefusedError, match=re.escape(text)) as caught:
        inbox.commit(job(**stores), commit_of(foreign), NOW)
    assert caught.value.status == 400
    below = dataclasses.replace(scene.checkpoint(), url="file:///shared/checkpoints/team")
    assert inbox.commit(job(**stores), commit_of(below), NOW)


def test_ranks_that_have_finished_do_not_end_the_hold():
    """The rest of the job can still finish within the budget: suspending it now would repeat its last steps."""
    message = CheckpointFailure(scene.NS, "train", 1, "a rank has ended already: rank 0 at step 9", finishing=True)
    current = job()
    change = inbox.failure(current, message, NOW)
    assert change is not None
    assert names.ANN_HOLD not in change
    (record,) = scene.stored(change)
    assert "a rank has ended already" in record.note
    assert "may end by itself" in record.note
    current["metadata"]["annotations"].update(change)
    assert inbox.failure(current, message, NOW) is None  # said once


def test_the_pods_of_the_first_step_are_remembered_with_it():
    pods = [scene.pod(0), scene.pod(1)]
    change = inbox.progress(job(scene.record()), progress_of(first_step=0, first_step_at=T0 + 21), NOW, pods)
    assert {names.ANN_PODS, names.ANN_HISTORY} <= set(change)
    assert names.ANN_PODS not in inbox.progress(job(scene.record()), progress_of(first_step=0), NOW, pods)
