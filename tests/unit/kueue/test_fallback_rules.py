"""A checkpoint that turns out to be damaged: what its pods say, what the next attempt starts from, what users read."""

from __future__ import annotations

import dataclasses

import controller_scene as scene
import pytest
from controller_scene import T0

from kueue_integration.cli import tables
from kueue_integration.contract import attempt_records, job_names
from kueue_integration.controller import checkpoint_fit
from kueue_integration.controller.actions import AnswerReady, RequestReadmission
from kueue_integration.controller.errors import RefusedError
from kueue_integration.controller.machines import FlavorMachines
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.snapshot import Job, Workload
from kueue_integration.jobs.status import newest_usable, summarise
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CommitRequest, Damage, DamageReport, Hello, Needs, to_json

NOW = T0 + 100


def dated(attempt, step):
    """A checkpoint as it is written down: dated by the controller."""
    return dataclasses.replace(scene.checkpoint(attempt, step=step), created_at=NOW)


FIRST, SECOND, THIRD = (dated(n, 100 * n) for n in (1, 2, 3))
WHY = "pack 00ff of checkpoint train-a2-g1, file pages-1.img does not match its digest"


def look(job, workload, pods=(), now=NOW):
    return scene.decide(job, workload, list(pods), now)


def write(job, change):
    """What an action writes; None deletes."""
    assert change
    notes = job["metadata"]["annotations"]
    notes.update({name: value for name, value in change.items() if value is not None})
    for name in [name for name, value in change.items() if value is None]:
        notes.pop(name, None)


def job_with(*committed, attempt=3):
    """A Job in its attempt `attempt`, which was let in with the newest of these."""
    job = scene.job(suspend=False, annotations={job_names.ANN_HOLD: "armed"})
    for ref in committed:
        write(job, scene.history(scene.record(ref.attempt)))
        write(job, reports.commit(job, CommitRequest(scene.NS, "train", ref.attempt, ref, 1.0, 9, goes_on=True), NOW))
    given = committed[-1].id if committed else None
    write(job, scene.history(*(scene.record(n, ended_by="Preempted") for n in range(1, attempt)),
                             scene.record(attempt, restored_from=given)))  # fmt: skip
    return job


def damaged(*found, attempt=3):
    return DamageReport(scene.NS, "train", attempt, [Damage(name, why) for name, why in found])


def hello(job, attempt=3):
    pods = [scene.pod(0, attempt=attempt, ip="10.0.0.1"), scene.pod(1, attempt=attempt, ip="10.0.0.2")]
    return reports.hello(job, pods, Hello(scene.NS, "train", attempt, 1, "train-1", "10.0.0.2"), b"s")


def next_attempt(job):
    """The Job is let in again; the answer, written."""
    job["spec"]["suspend"] = True
    answer = look(job, scene.workload(reserved_at=90)).action
    assert isinstance(answer, AnswerReady)
    write(job, answer.job_annotations)
    job["spec"]["suspend"] = False
    return answer


def test_every_commit_is_remembered_once_oldest_first():
    job = job_with(FIRST, SECOND)
    assert attempt_records.checkpoints(job) == [FIRST, SECOND]
    write(job, scene.history(scene.record(2)))
    ended = CommitRequest(scene.NS, "train", 2, SECOND, 1.0, 9)
    write(job, reports.commit(job, ended, NOW))  # the same, and now the attempt ends with it
    assert attempt_records.checkpoints(job) == [FIRST, SECOND]
    assert reports.commit(job, ended, NOW) is None


def test_a_pod_cannot_call_a_checkpoint_unusable_by_committing_it():
    ref = dataclasses.replace(SECOND, unusable="so there")
    job = job_with(FIRST)
    write(job, scene.history(scene.record(2)))
    write(job, reports.commit(job, CommitRequest(scene.NS, "train", 2, ref, 1.0, 9), NOW))
    assert attempt_records.checkpoint(job) == SECOND and attempt_records.checkpoints(job) == [FIRST, SECOND]


def test_the_list_that_cannot_be_read_does_not_stop_a_commit():
    job = job_with(FIRST)
    job["metadata"]["annotations"][job_names.ANN_CHECKPOINTS] = "[[["
    write(job, scene.history(scene.record(2)))
    write(job, reports.commit(job, CommitRequest(scene.NS, "train", 2, SECOND, 1.0, 9), NOW))
    assert attempt_records.checkpoints(job) == [SECOND]


def test_pods_hear_what_was_committed_newest_first():
    reply = hello(job_with(FIRST, SECOND))
    assert (reply.checkpoint, reply.committed) == (SECOND, [SECOND, FIRST])


def test_the_next_attempt_starts_from_the_checkpoint_before_and_says_so():
    job = job_with(FIRST, SECOND)
    write(job, reports.damage(job, damaged((SECOND.id, WHY))))
    assert attempt_records.checkpoint(job) == FIRST
    assert attempt_records.checkpoints(job) == [FIRST, dataclasses.replace(SECOND, unusable=WHY)]
    assert reports.damage(job, damaged((SECOND.id, WHY))) is None  # another pod of the attempt has found it, too
    # Who comes late to this attempt gets what the others have, or nothing: never another checkpoint.
    assert hello(job).checkpoint.id == SECOND.id
    ended = look(job, scene.workload(state="Ready", admitted=True), [scene.pod(i, attempt=3) for i in (0, 1)]).action
    assert isinstance(ended, RequestReadmission)
    said = f"checkpoint {SECOND.id} cannot be restored: {WHY}"
    assert ended.message == f"{said}; restarts from checkpoint {FIRST.id} (step 100)"
    write(job, ended.job_annotations)
    assert hello(job) is None
    answer = next_attempt(job)
    assert answer.pod_annotations[names.ANN_CHECKPOINT] == FIRST.id
    assert answer.message == f"attempt 4: continues from checkpoint {FIRST.id}; {said}"
    record = attempt_records.history(job)[-1]
    assert (record.attempt, record.restored_from) == (4, FIRST.id)
    assert [(s.id, s.step, s.why) for s in record.skipped] == [(SECOND.id, 200, WHY)]
    assert hello(job, 4).checkpoint == FIRST
    status = summarise(job, None, ())
    assert newest_usable(status.checkpoints)["id"] == FIRST.id
    assert {c["id"]: c.get("unusable") for c in status.checkpoints} == {FIRST.id: None, SECOND.id: WHY}
    shown = " ".join(tables.detail(status).split())
    assert f"Checkpoint: {FIRST.id} at step 100" in shown
    assert f"attempt 4: checkpoint {SECOND.id} (step 200) cannot be restored: {WHY}" in shown


def test_older_ones_that_are_gone_are_passed_over_at_once():
    job = job_with(FIRST, SECOND, THIRD, attempt=4)
    write(job, reports.damage(job, damaged((THIRD.id, WHY), (SECOND.id, "no checkpoint"), attempt=4)))
    assert attempt_records.checkpoint(job) == FIRST
    assert [s.id for s in (next_attempt(job), attempt_records.history(job)[-1])[1].skipped] == [THIRD.id, SECOND.id]


def test_when_none_is_left_the_job_begins_anew_and_says_so():
    job = job_with(FIRST, SECOND)
    write(job, reports.damage(job, damaged((SECOND.id, WHY), (FIRST.id, "no checkpoint"))))
    assert attempt_records.checkpoint(job) is None
    ended = look(job, scene.workload(state="Ready", admitted=True), [scene.pod(i, attempt=3) for i in (0, 1)]).action
    assert isinstance(ended, RequestReadmission)
    assert ended.message.endswith("restarts from the beginning")
    write(job, ended.job_annotations)
    answer = next_attempt(job)
    assert answer.pod_annotations[names.ANN_CHECKPOINT] == ""
    assert answer.message.startswith(f"attempt 4: starts from the beginning; checkpoint {SECOND.id} cannot be restored")
    record = attempt_records.history(job)[-1]
    assert (record.restored_from, [s.id for s in record.skipped]) == (None, [SECOND.id, FIRST.id])
    assert newest_usable(summarise(job, None, ()).checkpoints) is None
    new = dated(4, 7)
    write(job, reports.commit(job, CommitRequest(scene.NS, "train", 4, new, 1.0, 6), NOW))
    assert attempt_records.checkpoints(job) == [new], "what lies before a new beginning is not gone back to"
    assert newest_usable(summarise(job, None, ()).checkpoints)["id"] == new.id


def test_a_fall_back_survives_a_removed_annotation():
    job = job_with(FIRST, SECOND)
    write(job, reports.damage(job, damaged((SECOND.id, WHY))))
    del job["metadata"]["annotations"][names.ANN_CHECKPOINT]
    put_back = look(job, scene.workload(state="Ready", admitted=True)).action
    assert put_back.job_annotations == {names.ANN_CHECKPOINT: to_json(FIRST)}


@pytest.mark.parametrize(
    "report",
    [
        damaged((FIRST.id, WHY)),  # not what this attempt was given
        damaged(("train-a9-g9", WHY)),
        damaged(),
    ],
)
def test_a_pod_can_only_give_up_what_its_attempt_was_given(report):
    assert reports.damage(job_with(FIRST, SECOND), report) is None


def test_what_an_attempt_has_committed_itself_is_not_given_up_by_it():
    job = job_with(FIRST, SECOND)
    write(job, reports.commit(job, CommitRequest(scene.NS, "train", 3, THIRD, 1.0, 9, goes_on=True), NOW))
    assert reports.damage(job, damaged((SECOND.id, WHY))) is None
    assert reports.damage(job, damaged((THIRD.id, WHY), (SECOND.id, WHY))) is None
    job = job_with(FIRST, SECOND, attempt=2)
    assert reports.damage(job, damaged((SECOND.id, WHY), attempt=2)) is None


def test_an_attempt_that_is_over_gives_up_nothing():
    with pytest.raises(RefusedError, match="attempt 2 is not current") as caught:
        reports.damage(job_with(FIRST, SECOND), damaged((SECOND.id, WHY), attempt=2))
    assert caught.value.status == 409


def test_machines_are_compared_with_what_the_checkpoint_before_needs():
    """The damaged one was made on another kind of machine."""
    needs = {FIRST.id: Needs("amd64"), SECOND.id: Needs("arm64")}
    job = job_with(*(dataclasses.replace(ref, needs=needs[ref.id]) for ref in (FIRST, SECOND)))
    admitted = Workload.parse(scene.workload())
    nodes = FlavorMachines({}, {"node-1": {checkpoint_fit.ARCHITECTURE: "amd64"}})
    assert "needs arm64" in checkpoint_fit.unfit(Job.parse(job), admitted, lambda flavor: nodes)
    write(job, reports.damage(job, damaged((SECOND.id, WHY))))
    assert checkpoint_fit.unfit(Job.parse(job), admitted, lambda flavor: nodes) == ""


def test_long_reasons_and_long_lists_stay_short():
    job = job_with(*(scene.checkpoint(n, step=n) for n in range(1, 31)), attempt=31)
    report = damaged(*((f"train-a{n}-g1", "x" * 10_000) for n in range(30, 5, -1)), attempt=31)
    write(job, reports.damage(job, report))
    next_attempt(job)
    assert len(attempt_records.history(job)[-1].skipped) == 3
    assert sum(map(len, job["metadata"]["annotations"].values())) < 50_000
